"""The number of values in a msgpack body, counted without reading them.

Reading msgpack takes a few nanoseconds a value and keeps the interpreter from the first to the last
one. Tensors are one value each, however large; but a byte may be a value too, and 60 MB of those
would take a third of a second.
"""

from __future__ import annotations

from batchpool.wire.request import Body

MANY_VALUES = 2048

# By the first byte of a value: the bytes of the length that follows, or of a fixed content.
_BIN_OR_STR = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_EXTENSION = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_ARRAY = {0xDC: 2, 0xDD: 4}
_MAP = {0xDE: 2, 0xDF: 4}
_FIXED = {
    0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8,
    0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip


def has_many_values(body: Body) -> bool:
    """True if the body holds more than MANY_VALUES values, as far as it is msgpack at all.

    Nothing is made of them. Takes less than a millisecond, whatever the body is.
    """
    view = memoryview(body)
    at, left, seen = 0, 1, 0
    while left and at < len(view):
        left -= 1
        seen += 1
        if seen + left > MANY_VALUES:
            return True
        size, values = _next(view, at)
        at += size
        left += values
    return seen + left > MANY_VALUES


def _next(view: memoryview, at: int) -> tuple[int, int]:
    """(bytes, values within it, which follow those bytes) of the value that begins here."""
    first = view[at]
    if first < 0x80 or first >= 0xE0:
        return 1, 0
    if first < 0x90:
        return 1, 2 * (first & 0x0F)
    if first < 0xA0:
        return 1, first & 0x0F
    if first < 0xC0:
        return 1 + (first & 0x1F), 0
    for lengths, besides in ((_BIN_OR_STR, 0), (_EXTENSION, 1)):
        if wide := lengths.get(first):
            return 1 + wide + besides + _length(view, at, wide), 0
    for lengths, each in ((_ARRAY, 1), (_MAP, 2)):
        if wide := lengths.get(first):
            return 1 + wide, each * _length(view, at, wide)
    return 1 + _FIXED.get(first, 0), 0


def _length(view: memoryview, at: int, wide: int) -> int:
    return int.from_bytes(view[at + 1 : at + 1 + wide], "big")
