"""Strings in JSON that are no text: halves of surrogate pairs, and bytes that are no UTF-8.

msgspec refuses both. What it says of them may name another mistake ("Input data was truncated") and
a place within the string; this finds the place in the body, for the message alone.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from batchpool.wire.request import Body

_MOST_LOOKED_AT = 64 * 1024  # bytes that are looked through
_MOST_CHARACTERS = 80  # of a place
# An escape takes its letter with it, so that an escaped backslash begins no other one.
_ESCAPE = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_HIGH, _LOW = range(0xD800, 0xDC00), range(0xDC00, 0xE000)
_ENDS = (b'"]', b'"}', b'"]}', b'"]}]}', b'"}]}')  # what may follow a string in a request


def no_text(body: Body, of: str = "") -> str:
    """The fault of the first string of some JSON that is no text, as "input[1] has a byte that is
    no UTF-8, 0xff, at byte 29"; "" where none is found.

    of: what stands before the place, where the JSON is a part of a body; no byte is named then.
    """
    written = bytes(body[:_MOST_LOOKED_AT])
    found = _no_utf8(written, cut=len(written) < len(body)) or _lone_surrogate(written)
    if found is None:
        return ""
    at, fault = found
    place = _place(written[:at])
    if of:
        return f"{of}{place} has {fault}"
    return f"{place.removeprefix('.') or 'a string'} has {fault}, at byte {at}"


def _no_utf8(written: bytes, *, cut: bool) -> tuple[int, str] | None:
    try:
        written.decode()
    except UnicodeDecodeError as exc:
        if not (cut and exc.end == len(written)):  # a character that goes on behind the cut
            return exc.start, f"a byte that is no UTF-8, {written[exc.start]:#04x}"
    return None


def _lone_surrogate(written: bytes) -> tuple[int, str] | None:
    high: re.Match[bytes] | None = None
    for escape in _ESCAPE.finditer(written):
        code = int(escape[1], 16) if escape[1] else 0
        if high is not None and (code not in _LOW or escape.start() != high.end()):
            break
        if code in _LOW and high is None:
            high = escape
            break
        high = escape if code in _HIGH else None
    if high is None:
        return None
    return high.start(), f"half of a surrogate pair, {high[0].decode()}"


def _place(before: bytes) -> str:
    """The place of the string that ends with these bytes, as ".inputs[0].data[1]"; "" where they
    are the beginning of nothing that is known."""
    for end in _ENDS:
        try:
            value: Any = msgspec.json.decode(before + end)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        place = ""
        while isinstance(value, (dict, list)):
            if isinstance(value, dict):
                name, value = value.popitem()
                place += f".{name}"
            else:
                place += f"[{len(value) - 1}]"
                value = value[-1]
        return place[:_MOST_CHARACTERS]
    return ""
