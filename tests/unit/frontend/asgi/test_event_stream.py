"""Server-sent events: head with the first piece, comments in silence, errors, callers that go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from batchpool.core.errors import WorkerLost
from batchpool.frontend.asgi.event_stream import EventStream, Pieces, event
from batchpool.frontend.http.request_body import RequestBody
from batchpool.frontend.http.response import HttpResponse
from tests.unit.frontend.loops import on_loop, until


class _Exchange:
    """One request whose body has come. sent: ASGI messages. taking: cleared, `send` waits."""

    def __init__(self, beat_s: float = 60.0) -> None:
        self.sent: list[Any] = []
        self.taking = asyncio.Event()
        self.taking.set()
        self._gone = asyncio.Event()
        self.pieces: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue()
        self.closed = False
        self.ends: list[tuple[str | None, int]] = []  # code, and the messages sent before
        self.stream = EventStream(
            RequestBody(self._receive, {}), self._send,
            lost=self._lost, ended=self._end, beat_s=beat_s,
        )  # fmt: skip

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.sent if "body" in message]

    def leave(self) -> None:
        self._gone.set()

    def _end(self, end: HttpResponse | None) -> None:
        self.ends.append((end and end.code, len(self.sent)))

    def _lost(self) -> None:
        self.pieces.put_nowait(None)

    async def _receive(self) -> Any:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.taking.wait()
        self.sent.append(message)

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        try:
            while (piece := await self.pieces.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            self.closed = True

    def run(self) -> asyncio.Task[HttpResponse | None]:
        pieces: Pieces = self._pieces()
        return asyncio.create_task(self.stream.run(pieces))


@on_loop
async def test_head_goes_out_with_the_first_piece() -> None:
    it = _Exchange()
    running = it.run()
    await asyncio.sleep(0)
    assert it.sent == []
    it.pieces.put_nowait(event(b"1") + event(b"2"))
    await until(lambda: len(it.sent) == 2, "the first piece is sent")
    head, body = it.sent
    assert head["status"] == 200
    fields = dict(head["headers"])
    assert fields[b"content-type"].startswith(b"text/event-stream")
    assert fields[b"cache-control"] == b"no-cache"
    assert fields[b"x-accel-buffering"] == b"no"
    assert body == {"type": "http.response.body", "body": b"data: 1\n\ndata: 2\n\n",
                    "more_body": True}  # fmt: skip
    it.pieces.put_nowait(None)
    end = await running
    assert end is not None
    assert end.code == "ok"
    assert it.ends == [("ok", 2)], "before the last bytes"
    assert it.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


@on_loop
async def test_error_before_the_first_piece_is_raised() -> None:
    it = _Exchange()
    it.pieces.put_nowait(WorkerLost("it died"))
    with pytest.raises(WorkerLost, match="it died"):
        await it.run()
    assert (it.sent, it.ends) == ([], [])


@on_loop
async def test_error_within_the_stream_is_its_last_event() -> None:
    it = _Exchange()
    it.pieces.put_nowait(event(b"1"))
    it.pieces.put_nowait(WorkerLost("it died"))
    end = await it.run()
    assert end is not None
    assert (end.status, end.code) == (500, "worker_lost")
    assert it.ends == [("worker_lost", 2)]
    assert it.bodies == [b"data: 1\n\n", b'data: {"error":"it died","code":"worker_lost"}\n\n']
    assert not it.sent[-1]["more_body"]


@on_loop
async def test_caller_that_goes_ends_the_pieces() -> None:
    it = _Exchange()
    it.pieces.put_nowait(event(b"1"))
    running = it.run()
    await until(lambda: bool(it.bodies), "the first piece is sent")
    it.leave()
    assert await running is None
    assert it.closed
    assert it.ends == [(None, 2)]
    assert it.bodies == [b"data: 1\n\n"]


@on_loop
async def test_caller_that_goes_before_the_first_piece_gets_nothing() -> None:
    it = _Exchange()
    running = it.run()
    await asyncio.sleep(0)
    it.leave()
    assert await running is None
    assert it.sent == []


@on_loop
async def test_silence_is_broken_by_comments_once_the_head_is_out() -> None:
    it = _Exchange(beat_s=0.005)
    running = it.run()
    await asyncio.sleep(0.02)
    assert it.sent == []
    it.pieces.put_nowait(event(b"1"))
    await until(lambda: len(it.bodies) >= 3, "comments come")
    assert set(it.bodies[1:]) == {b": \n\n"}
    it.pieces.put_nowait(None)
    assert await running is not None


@on_loop
async def test_slow_reader_gets_no_comments_and_holds_the_pieces_up() -> None:
    it = _Exchange(beat_s=0.001)
    it.pieces.put_nowait(event(b"1"))
    running = it.run()
    await until(lambda: bool(it.bodies), "the first piece is sent")
    it.taking.clear()
    for number in b"23456":
        it.pieces.put_nowait(event(b"%c" % number))
    await until(lambda: it.pieces.qsize() == 4, "one more piece waits to be sent")
    await asyncio.sleep(0.01)
    assert it.pieces.qsize() == 4
    it.taking.set()
    it.pieces.put_nowait(None)
    assert await running is not None
    assert [body for body in it.bodies if body.startswith(b"data")] == [
        b"data: %c\n\n" % number for number in b"123456"
    ]
