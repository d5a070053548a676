"""A stranger's picture is upright pixels, or refused with a reason before it costs much."""

from __future__ import annotations

import io
import struct
import zlib
from base64 import b64encode
from typing import Any

import numpy as np
import pytest

import batchpool as bp

Image = pytest.importorskip("PIL.Image")
ImageOps = pytest.importorskip("PIL.ImageOps")

from batchpool.models import pictures  # noqa: E402
from tests.unit.models.decoded_pictures import picture_of  # noqa: E402

MOST = 1_000_000


def photo(width: int = 60, height: int = 40) -> Any:
    """A smooth picture, bright at the top left."""
    rows, columns = np.mgrid[0:height, 0:width]
    pixels = np.stack([255 - rows * 2, 255 - columns * 2, rows + columns], axis=2)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def written(picture: Any, form: str = "JPEG", **more: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, form, **more)
    return file.getvalue()


def refusal(raw: bytes, most: int = MOST) -> str:
    with pytest.raises(bp.InvalidInput) as caught:
        picture_of(raw, most)
    return str(caught.value)


@pytest.mark.parametrize(
    ("form", "more"), [("JPEG", {}), ("PNG", {}), ("WEBP", {"lossless": True})]
)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK", "P", "RGBA", "1"])
def test_pictures_of_all_forms_and_modes_are_rgb(
    form: str, more: dict[str, Any], mode: str
) -> None:
    try:
        raw = written(photo().convert(mode), form, **more)
    except (OSError, ValueError):
        pytest.skip(f"{form} has no {mode}")
    expected = Image.open(io.BytesIO(raw)).convert("RGB")
    assert picture_of(raw, MOST).tobytes() == expected.tobytes()


def test_a_picture_is_turned_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    found = picture_of(written(photo(), "PNG", exif=exif), MOST)
    assert found.size == (40, 60)
    assert found.tobytes() == photo().transpose(Image.Transpose.ROTATE_270).tobytes()


def png_head(width: int, height: int) -> bytes:
    """A PNG that claims a size and has no pixels."""
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))
    return b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", 0) + b"IDAT" + b"\x35\xaf\x06\x1e"


def test_a_size_is_refused_before_pixels_are_decoded() -> None:
    for side in (50_000, 12_000):  # Pillow itself would raise, and warn
        text = f"image has {side} x {side} pixels; at most 1000000 in all are decoded"
        assert refusal(png_head(side, side)) == text
    assert refusal(png_head(1001, 1000)).startswith("image has 1001 x 1000 pixels; at most 1000000")
    text = "image has 101 x 1 pixels; one side may be at most 100 times the other"
    assert refusal(written(photo(101, 1), "PNG")) == text
    assert picture_of(written(photo(100, 1), "PNG"), 100).size == (100, 1)


def test_broken_pictures_are_told_what_is_wrong() -> None:
    raw = written(photo())
    assert "image cannot be decoded: image file is truncated" in refusal(raw[:-40])
    assert "image cannot be decoded: " in refusal(png_head(10, 10))
    assert refusal(b"GIF89a" + bytes(20)).startswith("image is no JPEG, PNG or WebP: 26 bytes that")
    assert refusal(written(photo(), "TIFF")).startswith("image is no JPEG, PNG or WebP")
    assert refusal(png_head(0, 1)) == "image cannot be decoded: the head of this PNG is broken"
    head = b"RIFF\x08\0\0\0WEBP"
    assert refusal(head) == "image cannot be decoded: the head of this WebP is broken"
    assert refusal(b"RIFF\x08\0\0\0WAVE").startswith("image is no JPEG, PNG or WebP: 12 bytes")
    for form in ("JPEG", "PNG", "WEBP"):
        encoded = b64encode(written(photo(), form))
        for text in (encoded, b"data:image/x;base64," + encoded):
            assert 'that is base64: in JSON write {"b64": "..."}' in refusal(text)
    assert refusal(b"") == "image is no JPEG, PNG or WebP: 0 bytes that begin with b''"


def test_a_jpeg_of_endless_scans_is_refused() -> None:
    progressive = written(photo(), progressive=True)
    assert picture_of(progressive, MOST).size == (60, 40)
    at = progressive.rindex(b"\xff\xda")
    scan = progressive[at:-2]
    assert refusal(progressive[:-2] + 100 * scan + b"\xff\xd9") == (
        "image is a JPEG of more than 100 scans"
    )


def test_scans_and_pixels_are_bounded_together() -> None:
    """Each scan is a pass over all pixels: 100 of them at 32 million pixels take 2.3 s."""
    progressive = written(photo(), progressive=True)  # of 60 x 40 pixels
    at = progressive.rindex(b"\xff\xda")
    scans = progressive.count(b"\xff\xda")
    with_16 = progressive[:-2] + (16 - scans) * progressive[at:-2] + b"\xff\xd9"
    with_17 = progressive[:-2] + (17 - scans) * progressive[at:-2] + b"\xff\xd9"
    assert picture_of(with_16, 2400).size == (60, 40)
    with pytest.raises(bp.InvalidInput) as refused:
        picture_of(with_17, 2400)
    assert str(refused.value) == (
        "image is a JPEG of 17 scans with 60 x 40 pixels; at most 16 scans are decoded of so many"
        " pixels"
    )
    assert picture_of(with_17, 2600).size == (60, 40)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_every_orientation_is_undone_as_pillow_does(form: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    raw = written(photo(), form, exif=exif)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(raw))).convert("RGB")
    found = picture_of(raw, MOST)
    assert (found.size, found.tobytes()) == (expected.size, expected.tobytes())


def exif_of(*entries: tuple[int, int, int, int]) -> bytes:
    """EXIF with these entries: (tag, type, count, value)."""
    packed = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    head = b"Exif\0\0II*\0" + struct.pack("<IH", 8, len(entries))
    return head + packed + bytes(4) + b"y" * 400


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_broken_metadata_cost_a_picture_nothing_but_them(form: str) -> None:
    plain = picture_of(written(photo(), form), MOST).tobytes()
    for broken in (b"Exif\0\0" + b"x" * 60, b"Exif\0\0II*\0", exif_of((0x0112, 2, 4, 6))):
        found = picture_of(written(photo(), form, exif=broken), MOST)
        assert (found.size, found.tobytes()) == ((60, 40), plain)
    # To be turned, and with a tag whose type is not the one that it should have.
    turned = exif_of((0x0112, 3, 1, 6), (0x0201, 7, 300, 60))
    assert picture_of(written(photo(), form, exif=turned), MOST).size == (40, 60)


def test_metadata_cannot_write_the_log(recwarn: pytest.WarningsRecorder) -> None:
    """Python keeps the text of each warning that is new, and a tag's number stands in this one."""
    many = exif_of(*((tag, 2, 60_000, 0) for tag in range(1, 100)))
    pictures._set_up_pillow.cache_clear()
    assert picture_of(written(photo(), exif=many), MOST).size == (60, 40)
    assert [str(each.message) for each in recwarn] == []


@pytest.mark.parametrize("value", [0, 255, 256, 300, 40_000, 65_535])
def test_grey_of_16_bits_is_scaled_and_not_cut(value: int) -> None:
    raw = written(Image.fromarray(np.full((8, 8), value, np.uint16)), "PNG")
    assert picture_of(raw, MOST).getpixel((3, 3)) == (value >> 8,) * 3
