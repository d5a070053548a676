"""Upload: one body piece by piece, without a server."""

from __future__ import annotations

from typing import Any

import pytest

from batchpool.core.errors import Overloaded, TooLarge
from batchpool.frontend.http.memory_budget import MemoryBudget, MemoryReservation
from batchpool.frontend.http.request_body import RequestBody
from tests.unit.frontend.loops import on_loop

CHUNKED = {b"transfer-encoding": b"chunked"}


def held(most_bytes: int = 1000) -> MemoryReservation:
    return MemoryReservation(MemoryBudget(most_bytes))


class Pieces:
    """An ASGI receive that gives pieces; a missing end is a caller who goes."""

    def __init__(self, *pieces: bytes, end: bool = True) -> None:
        self.left = list(pieces)
        self.end = end

    async def __call__(self) -> dict[str, Any]:
        if not self.left:
            return {"type": "http.disconnect"}
        piece = self.left.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(self.left) or not self.end}


@pytest.mark.parametrize(
    ("headers", "ended", "expects_continue"),
    [
        ({}, True, False),
        ({b"content-length": b"0"}, True, False),
        ({b"content-length": b"10"}, False, False),
        (CHUNKED, False, False),
        ({b"content-length": b"10", b"expect": b"100-Continue"}, False, True),
    ],
)
def test_what_the_headers_say(
    headers: dict[bytes, bytes], ended: bool, expects_continue: bool
) -> None:
    upload = RequestBody(Pieces(), headers)
    assert (upload.ended, upload.expects_continue) == (ended, expects_continue)


@on_loop
async def test_a_body_in_one_piece_is_not_copied() -> None:
    piece = b"whole body"
    upload = RequestBody(Pieces(piece), CHUNKED)
    assert await upload.read(100, held()) is piece
    assert upload.ended


@on_loop
async def test_pieces_are_joined() -> None:
    upload = RequestBody(Pieces(b"a", b"", b"bc", b""), CHUNKED)
    assert await upload.read(3, held()) == b"abc"
    assert upload.ended


@on_loop
async def test_no_body_is_empty_without_asking() -> None:
    receive = Pieces()
    assert await RequestBody(receive, {}).read(100, held()) == b""


@pytest.mark.parametrize("pieces", [(b"abcd",), (b"ab", b"cd"), (b"a", b"b", b"c", b"d", b"e")])
@on_loop
async def test_too_large_as_soon_as_the_limit_is_passed(pieces: tuple[bytes, ...]) -> None:
    receive = Pieces(*pieces)
    upload = RequestBody(receive, CHUNKED)
    with pytest.raises(TooLarge, match="larger than 3 bytes, the most that is taken: send less"):
        await upload.read(3, held())
    assert len(receive.left) == (1 if len(pieces) == 5 else 0)


@on_loop
async def test_a_body_is_held_until_its_last_piece() -> None:
    receive, of_body = Pieces(b"abc", b"def", b"ghi"), held(6)
    assert await RequestBody(receive, CHUNKED).read(9, of_body) == b"abcdefghi"
    assert of_body.size == 6
    receive = Pieces(b"abc", b"def", b"ghi", b"j")
    with pytest.raises(Overloaded):
        await RequestBody(receive, CHUNKED).read(99, held(8))
    assert receive.left == [b"j"]


@on_loop
async def test_a_caller_who_goes() -> None:
    upload = RequestBody(Pieces(b"a", b"b", end=False), CHUNKED)
    assert await upload.read(100, held()) is None
    assert upload.lost


@on_loop
async def test_discard_ends_with_the_body_with_the_caller_and_at_its_bound() -> None:
    upload = RequestBody(Pieces(b"a" * 5, b"b" * 5), CHUNKED)
    await upload.discard(100)
    assert upload.ended
    upload = RequestBody(Pieces(b"a" * 5, end=False), CHUNKED)
    await upload.discard(100)
    assert upload.lost
    upload = RequestBody(Pieces(b"a" * 5, b"b" * 5, b"c" * 5), CHUNKED)
    await upload.discard(7)
    assert not upload.is_over()


@on_loop
async def test_until_lost() -> None:
    upload = RequestBody(Pieces(b""), CHUNKED)
    assert await upload.read(1, held()) == b""
    await upload.until_lost()
    assert upload.lost
