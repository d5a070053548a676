"""Pictures of strangers as pixels: bounded in memory and time, and refused with a reason."""

from __future__ import annotations

import functools
import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import batchpool as bp
from batchpool.models.decoding_memory import DecodingMemory, bytes_needed, webp_bytes_needed
from batchpool.models.picture_segments import SEGMENTS_MOST, has_many_segments
from batchpool.models.webp_head import webp_size

if TYPE_CHECKING:
    from PIL.Image import Image

T = TypeVar("T")

FORMATS = ("JPEG", "PNG", "WEBP")
_SCANS_MOST = 100  # of a JPEG; each costs a pass over all pixels, and ten are usual
_SCANS_OF_LARGEST = 16  # of a JPEG with as many pixels as are allowed; smaller ones may have more
_BLOCK_BYTES = 64 << 20
_RATIO_MOST = 100  # of the sides: the shorter one is resized to a fixed size, the longer follows
_ORIENTATION = 0x0112  # the tag of EXIF
_BEGINNINGS = {
    "JPEG": re.compile(rb"\xff\xd8\xff"),
    "PNG": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "WebP": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
}
# What JPEG, PNG, WebP and the URL of any picture begin with in base64.
_AS_BASE64 = (b"/9j/", b"iVBORw0KGgo", b"UklGR", b"data:image/")


def use_picture(
    raw: bytes, max_pixels: int, memory: DecodingMemory, use: Callable[[Image], T]
) -> T:
    """The result of `use`, called with an upright RGB picture of the bytes of a JPEG, PNG or WebP;
    of several frames the first.

    It is decoded as soon as `memory` has room, and is gone when that is given back. Raises
    bp.InvalidInput that says what is wrong with it. Its size is read, and refused, before a pixel
    is decoded.
    """
    from PIL import Image

    _set_up_pillow()
    with _refusing(raw):
        opened, needed = _opened(raw, max_pixels)
    with memory.holding(needed):
        with _refusing(raw):
            picture = _decoded(opened or Image.open(io.BytesIO(raw), formats=FORMATS))
        del opened
        result = use(picture)
        del picture
        return result


def _opened(raw: bytes, max_pixels: int) -> tuple[Image | None, int]:
    """A picture of which only the head is read, and the bytes that decoding it takes; None for a
    WebP, which takes them as it is opened."""
    from PIL import Image

    if _BEGINNINGS["WebP"].match(raw):
        size = webp_size(raw)
        if size is None:
            raise bp.InvalidInput(_not_opened(raw))
        _check_size(*size, max_pixels)
        return None, webp_bytes_needed(*size)
    if has_many_segments(raw):
        raise bp.InvalidInput(
            f"image has too many segments; at most {SEGMENTS_MOST} beside its pixels were expected:"
            " write it anew without its metadata"
        )
    scans = raw.count(b"\xff\xda") if raw.startswith(b"\xff\xd8") else 0
    if scans > _SCANS_MOST:
        raise bp.InvalidInput(f"image is a JPEG of more than {_SCANS_MOST} scans")
    opened = Image.open(io.BytesIO(raw), formats=FORMATS)
    _check_size(*opened.size, max_pixels)
    _check_scans(scans, *opened.size, max_pixels)
    # Pillow decodes a PNG before it tells its orientation, which may stand behind the pixels.
    is_turned = opened.format == "PNG" or _orientation(opened) in _turns()
    return opened, bytes_needed(opened, scans=scans, is_turned=is_turned)


def _decoded(opened: Image) -> Image:
    opened.load()  # Image.open decodes nothing
    turn = _turns().get(_orientation(opened))
    picture = _in_8_bits(opened)
    if picture.mode != "RGB" or opened.format == "WEBP":  # whose decoder keeps its canvases
        picture = picture.convert("RGB")
    del opened  # before a turned copy is made
    return picture if turn is None else picture.transpose(turn)


@contextmanager
def _refusing(raw: bytes) -> Iterator[None]:
    """Raise bp.InvalidInput for whatever decoders raise."""
    from PIL import UnidentifiedImageError

    try:
        yield
    except (bp.InvalidInput, MemoryError):
        raise
    except UnidentifiedImageError:
        raise bp.InvalidInput(_not_opened(raw)) from None
    except Exception as error:  # decoders raise many kinds for what is broken
        raise bp.InvalidInput(f"image cannot be decoded: {error}") from None


@functools.cache
def _set_up_pillow() -> None:
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # Pillow's own limit, which warns first; the one here refuses
    # Pixels of a large picture are one block, which malloc gives back to the system as soon as it
    # is freed. Of several smaller ones it would keep those of each thread.
    Image.core.set_block_size(_BLOCK_BYTES)  # type: ignore[attr-defined]  # as its documents say
    # Metadata decide the texts of warnings, of which Python keeps each one that is new.
    warnings.filterwarnings("ignore", module=r"PIL\.")


@functools.cache
def _turns() -> dict[int, Any]:
    """The way in which Pillow turns a picture upright, by its orientation of EXIF."""
    from PIL.Image import Transpose

    return {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }


def _in_8_bits(picture: Image) -> Image:
    """A picture whose grey has 16 bits with the upper eight of them; any other as it is."""
    if not picture.mode.startswith("I"):
        return picture
    return picture.convert("I").point(lambda value: value * (1 / 256)).convert("L")


def _orientation(opened: Image) -> int:
    """The orientation of a picture by its EXIF or XMP, 1 (upright) where they are broken:
    metadata that cannot be read leave a picture that can."""
    try:
        return int(opened.getexif().get(_ORIENTATION, 1))
    except Exception:  # of many kinds
        return 1


def _not_opened(raw: bytes) -> str:
    """The text about bytes that are none of the known forms, or have a broken head."""
    for form, beginning in _BEGINNINGS.items():
        if beginning.match(raw):
            return f"image cannot be decoded: the head of this {form} is broken"
    return (
        f"image is no JPEG, PNG or WebP: {len(raw)} bytes that begin with"
        f" {raw[:8]!r}{_encoded_remark(raw)}"
    )


def _encoded_remark(raw: bytes) -> str:
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
