"""Parts of a picture's file beside its pixels: how many a decoder would have to look at.

A JPEG has segments, a PNG has chunks. Decoders look at them one by one, and some join those of a
kind again for each that comes, so that 4 MiB of tiny ones keep a decoder busy for ten seconds, and
more of them for the square of that. Usual pictures have some ten, and hardly more than 300.
"""

from __future__ import annotations

import struct

SEGMENTS_MOST = 500
_IN_ONE = 64  # pieces of pixels in a PNG, or skipped bytes in a JPEG, that count as one segment
_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8"
_START_OF_SCAN = 0xDA
# Markers without a length: fill bytes, escaped 0xFF, TEM, RST0 to RST7, SOI and EOI.
_ALONE = frozenset((0x00, 0x01, 0xFF, *range(0xD0, 0xDA)))


def has_many_segments(raw: bytes) -> bool:
    """True if a JPEG has more than SEGMENTS_MOST segments before its first scan, or a PNG as many
    chunks that are no pixels; False for any other file.

    Pixels of a PNG that are cut into very many chunks, and bytes of a JPEG that belong to no
    segment, count as well.
    """
    if raw.startswith(_PNG):
        return _has_many_chunks(raw)
    return raw.startswith(_JPEG) and _has_many_markers(raw)


def _has_many_chunks(raw: bytes) -> bool:
    at, found, end = len(_PNG), 0, len(raw) - 8
    while at <= end:
        length, kind = struct.unpack_from(">I4s", raw, at)
        found += 1 if kind == b"IDAT" else _IN_ONE
        if found > SEGMENTS_MOST * _IN_ONE:
            return True
        at += length + 12  # with its length, kind and checksum
    return False


def _has_many_markers(raw: bytes) -> bool:
    at, found, end = len(_JPEG), 0, len(raw) - 4
    while at <= end:
        marker = raw[at + 1]
        if raw[at] != 0xFF or marker in _ALONE:
            found, at = found + 1, at + 1
        elif marker == _START_OF_SCAN:
            return False
        else:
            found, at = found + _IN_ONE, at + 2 + max(2, int.from_bytes(raw[at + 2 : at + 4]))
        if found > SEGMENTS_MOST * _IN_ONE:
            return True
    return False
