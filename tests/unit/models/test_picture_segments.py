"""Segments of a picture are counted before a decoder looks at them one by one."""

from __future__ import annotations

import io
import struct
import zlib

import pytest

import batchpool as bp
from batchpool.models.picture_segments import SEGMENTS_MOST, has_many_segments

Image = pytest.importorskip("PIL.Image")

from tests.unit.models.decoded_pictures import picture_of  # noqa: E402

PICTURE = Image.new("RGB", (8, 8), (200, 10, 10))


def written(form: str) -> bytes:
    file = io.BytesIO()
    PICTURE.save(file, form)
    return file.getvalue()


def segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content


def jpeg(*parts: bytes) -> bytes:
    """A JPEG with these bytes behind its start."""
    raw = written("JPEG")
    return raw[:2] + b"".join(parts) + raw[2:]


def chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def png(*parts: bytes) -> bytes:
    """A PNG with these bytes in front of its pixels."""
    raw = written("PNG")
    return raw[:33] + b"".join(parts) + raw[33:]


def most(form: str) -> int:
    """The number of segments that fit beside those of PICTURE."""
    have = {"JPEG": jpeg_segments(), "PNG": 3 - 1}[form]  # IHDR, IEND; the pixels count little
    return SEGMENTS_MOST - have


def jpeg_segments() -> int:
    raw, at, found = written("JPEG"), 2, 0
    while raw[at + 1] != 0xDA:
        found, at = found + 1, at + 2 + int.from_bytes(raw[at + 2 : at + 4])
    return found


@pytest.mark.parametrize(
    "one",
    [segment(0xE1, b"Exif\0\0x"), segment(0xFE, b""), segment(0xE2, b"ICC_PROFILE\0\1\1x")],
    ids=["EXIF", "comment", "ICC"],
)
def test_one_segment_too_many_is_refused(one: bytes) -> None:
    assert picture_of(jpeg(*[one] * most("JPEG")), 64).size == (8, 8)
    with pytest.raises(bp.InvalidInput) as refused:
        picture_of(jpeg(*[one] * (most("JPEG") + 1)), 64)
    assert str(refused.value) == (
        "image has too many segments; at most 500 beside its pixels were expected: write it anew"
        " without its metadata"
    )


@pytest.mark.parametrize("kind", [b"tEXt", b"abCd", b"iCCP", b"eXIf"])
def test_one_chunk_too_many_is_refused(kind: bytes) -> None:
    one = chunk(kind, b"k\0\0" + zlib.compress(b"text"))
    assert not has_many_segments(png(*[one] * (most("PNG") - 1)))
    assert has_many_segments(png(*[one] * (most("PNG") + 1)))


def test_pixels_in_pieces_and_skipped_bytes_count_little() -> None:
    for raw in (png(chunk(b"IDAT", b"") * 30_000), jpeg(b"\xff" * 30_000)):
        assert not has_many_segments(raw)
    for raw in (png(chunk(b"IDAT", b"") * 33_000), jpeg(b"\xff" * 33_000)):
        assert has_many_segments(raw)


def test_usual_and_broken_pictures_have_few() -> None:
    for form in ("JPEG", "PNG", "WEBP"):
        raw = written(form)
        assert not any(has_many_segments(raw[:size]) for size in range(len(raw) + 1))
    assert not has_many_segments(b"\xff\xd8" + segment(0xFE, b"") * 3 + b"\xff\xe1")
