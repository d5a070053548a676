"""The memory that pictures take while they are decoded, bounded over all threads of a process.

A bound of pixels is none of memory: a WebP holds 16 bytes a pixel at its peak, a JPEG of
one scan 4. What a picture will need is known from its head, so that large ones wait for each other
before a pixel is decoded, and small ones go on beside them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

_PICTURE = 4  # bytes a pixel of a picture of 8 bits in Pillow, whatever its channels are
_GREY_16 = 6  # of one whose grey has 16 bits: its numbers, once more as others, and as 8 bits
_COEFFICIENTS = 2  # of each channel of a JPEG that comes in several scans
_WEBP = 16  # of two canvases of the library, the bytes that it gives to Pillow, and the picture


def bytes_needed(opened: Image, *, scans: int = 0, is_turned: bool = False) -> int:
    """The most memory that decoding an opened JPEG or PNG takes, as upright RGB. scans: of a
    JPEG."""
    each = _PICTURE
    if opened.format == "JPEG" and scans > 1:
        each += _COEFFICIENTS * len(opened.getbands())
    if opened.mode.startswith("I"):
        each += _GREY_16
    if opened.mode != "RGB":
        each += _PICTURE
    if is_turned:
        each += _PICTURE
    return opened.width * opened.height * each


def webp_bytes_needed(width: int, height: int) -> int:
    """The most memory that decoding a WebP of this size takes, from its opening on."""
    return width * height * _WEBP


class DecodingMemory:
    """The memory of all pictures that are decoded at the same time.

    most_bytes: a picture that needs more is decoded alone. Any thread may use it.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.held_bytes = 0
        self._changed = threading.Condition()

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Wait until so many bytes are free, and hold them."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_room(size))
            self.held_bytes += size
        try:
            yield
        finally:
            self.give_back(size)

    def give_back(self, size: int) -> None:
        """Let others have so many bytes."""
        with self._changed:
            self.held_bytes -= size
            self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        return not self.held_bytes or self.held_bytes + size <= self.most_bytes
