"""Pictures of strangers as pixels: bounded in memory and time, and refused with a reason."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import batchpool as bp

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG", "WEBP")
_SCANS_MOST = 100  # of a JPEG; each costs a pass over all pixels, and ten are usual
_SCANS_OF_LARGEST = 16  # of a JPEG with as many pixels as are allowed; smaller ones may have more
_RATIO_MOST = 100  # of the sides: the shorter one is resized to a fixed size, the longer follows
# What JPEG, PNG, WebP and the URL of any picture begin with in base64.
_AS_BASE64 = (b"/9j/", b"iVBORw0KGgo", b"UklGR", b"data:image/")


def picture_of(raw: bytes, max_pixels: int) -> Image:
    """An upright RGB picture of the bytes of a JPEG, PNG or WebP; of several frames the first.

    Raises bp.InvalidInput that says what is wrong with it. Its size is read, and refused, before
    a pixel is decoded.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    Image.MAX_IMAGE_PIXELS = None  # Pillow's own limit, which warns first; the one here refuses
    scans = raw.count(b"\xff\xda") if raw.startswith(b"\xff\xd8") else 0
    if scans > _SCANS_MOST:
        raise bp.InvalidInput(f"image is a JPEG of more than {_SCANS_MOST} scans")
    try:
        opened = Image.open(io.BytesIO(raw), formats=FORMATS)
        _check_size(*opened.size, max_pixels)
        _check_scans(scans, *opened.size, max_pixels)
        # Image.open decodes nothing; from here on it does.
        return ImageOps.exif_transpose(opened).convert("RGB")
    except (bp.InvalidInput, MemoryError):
        raise
    except UnidentifiedImageError:
        raise bp.InvalidInput(
            f"image is no JPEG, PNG or WebP: {len(raw)} bytes that begin with"
            f" {raw[:8]!r}{_base64_hint(raw)}"
        ) from None
    except Exception as error:  # decoders raise many kinds for what is broken
        raise bp.InvalidInput(f"image cannot be decoded: {error}") from None


def _base64_hint(raw: bytes) -> str:
    """The end of the refusal of a picture that came as base64; "" for any other bytes."""
    if not raw.startswith(_AS_BASE64):
        return ""
    return '; that is base64: in JSON write {"b64": "..."} without "data:", elsewhere the bytes'


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise bp.InvalidInput(
            f"image has {width} x {height} pixels; at most {max_pixels} in all are decoded"
        )
    if max(width, height) > _RATIO_MOST * min(width, height):
        raise bp.InvalidInput(
            f"image has {width} x {height} pixels; one side may be at most {_RATIO_MOST} times the"
            " other"
        )


def _check_scans(scans: int, width: int, height: int, max_pixels: int) -> None:
    most = _SCANS_OF_LARGEST * max_pixels // max(1, width * height)
    if scans > most:
        raise bp.InvalidInput(
            f"image is a JPEG of {scans} scans with {width} x {height} pixels; at most {most} scans"
            " are decoded of so many pixels"
        )
