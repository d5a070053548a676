"""The size of a WebP is known before it is opened, as its decoder will find it."""

from __future__ import annotations

import io
from typing import Any

import pytest

import batchpool as bp
from batchpool.models.webp_head import webp_size

Image = pytest.importorskip("PIL.Image")

from tests.unit.models.decoded_pictures import picture_of  # noqa: E402


def webp(width: int, height: int, mode: str = "RGB", **more: Any) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (width, height), 99).save(file, "WEBP", **more)
    return file.getvalue()


@pytest.mark.parametrize("size", [(1, 1), (255, 256), (16383, 1), (1, 16383), (300, 7)])
@pytest.mark.parametrize("lossless", [True, False])
@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_it_is_the_decoders(size: tuple[int, int], lossless: bool, mode: str) -> None:
    raw = webp(*size, mode, lossless=lossless)
    assert webp_size(raw) == Image.open(io.BytesIO(raw)).size == size


def test_metadata_and_frames_make_no_other_size() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    frames = [Image.new("RGB", (70, 30), shade) for shade in (9, 99)]
    file = io.BytesIO()
    frames[0].save(file, "WEBP", save_all=True, append_images=frames[1:])
    for raw in (webp(70, 30, exif=exif), file.getvalue()):
        assert raw[12:16] == b"VP8X"
        assert webp_size(raw) == Image.open(io.BytesIO(raw)).size == (70, 30)


def test_a_broken_head_has_none() -> None:
    whole = webp(70, 30)
    for broken in (
        b"",
        whole[:29],
        b"RIFX" + whole[4:],
        whole[:12] + b"VP8Y" + whole[16:],
        whole[:23] + b"x" + whole[24:],
    ):
        assert webp_size(broken) is None  # fmt: skip
    with pytest.raises(bp.InvalidInput, match="the head of this WebP is broken"):
        picture_of(whole[:12] + b"VP8Y" + whole[16:], 10_000)


def test_a_large_one_is_refused_before_it_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is opened it would take eight bytes a pixel."""
    raw = webp(70, 30)
    monkeypatch.setattr(Image, "open", None)
    with pytest.raises(bp.InvalidInput, match=r"70 x 30 pixels; at most 2099 in all"):
        picture_of(raw, 2099)
