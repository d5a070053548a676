"""The size of a WebP by its head: libwebp takes the memory of its canvases as soon as it is opened.

"RIFF" size "WEBP" then the first chunk: its name, its size, and
VP8X    flags and 3 reserved bytes, width - 1 and height - 1 of the canvas in 24 bits each
VP8L    0x2f, width - 1 and height - 1 in 14 bits each
"VP8 "  3 bytes of the frame, 9d 01 2a, width and height in 14 bits each, below 2 bits of scale
"""

from __future__ import annotations

import struct

_CHUNK = 12  # the first chunk's place
_BODY = 20
_LEAST_BYTES = 30
_14_BITS = (1 << 14) - 1
_24_BITS = (1 << 24) - 1
_LOSSLESS, _LOSSY = 0x2F, b"\x9d\x01\x2a"


def webp_size(raw: bytes) -> tuple[int, int] | None:
    """Width and height; None for a head that is broken or of no WebP."""
    if len(raw) < _LEAST_BYTES or raw[:4] != b"RIFF" or raw[8:_CHUNK] != b"WEBP":
        return None
    chunk = raw[_CHUNK : _CHUNK + 4]
    if chunk == b"VP8X":
        bits = int.from_bytes(raw[_BODY + 4 : _BODY + 10], "little")
        return (bits & _24_BITS) + 1, (bits >> 24) + 1
    if chunk == b"VP8L" and raw[_BODY] == _LOSSLESS:
        (bits,) = struct.unpack_from("<I", raw, _BODY + 1)
        return (bits & _14_BITS) + 1, (bits >> 14 & _14_BITS) + 1
    if chunk == b"VP8 " and raw[_BODY + 3 : _BODY + 6] == _LOSSY:
        width, height = struct.unpack_from("<HH", raw, _BODY + 6)
        return width & _14_BITS, height & _14_BITS
    return None
