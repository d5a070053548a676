"""The stream of snapshots: shared by its viewers, free without them, and never in the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from batchpool.core.errors import Draining, NotReady, Overloaded
from batchpool.frontend.dashboard import broadcaster, sse
from batchpool.frontend.dashboard.broadcaster import MOST_VIEWERS, Broadcaster, event
from tests.unit.frontend.calls import affine
from tests.unit.frontend.frontend_double import Caller, Edge, Site, calling, edge, request, serving
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine

EVENTS = request("/events", method="GET")


class Numbers:
    """Snapshots {"n": 1}, {"n": 2}, ..., as fast as the broadcast wants them.

    held: while it is not set, a snapshot waits. refused: there is none.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self.n = 0
        self.refused = False
        self.held = asyncio.Event()
        self.held.set()

    def begin(self) -> None:
        self.log.append("begin")

    def rest(self) -> None:
        self.log.append("rest")

    async def take(self) -> dict[str, Any]:
        await self.held.wait()
        if self.refused:
            raise NotReady("none now")
        self.n += 1
        return {"n": self.n}


class Viewer(Caller):
    """A caller that reads a stream: chunks as uvicorn frames them."""

    async def open(self) -> dict[str, str]:
        """Ask for the stream; the headers of its answer."""
        await self.send(EVENTS)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        assert head[0] == "HTTP/1.1 200 OK"
        assert await self.next() == "retry: 1000"
        return dict(line.lower().split(": ", 1) for line in head[1:] if line)

    async def next(self) -> str:
        """The next event, comment or the like; "" at the end of the stream."""
        size = int(await self.reader.readline(), 16)
        piece = await self.reader.readexactly(size + 2)
        return piece.decode().strip()

    async def number(self) -> int:
        text = await self.next()
        assert text.startswith("data: ")
        found: int = json.loads(text.removeprefix("data: "))["n"]
        return found


@asynccontextmanager
async def watched(interval_s: float = 0.005) -> AsyncIterator[tuple[Edge, Site, Numbers]]:
    """A front end on a port whose snapshots are numbers."""
    async with edge(Affine) as it:
        numbers = Numbers()
        it.broadcaster._source = numbers
        it.broadcaster._interval_s = interval_s
        async with serving(it, drain_s=1000.0) as site:
            yield it, site, numbers
            it.view.stop()


@asynccontextmanager
async def viewing(site: Site) -> AsyncIterator[Viewer]:
    async with calling(site) as caller:
        yield Viewer(caller.reader, caller.writer)


@on_loop
async def test_snapshots_come_one_after_another() -> None:
    async with watched() as (it, site, numbers), viewing(site) as viewer:
        headers = await viewer.open()
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert [await viewer.number() for _ in range(5)] == [1, 2, 3, 4, 5]
        assert it.broadcaster.viewers == 1
        assert numbers.log == ["begin"]


@on_loop
async def test_viewers_share_a_snapshot_and_the_last_one_ends_the_work() -> None:
    async with watched(interval_s=1000.0) as (it, site, numbers):
        broadcast = it.broadcaster
        async with viewing(site) as first:
            await first.open()
            assert await first.number() == 1
            async with AsyncExitStack() as more:
                for _ in range(5):
                    viewer = await more.enter_async_context(viewing(site))
                    await viewer.open()
                    assert await viewer.number() == 1, "at once, not at the next second"
                assert broadcast.viewers == 6
                assert numbers.n == 1
            await until(lambda: broadcast.viewers == 1, "the others have gone")
            assert numbers.log == ["begin"]
        await until(lambda: broadcast.viewers == 0, "nobody looks")
        assert numbers.log == ["begin", "rest"]
        async with viewing(site) as again:
            await again.open()
            assert await again.number() == 2, "none of those from before"
            assert numbers.log == ["begin", "rest", "begin"]


@on_loop
async def test_nobody_looks_nothing_is_done() -> None:
    async with watched(interval_s=0.001) as (it, site, numbers):
        async with calling(site) as caller:
            for _ in range(3):
                await caller.send(
                    request("/v2/models/affine/infer", json.dumps(affine(1)).encode())
                )
                assert (await caller.answer()).status == 200
        assert (numbers.n, numbers.log) == (0, [])
        assert it.broadcaster._taking is None


@on_loop
async def test_too_many_viewers_are_refused_as_documented(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broadcaster, "MOST_VIEWERS", 2 * MOST_VIEWERS)  # half are one address's
    async with watched() as (it, site, _), AsyncExitStack() as all_:
        viewers = [await all_.enter_async_context(viewing(site)) for _ in range(MOST_VIEWERS)]
        for viewer in viewers:
            await viewer.open()
        async with calling(site) as caller:
            await caller.send(EVENTS)
            answer = await caller.answer()
            assert answer.refused == (503, "overloaded")
            assert int(answer.headers["retry-after"]) >= 1
            assert it.broadcaster.viewers == MOST_VIEWERS
            assert "its share" in answer.object["error"]
            viewers[0].writer.close()
            await until(lambda: it.broadcaster.viewers < MOST_VIEWERS, "one has gone")
            await caller.send(request("/v2/health/live", method="GET"))
            assert (await caller.answer()).status == 200
        async with viewing(site) as viewer:
            await viewer.open()
            assert await viewer.number() > 0


@on_loop
async def test_the_end_is_told_and_holds_nothing_up() -> None:
    async with watched() as (it, site, numbers), viewing(site) as viewer:
        await viewer.open()
        await viewer.number()
        it.view.stop()
        site.server.stop()
        while (piece := await viewer.next()).startswith("data"):
            pass
        assert piece == 'event: end\ndata: "the server is shutting down"'
        assert await viewer.next() == ""
        await site.ended  # drain_s is a quarter of an hour
        assert await viewer.ended() == b""
        assert site.server.cut == 0
        assert numbers.log == ["begin", "rest"]
        with pytest.raises(Draining):
            it.broadcaster.join("here")


@on_loop
async def test_a_viewer_without_news_hears_a_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "BEAT_S", 0.01)
    async with watched(interval_s=0.001) as (_, site, numbers), viewing(site) as viewer:
        numbers.refused = True
        await viewer.open()
        assert await viewer.next() == ": beat"
        assert await viewer.next() == ": beat"
        numbers.refused = False
        while (piece := await viewer.next()) == ": beat":
            pass
        assert piece.startswith('data: {"n":')  # those that it did not take in time are left out


@on_loop
async def test_a_fault_ends_no_stream(caplog: pytest.LogCaptureFixture) -> None:
    async with watched() as (_, site, numbers), viewing(site) as viewer:
        await viewer.open()
        await viewer.number()
        numbers.n = None  # type: ignore[assignment]
        await until(lambda: "no snapshot for the page" in caplog.text, "it is logged")
        numbers.n = 99
        while await viewer.number() < 100:
            pass


@on_loop
async def test_a_slow_viewer_gets_the_newest_and_keeps_nobody_waiting() -> None:
    numbers = Numbers()
    broadcast = Broadcaster(numbers, interval_s=0.001)
    reading = asyncio.Event()
    received: list[bytes] = []

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        received.append(message.get("body", b""))
        if message.get("body", b"").startswith(b"data"):
            await reading.wait()

    async def send_answer(*_: object) -> None:
        raise AssertionError

    scope = {"method": "GET", "headers": []}
    viewer = asyncio.create_task(sse.EventStream(broadcast, send_answer)(scope, receive, send))
    await until(lambda: numbers.n > 20, "snapshots go on")
    assert received == [b"", b"retry: 1000\n\n", event({"n": 1})]
    reading.set()
    await until(lambda: len(received) > 3, "it reads on")
    assert json.loads(received[3][6:])["n"] >= 20
    broadcast.end("over")
    await viewer
    assert received[-1] == b'event: end\ndata: "over"\n\n'
    assert broadcast.viewers == 0


@on_loop
async def test_head_gives_the_headers_and_takes_no_place() -> None:
    async with edge(Affine) as it:
        answer = await it.http.head("/events")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert it.broadcaster.viewers == 0


@on_loop
async def test_the_limit_and_the_end_are_told_to_who_joins() -> None:
    broadcast = Broadcaster(Numbers())
    for number in range(MOST_VIEWERS):
        broadcast.join(f"10.0.0.{number}")
    with pytest.raises(Overloaded, match="32 viewers watch this front end, the most it serves"):
        broadcast.join("here")
    for number in range(MOST_VIEWERS):
        broadcast.leave(f"10.0.0.{number}")
    broadcast.join("here")
    broadcast.end("over")
    with pytest.raises(Draining, match="over"):
        broadcast.join("here")


def test_an_event_is_one_line_whatever_the_text() -> None:
    raw = event({"text": "a\nb\r\nc\u2028d"})
    assert raw.count(b"\n") == 2
    assert raw.endswith(b"\n\n")
    assert json.loads(raw[6:])["text"] == "a\nb\r\nc\u2028d"


@on_loop
async def test_one_address_leaves_places_to_others() -> None:
    broadcast = Broadcaster(Numbers())
    for _ in range(MOST_VIEWERS // 2):
        broadcast.join("greedy")
    with pytest.raises(Overloaded, match="16 viewers of this address watch this front end"):
        broadcast.join("greedy")
    broadcast.join("another")
    broadcast.leave("greedy")
    broadcast.leave("greedy")
    broadcast.join("greedy")
    for address in ("another", *["greedy"] * (MOST_VIEWERS // 2 - 1)):
        broadcast.leave(address)
    assert broadcast.viewers == 0
