"""Content-Encoding of requests and Accept-Encoding of answers."""

from __future__ import annotations

import gzip
import random
import tracemalloc
import zlib

import pytest

from batchpool.core.errors import InvalidRequest, TooLarge, UnsupportedMediaType
from batchpool.wire.encoding import decode_body, encode_answer, encode_body

BODY = bytes(range(256)) * 8
LIMIT = 1 << 20


def decode(coding: bytes, body: bytes, limit: int = LIMIT) -> bytes:
    return bytes(decode_body({b"content-encoding": coding}, body, limit))


def test_plain_bodies_are_passed_on_as_they_are() -> None:
    assert decode_body({}, BODY, LIMIT) is BODY
    for coding in (b"identity", b"", b" Identity "):
        assert decode_body({b"content-encoding": coding}, BODY, LIMIT) is BODY
    assert decode_body({}, BODY, len(BODY)) is BODY
    with pytest.raises(TooLarge):
        decode_body({}, BODY, len(BODY) - 1)


@pytest.mark.parametrize("level", [0, 1, 9])
def test_gzip_and_deflate(level: int) -> None:
    assert decode(b"gzip", gzip.compress(BODY, level)) == BODY
    assert decode(b"X-GZIP", gzip.compress(BODY, level)) == BODY
    assert decode(b"deflate", zlib.compress(BODY, level)) == BODY
    assert decode(b"gzip", gzip.compress(b"")) == b""
    for kind in (bytearray, memoryview):
        body = kind(gzip.compress(BODY))
        assert decode_body({b"content-encoding": b"gzip"}, body, LIMIT) == BODY


PIECE = 1 << 18


@pytest.mark.parametrize("size", [1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, LIMIT])
def test_bodies_of_many_pieces_and_of_any_expansion(size: int) -> None:
    """The last bytes may be within zlib when all of its input is used up."""
    for body in (bytes(size), bytes(range(256)) * (size // 256) + b"x" * (size % 256)):
        assert decode(b"gzip", gzip.compress(body)) == body
        assert decode(b"deflate", zlib.compress(body, 9)) == body


def test_bodies_that_hardly_shrink_are_read_in_pieces() -> None:
    body = random.Random(1).randbytes(LIMIT)
    packed = gzip.compress(body)
    assert decode(b"gzip", packed) == body
    with pytest.raises(InvalidRequest, match="200000 bytes are left over"):
        decode(b"gzip", packed + bytes(200_000))
    with pytest.raises(InvalidRequest, match="is cut off"):
        decode(b"gzip", packed[:-1])
    with pytest.raises(TooLarge):
        decode(b"gzip", packed, LIMIT - 1)


@pytest.mark.parametrize("coding", [b"br", b"zstd", b"gzip, deflate", b"gzip,gzip", b"\xff"])
def test_other_codings_are_not_known(coding: bytes) -> None:
    with pytest.raises(UnsupportedMediaType):
        decode(coding, BODY)


def test_the_limit_is_on_the_decoded_bytes_and_exact() -> None:
    for coding, packed in ((b"gzip", gzip.compress(BODY)), (b"deflate", zlib.compress(BODY))):
        assert decode(coding, packed, len(BODY)) == BODY
        with pytest.raises(TooLarge, match=str(len(BODY) - 1)):
            decode(coding, packed, len(BODY) - 1)
        with pytest.raises(TooLarge, match="the most that is taken: do this"):
            decode_body({b"content-encoding": coding}, packed, 0, "do this")


def test_a_bomb_costs_no_more_than_the_limit() -> None:
    """C06: 64 MiB from less than 100 kB: the peak is a few times the limit."""
    stream = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(stream.compress(bytes(1 << 20)) for _ in range(64)) + stream.flush()
    assert len(bomb) < 100_000
    tracemalloc.start()
    with pytest.raises(TooLarge):
        decode(b"gzip", bomb)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * LIMIT


def test_corrupt_cut_and_trailing_bytes() -> None:
    for coding, packed in ((b"gzip", gzip.compress(BODY)), (b"deflate", zlib.compress(BODY))):
        for at in (1, 10, len(packed) - 9, len(packed) - 1):
            with pytest.raises(InvalidRequest, match="cut off"):
                decode(coding, packed[:at])
        with pytest.raises(InvalidRequest, match="left over"):
            decode(coding, packed + b"x")
        with pytest.raises(InvalidRequest, match="left over"):
            decode(coding, packed + packed)
        wrong = bytearray(packed)
        wrong[-5] ^= 0xFF  # the checksum
        with pytest.raises(InvalidRequest, match=coding.decode()):
            decode(coding, bytes(wrong))
        for body in (b"plain text", b'{"inputs":[]}'):
            with pytest.raises(InvalidRequest):
                decode(coding, body)
        with pytest.raises(InvalidRequest, match="cut off"):
            decode(coding, b"")


@pytest.mark.parametrize(
    ("accept", "coding"),
    [
        (None, b""),
        (b"", b""),
        (b"gzip", b"gzip"),
        (b"deflate", b"deflate"),
        (b"gzip, deflate", b"gzip"),
        (b"deflate, gzip", b"gzip"),
        (b"gzip;q=0.5, deflate;q=0.8", b"deflate"),
        (b"GZIP ; q=0.5", b"gzip"),
        (b"gzip;q=0", b""),
        (b"gzip;q=0, deflate", b"deflate"),
        (b"*", b"gzip"),
        (b"*;q=0", b""),
        (b"gzip;q=0, *", b"deflate"),
        (b"identity", b""),
        (b"identity, gzip;q=0.5", b""),
        (b"identity;q=0.5, gzip", b"gzip"),
        (b"br, zstd", b""),
        (b"br;q=1.0, gzip;q=0.1", b"gzip"),
        (b"gzip;q=x", b""),
        (b"gzip;q=7", b""),
        (b"gzip;q=nan", b""),
        (b",,;;=,\xff", b""),
    ],
)
def test_answers_are_compressed_as_asked(accept: bytes | None, coding: bytes) -> None:
    chosen, body = encode_body(accept, BODY)
    assert chosen == coding
    if not coding:
        assert body is BODY
    else:
        unpack = gzip.decompress if coding == b"gzip" else zlib.decompress
        assert unpack(body) == BODY


def test_an_answer_keeps_its_inner_length_and_gets_a_new_outer_one() -> None:
    headers = [
        (b"content-type", b"application/octet-stream"),
        (b"inference-header-content-length", b"100"),
        (b"content-length", b"%d" % len(BODY)),
    ]
    assert encode_answer(None, headers, BODY) == (headers, BODY)
    changed, body = encode_answer(b"gzip", headers, BODY)
    assert gzip.decompress(body) == BODY
    assert changed == [
        *headers[:2],
        (b"content-encoding", b"gzip"),
        (b"vary", b"accept-encoding"),
        (b"content-length", b"%d" % len(body)),
    ]
    assert len(headers) == 3
