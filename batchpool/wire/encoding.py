"""Content codings of request and response bodies: gzip and deflate (zlib format, RFC 9110).

A body has one coding, and a gzip body one member: a chain of millions of tiny members would take
far more time than its bytes suggest.
"""

from __future__ import annotations

import zlib

import numpy as np

from batchpool.core.errors import InvalidRequest, TooLarge, UnsupportedMediaType
from batchpool.wire.request import Body, HeaderList, Headers, brief

_GZIP, _ZLIB = 31, 15
_CODINGS = {b"gzip": _GZIP, b"x-gzip": _GZIP, b"deflate": _ZLIB}
# Tensors hardly shrink further at higher levels, and compression occupies the event loop.
_LEVEL = 1
MOST_EXPANSION = 1032  # of deflate, as zlib's documentation has it
_PIECE_BYTES = 1 << 18  # of what is decompressed at once
_READ_BYTES = 1 << 16  # of what is handed to zlib at once, which copies what it leaves over


def decode_body(
    headers: Headers, body: Body, limit_bytes: int, advice: str = "send less at a time"
) -> Body:
    """The decoded body; the same object where it has no Content-Encoding.

    Holds at most limit_bytes + 1 decoded bytes. Raises TooLarge beyond the limit,
    UnsupportedMediaType for another coding, InvalidRequest for corrupt or truncated bytes. advice:
    what helps whose body is too large.
    """
    coding = headers.get(b"content-encoding")
    if coding:
        coding = coding.strip().lower()
    if not coding or coding == b"identity":
        if len(body) > limit_bytes:
            raise _too_large(limit_bytes, advice)
        return body
    window = _CODINGS.get(coding)
    if window is None:
        raise UnsupportedMediaType(
            f"content encoding {brief(coding.decode('latin-1'))} is not known here;"
            " gzip, deflate or none was expected"
        )
    stream = zlib.decompressobj(window)
    try:
        decoded, left_bytes = _decompressed(stream, body, limit_bytes + 1)
    except zlib.error as exc:
        raise InvalidRequest(f"the body is not {coding.decode()}: {exc}") from None
    if len(decoded) > limit_bytes:
        raise _too_large(limit_bytes, advice)
    if not stream.eof:
        raise InvalidRequest(f"the body's {coding.decode()} stream is cut off")
    if left_bytes:
        raise InvalidRequest(
            f"{left_bytes} bytes are left over after the body's {coding.decode()} stream"
        )
    return decoded


def _decompressed(stream: zlib._Decompress, body: Body, most_bytes: int) -> tuple[memoryview, int]:
    """Up to `most_bytes` decompressed bytes, and how many bytes stand behind the stream.

    zlib lets other threads run while it works, but nothing lets them run while large blocks are
    copied: it works in pieces, which are written to their place. What is not written of that place
    takes no memory.
    """
    room_bytes = min(most_bytes, MOST_EXPANSION * len(body) + 1)
    decoded = np.empty(room_bytes, np.uint8).data
    view, at, size = memoryview(body), 0, 0
    left: Body = b""
    while size < room_bytes and not stream.eof:
        if not left:
            left = view[at : at + _READ_BYTES]
            at += len(left)
        wanted = min(_PIECE_BYTES, room_bytes - size)
        piece = stream.decompress(left, wanted)
        decoded[size : size + len(piece)] = piece
        size += len(piece)
        left = stream.unconsumed_tail
        if not left and len(piece) < wanted and at == len(view):
            break
    return decoded[:size], len(stream.unused_data) + len(view) - at


def _too_large(limit_bytes: int, advice: str) -> TooLarge:
    text = f"the body is larger than {limit_bytes} bytes, the most that is taken: {advice}"
    return TooLarge(text)


def encode_body(accept_encoding: bytes | None, body: bytes) -> tuple[bytes, bytes]:
    """(coding, body): compressed where Accept-Encoding asks for it, else (b"", the same body)."""
    coding = _wanted(accept_encoding) if accept_encoding else b""
    if not coding:
        return b"", body
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, _CODINGS[coding])
    return coding, stream.compress(body) + stream.flush()


def encode_answer(
    accept_encoding: bytes | None, headers: HeaderList, body: bytes
) -> tuple[HeaderList, bytes]:
    """A response with its body compressed where Accept-Encoding asks for it.

    Content-Length is changed and Content-Encoding added; Inference-Header-Content-Length stays,
    since it counts bytes before compression.
    """
    coding, encoded = encode_body(accept_encoding, body)
    if not coding:
        return headers, body
    changed = [pair for pair in headers if pair[0] != b"content-length"]
    changed += [
        (b"content-encoding", coding),
        (b"vary", b"accept-encoding"),
        (b"content-length", b"%d" % len(encoded)),
    ]
    return changed, encoded


def _wanted(accept_encoding: bytes) -> bytes:
    """The coding with the highest quality, gzip before deflate; b"" where none is preferred."""
    qualities: dict[bytes, float] = {}
    for item in accept_encoding.lower().split(b","):
        name, _, rest = item.partition(b";")
        qualities[name.strip()] = _quality(rest)
    others = qualities.get(b"*", 0.0)
    plain = qualities.get(b"identity", 0.0)
    best, coding = max(
        (qualities.get(b"gzip", others), b"gzip"),
        (qualities.get(b"deflate", others), b"deflate"),
        key=lambda pair: pair[0],
    )
    return coding if best > 0 and best >= plain else b""


def _quality(text: bytes) -> float:
    name, _, value = text.strip().partition(b"=")
    if name.strip() != b"q":
        return 1.0
    try:
        quality = float(value)
    except ValueError:
        return 0.0
    return quality if 0.0 <= quality <= 1.0 else 0.0
