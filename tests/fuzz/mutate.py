"""Random damage to a request: to its bytes, its words, its numbers and its headers."""

from __future__ import annotations

import re
from random import Random

from tests.fuzz.valid import Body

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_WORD = re.compile(rb'"[^"\\\\]*"')
_NUMBERS = (
    b"0", b"-0", b"-1", b"1.0", b"1e0", b"1.5", b"255", b"256", b"1e39", b"1e400", b"01",
    b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"NaN", b"Infinity",
    b"4294967296", b"-9223372036854775809", b"0.1e1", b"-0.0",
)  # fmt: skip
_TOKENS = (
    b"null", b"true", b"false", b"{}", b"[]", b'""', b"[[]]", b'"x"', b"{", b"}", b"[", b"]", b",",
    b":", b'"', b'"inputs"', b'"instances"', b'"parameters"', b'"data"', b'"name"', b'"shape"',
    b'"datatype"', b'"FP64"', b'"BYTES"', b'"b64"', b"\\u0000", b"\\ud800", b"\xff", b"\xc0\x80",
    b"\xef\xbb\xbf", b" ", b"\n", b"\x00", b'{"b64": "eA=="}', b'{"b64": "?"}', b'"x": 1,',
)  # fmt: skip
_TYPES = (
    "", "application/json", "application/octet-stream", "application/msgpack", "text/plain",
    "image/png", "application/x-www-form-urlencoded", "text/html",
    "application/json; charset=utf-8",
    "APPLICATION/JSON", "application/x-msgpack",
)  # fmt: skip
_LENGTHS = ("", "0", "00", "1", "5", "-1", "x", "99999999999999999999999", "10 ", "+3")


def _flip(raw: bytes, dice: Random) -> bytes:
    at = dice.randrange(len(raw))
    return raw[:at] + bytes([raw[at] ^ (1 << dice.randrange(8))]) + raw[at + 1 :]


def _cut(raw: bytes, dice: Random) -> bytes:
    return raw[: dice.randrange(len(raw))]


def _drop(raw: bytes, dice: Random) -> bytes:
    at = dice.randrange(len(raw))
    return raw[:at] + raw[at + dice.choice([1, 1, 2, 8, 40]) :]


def _repeat(raw: bytes, dice: Random) -> bytes:
    at, size = dice.randrange(len(raw)), dice.choice([1, 4, 20, 60])
    return raw[: at + size] + raw[at:]


def _token(raw: bytes, dice: Random) -> bytes:
    at = dice.randrange(len(raw) + 1)
    return raw[:at] + dice.choice(_TOKENS) + raw[at + dice.choice([0, 1, 4]) :]


def _number(raw: bytes, dice: Random) -> bytes:
    found = list(_NUMBER.finditer(raw))
    if not found:
        return _flip(raw, dice)
    where = dice.choice(found)
    return raw[: where.start()] + dice.choice(_NUMBERS) + raw[where.end() :]


def _word(raw: bytes, dice: Random) -> bytes:
    """Put one quoted word in the place of another one."""
    found = list(_WORD.finditer(raw))
    if not found:
        return _flip(raw, dice)
    where = dice.choice(found)
    other = dice.choice([match[0] for match in found] + [b'"z"'])
    return raw[: where.start()] + other + raw[where.end() :]


def _bracket(raw: bytes, dice: Random) -> bytes:
    """Join two lists, or part one."""
    joined, parted = b", ", b"], ["
    old, new = (joined, parted) if dice.random() < 0.5 else (parted, joined)
    places = [match.start() for match in re.finditer(re.escape(old), raw)]
    if not places:
        return _cut(raw, dice)
    at = dice.choice(places)
    return raw[:at] + new + raw[at + len(old) :]


def _swap(raw: bytes, dice: Random) -> bytes:
    a, b = sorted(dice.randrange(len(raw)) for _ in range(2))
    return raw[b:] + raw[a:b] + raw[:a] if dice.random() < 0.3 else raw[:a] + raw[b:]


_BYTES = (_flip, _cut, _drop, _repeat, _token, _token, _number, _number, _number, _swap,
          _word, _word, _bracket, _bracket)  # fmt: skip


def mutated(body: Body, dice: Random) -> Body:
    """The request with up to three kinds of damage; one in four stays as it is."""
    headers, content = dict(body.headers), body.content
    if dice.random() < 0.25:
        return body
    for _ in range(dice.choice([1, 1, 1, 2, 3])):
        if dice.random() < 0.12:
            _damage_headers(headers, dice)
        elif content:
            content = dice.choice(_BYTES)(content, dice)
    return Body(body.model, content, headers)


def _damage_headers(headers: dict[str, str], dice: Random) -> None:
    match dice.randrange(5):
        case 0:
            headers["content-type"] = dice.choice(_TYPES)
        case 1:
            length = headers.get("inference-header-content-length")
            changed = dice.choice(_LENGTHS)
            if length is not None and length.isdigit() and dice.random() < 0.5:
                changed = str(max(0, int(length) + dice.choice([-1, 1, 7])))
            headers["inference-header-content-length"] = changed
        case 2:
            headers.pop("inference-header-content-length", None)
        case 3:
            headers["content-encoding"] = dice.choice(["gzip", "deflate", "br", "identity", ""])
        case _:
            headers["x-request-priority"] = dice.choice(["0", "1", "255", "256", "-1", "x", "1.0"])
    for name in [name for name, value in headers.items() if not value]:
        del headers[name]
