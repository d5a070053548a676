"""The memory that one connection makes the front end hold has a bound, and is counted."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from typing import Any

import pytest

from batchpool.frontend.http.connection import Connection, sweep_all
from tests.unit.frontend.calls import affine
from tests.unit.frontend.fast.test_protocol import INFER, ROW, raw
from tests.unit.frontend.frontend_double import (
    Edge,
    RawAnswer,
    Site,
    calling,
    edge,
    request,
    serving,
)
from tests.unit.frontend.http.test_waits import deaf_socket
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine, Wide
from tests.unit.garbage import left_garbage

MIB = 1 << 20
WAITING = 64 * 1024
ONE_READ = 256 * 1024  # of uvloop
GET = request("/v2", method="GET")
WIDE = "/v2/models/wide/infer"
RAW = {"Inference-Header-Content-Length": "0"}
both_roads = pytest.mark.parametrize("fast", [True, False], ids=["fast", "asgi"])


def numbered(i: int, path: str = INFER) -> bytes:
    return request(path, json.dumps(affine(1, id=f"{i}")).encode())


@both_roads
@on_loop
async def test_a_pipeliner_has_one_request_parsed_and_little_waiting(fast: bool) -> None:
    n = 4000
    sent = b"".join(numbered(i) for i in range(n))
    assert len(sent) > 2 * (WAITING + ONE_READ)
    async with edge(Affine) as it, serving(it, fast=fast) as site, calling(site) as caller:
        it.pool.hold = True
        sending = asyncio.create_task(caller.send(sent))
        (connection,) = await connections_of(site)
        await until(lambda: connection.flow.is_held, "no more is read")
        waiting = connection._unparsed
        assert site.under_way == 1
        assert len(site.server.server_state.tasks) <= 1
        assert not connection.pipeline
        assert WAITING < waiting.size <= WAITING + ONE_READ
        assert it.view.memory.held_bytes == waiting.held_bytes()
        it.pool.hold = False
        it.pool.release()
        for i in range(n):
            answer = await caller.answer()
            assert (answer.status, answer.object["id"]) == (200, f"{i}")
            assert waiting.size <= WAITING + ONE_READ
        await sending
        assert it.view.memory.held_bytes == 0
        assert not connection.flow.read_paused


@both_roads
@on_loop
async def test_nothing_resumes_reading_but_room(fast: bool) -> None:
    """An application that asks for its body, or a response that is complete, does not."""
    async with edge(Affine) as it, serving(it, fast=fast) as site, calling(site) as caller:
        it.pool.hold = True
        sending = asyncio.create_task(caller.send(numbered(0, INFER + "?slow") * 4000))
        (connection,) = await connections_of(site)
        await until(lambda: connection.flow.is_held, "no more is read")
        connection.flow.resume_reading()
        assert connection.flow.read_paused
        it.pool.hold = False
        it.pool.release()
        for _ in range(20):
            assert (await caller.answer()).status == 200
            assert connection._unparsed.size <= WAITING + ONE_READ
        sending.cancel()


@both_roads
@on_loop
async def test_others_have_their_turn_beside_a_pipeliner(fast: bool) -> None:
    """Requests that are answered at once do not keep the loop until all are."""
    async with edge(Affine) as it, serving(it, fast=fast) as site, calling(site) as caller:
        wrong = raw(ROW[:7]) if fast else GET
        (connection,) = await connections_of(site)
        connection.data_received(wrong * 1000)
        turns = 0
        while connection._unparsed.size:
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 1000 // 64
        for _ in range(1000):
            await caller.answer()


@both_roads
@on_loop
async def test_a_caller_that_does_not_read_holds_one_answer(fast: bool) -> None:
    async with edge(Wide, slots=9, server={"max_body_mib": 16}) as it:
        async with serving(it, fast=fast) as site:
            with deaf_socket(site) as deaf:
                deaf.setblocking(False)
                loop = asyncio.get_running_loop()
                wide = request(WIDE, bytes(MIB), headers=RAW)
                sending = asyncio.create_task(loop.sock_sendall(deaf, wide * 20))
                (connection,) = await connections_of(site)
                await until(lambda: connection.flow.write_paused, "it is behind")
                await until(lambda: connection.flow.is_held, "no more is read")
                completed = it.pool.batcher.models[0].metrics.completed
                buffered = connection.transport.get_write_buffer_size()
                assert buffered <= completed * (MIB + 1000)
                assert WAITING < connection._unparsed.size <= WAITING + ONE_READ
                held = it.view.memory.held_bytes
                assert held >= connection._unparsed.size + buffered
                sending.cancel()
            await until(lambda: site.connections == 0, "it is gone")
        assert it.view.memory.held_bytes == 0


@both_roads
@on_loop
async def test_while_memory_is_used_up_nothing_is_taken_and_who_is_behind_is_cut(
    fast: bool,
) -> None:
    server = {"max_body_mib": 8, "max_bodies_mib": 8}
    async with edge(Wide, slots=9, server=server) as it, serving(it, fast=fast) as site:
        with deaf_socket(site) as deaf:
            deaf.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(deaf, request(WIDE, bytes(7 * MIB), headers=RAW))
            (connection,) = await connections_of(site)
            await until(lambda: connection.flow.write_paused, "it is behind")
            it.pool.session.server["max_body_mib"] = 1
            it.pool.session.server["max_bodies_mib"] = 1
            it.view.learn()
            assert it.view.memory.is_full
            small = request(WIDE, bytes(MIB), headers=RAW)
            async with calling(site) as caller:
                await caller.send(small)
                assert (await caller.answer()).refused == (503, "overloaded")
                sweep_all(site.server.server_state.connections, loop.time())
                assert it.view.memory.is_full, "it is not behind for long"
                sweep_all(site.server.server_state.connections, loop.time() + 1.1)
                await until(lambda: site.connections == 1, "it is cut")
                assert it.view.memory.held_bytes == 0
                await caller.send(small)
                assert (await caller.answer()).status == 200


@both_roads
@on_loop
async def test_heads_that_do_not_end_are_counted(fast: bool) -> None:
    part = b"GET /v2 HTTP/1.1\r\nHost: pool\r\nX: " + b"a" * 40_000
    server = {"max_body_mib": 1, "max_bodies_mib": 1}
    async with (
        edge(Affine, server=server) as it,
        serving(it, fast=fast) as site,
        calling(site) as first,
        calling(site) as second,
    ):
        it.view.memory.max_bytes = it.view.memory.body_bytes = 50_000
        await first.send(part)
        await until(lambda: it.view.memory.held_bytes == len(part), "it is counted")
        await second.send(part)
        assert (await second.answer()).refused == (503, "overloaded")
        assert await second.ended() == b""
        await first.send(b"\r\n\r\n")
        assert (await first.answer()).status == 200
        assert it.view.memory.held_bytes == 0


# -- callers that go ---------------------------------------------------------------------------


@both_roads
@on_loop
async def test_a_pipeliner_that_leaves_is_no_error(
    fast: bool, caplog: pytest.LogCaptureFixture
) -> None:
    sent = b"".join(numbered(i, INFER if i % 2 else INFER + "?slow") for i in range(3000))
    with caplog.at_level(logging.WARNING):
        async with edge(Affine) as it, serving(it, fast=fast) as site:
            for reads in (0, 1, 5):
                async with calling(site) as caller:
                    sending = asyncio.create_task(caller.send(sent + GET))
                    for _ in range(reads):
                        await caller.answer()
                    caller.writer.transport.abort()
                    await asyncio.gather(sending, return_exceptions=True)
                await until(lambda: site.connections == 0, "it is gone")
                lane_client = it.pool.lane_client("affine")
                await until(lambda: lane_client.allocator.claimed == 0, "all slots are free")  # noqa: B023
                assert it.view.memory.held_bytes == 0
    assert [found.getMessage() for found in caplog.records] == []


LEAVES_NOTHING = {
    "fast": raw(ROW),
    "json": numbered(1),
    "asgi": numbered(1, INFER + "?slow"),
    "wrong": request(INFER, b"[" + b" " * 100_000),
    "wrong, asgi": request(INFER + "?slow", b"[" + b" " * 100_000),
    "wrong, long": request(INFER, b"[" + b" " * 400_000),
    "gzip": request(
        INFER, gzip.compress(json.dumps(affine(1)).encode()), headers={"Content-Encoding": "gzip"}
    ),
    "gzip, wrong": request(
        INFER, gzip.compress(b"[" * 300_000), headers={"Content-Encoding": "gzip"}
    ),
    "metadata": GET,
    "nowhere": request("/nowhere"),
    "too large": request(INFER, headers={"Content-Length": f"{1 << 40}"}),
    "no request": b"nonsense\r\n\r\n",
}


@both_roads
@pytest.mark.parametrize("name", LEAVES_NOTHING)
@on_loop
async def test_requests_and_connections_are_freed_without_the_garbage_collector(
    name: str, fast: bool
) -> None:
    async with edge(Affine) as it, serving(it, fast=fast) as site:
        await visit(it, site, LEAVES_NOTHING[name])
        with left_garbage() as left:
            await visit(it, site, LEAVES_NOTHING[name])
        assert left == []


@both_roads
@on_loop
async def test_a_caller_that_leaves_while_its_rows_run_leaves_nothing_to_the_garbage_collector(
    fast: bool,
) -> None:
    async with edge(Affine) as it, serving(it, fast=fast) as site:
        await leave_early(it, site)
        with left_garbage() as left:
            await leave_early(it, site)
        assert left == []


async def leave_early(it: Edge, site: Site) -> None:
    """Send a request, and leave before its rows are done."""
    it.pool.hold = True
    async with calling(site) as caller:
        await caller.send(numbered(1))
        await until(lambda: site.under_way == 1, "its rows are under way")
    await until(lambda: site.connections == 0, "the connection has ended")
    it.pool.hold = False
    it.pool.release()
    allocator = it.view.endpoints.find("affine", "1").lane_client.allocator
    await until(lambda: allocator.claimed == 0, "its slot is free")
    await until(lambda: not site.server.server_state.tasks, "its task has ended")
    await asyncio.sleep(0)


async def visit(it: Edge, site: Site, sent: bytes) -> None:
    """Send some requests over one connection, and leave."""
    answer: RawAnswer | None = None
    async with calling(site) as caller:
        for _ in range(3):
            await caller.send(sent)
            answer = await caller.answer()
            if answer.headers.get("connection") == "close" or answer.status == 413:
                break
    await until(lambda: site.connections == 0, "the connection has ended")
    await until(lambda: not site.server.server_state.tasks, "its tasks too")
    await asyncio.sleep(0)


async def connections_of(site: Site) -> tuple[Any, ...]:
    found: set[Any] = site.server.server_state.connections
    await until(lambda: len(found) > 0, "a connection is accepted")
    assert all(isinstance(connection, Connection) for connection in found)
    return tuple(found)
