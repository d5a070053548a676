"""Requests whose turn comes later are answered as all others, over both paths."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from batchpool.frontend.http.connection import Connection
from tests.unit.frontend.calls import affine
from tests.unit.frontend.fast.test_protocol import INFER
from tests.unit.frontend.frontend_double import Site, calling, edge, request, serving
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine
from tests.unit.garbage import left_garbage

both_roads = pytest.mark.parametrize("fast", [True, False], ids=["fast", "asgi"])
GET = request("/v2", method="GET")


def numbered(i: int) -> bytes:
    return request(INFER, json.dumps(affine(1, id=f"{i}")).encode())


def fill_turn(site: Site) -> None:
    """Two strangers' work, with which this turn of the loop is full."""
    scheduler: Any = site.server._protocol.scheduler
    loop = asyncio.get_running_loop()
    for name in ("stranger", "another one", "stranger"):
        begun_s = scheduler.begin(loop)
        scheduler.charge(scheduler.share_of(name), begun_s, -0.001)
    assert scheduler.is_full


async def connection_of(site: Site) -> Connection:
    connections: Any = site.server.server_state.connections
    await until(lambda: len(connections) == 1, "it has connected")
    (connection,) = connections
    assert isinstance(connection, Connection)
    return connection


def receive_late(site: Site, connection: Connection, data: bytes) -> None:
    """Let bytes come when the turn is full."""
    fill_turn(site)
    connection.data_received(data)
    assert connection.awaits_turn
    assert not connection.is_idle()


@both_roads
@on_loop
async def test_requests_that_wait_for_their_turn_are_answered_in_their_order(fast: bool) -> None:
    async with edge(Affine) as it, serving(it, fast=fast) as site, calling(site) as caller:
        connection = await connection_of(site)
        sent = b"".join(numbered(i) for i in range(10))
        for at in range(0, len(sent), 100):  # in pieces: what waits is followed by more
            receive_late(site, connection, sent[at : at + 100])
            if at % 300 == 0:
                await asyncio.sleep(0)
        for i in range(10):
            answer = await caller.answer()
            assert (answer.status, answer.object["id"]) == (200, f"{i}")
        await until(lambda: it.view.memory.held_bytes == 0, "nothing is held")
        assert connection.is_idle()
        assert not connection.flow.read_paused


@both_roads
@on_loop
async def test_bytes_that_wait_are_counted_and_have_a_bound(fast: bool) -> None:
    async with edge(Affine) as it, serving(it, fast=fast) as site, calling(site) as caller:
        connection = await connection_of(site)
        sent = numbered(0) * 2000
        receive_late(site, connection, sent)
        assert it.view.memory.held_bytes == len(sent)
        assert connection.flow.is_held
        for _ in range(2000):
            assert (await caller.answer()).status == 200
        assert it.view.memory.held_bytes == 0
        assert not connection.flow.read_paused


@both_roads
@on_loop
async def test_a_request_behind_which_its_caller_sends_no_more_is_answered(fast: bool) -> None:
    async with edge(Affine) as it, serving(it, fast=fast) as site, calling(site) as caller:
        connection = await connection_of(site)
        receive_late(site, connection, request(INFER, b"{") if fast else b"no HTTP\r\n\r\n")
        assert connection.eof_received()
        assert (await caller.ended()).startswith(b"HTTP/1.1 400")
        await until(lambda: site.connections == 0, "it is gone")


@both_roads
@on_loop
async def test_a_caller_that_leaves_before_its_turn_leaves_nothing(fast: bool) -> None:
    async with edge(Affine) as it, serving(it, fast=fast) as site:

        async def leave() -> None:
            async with calling(site):
                connection = await connection_of(site)
                receive_late(site, connection, numbered(0))
                connection.transport.abort()
                del connection
            await until(lambda: site.connections == 0, "it is gone")

        await leave()
        with left_garbage() as left:
            await leave()
        assert left == []
        assert it.view.memory.held_bytes == 0


@on_loop
async def test_a_connection_that_waits_for_its_turn_is_not_late() -> None:
    async with edge(Affine) as it, serving(it) as site, calling(site) as caller:
        connection = await connection_of(site)
        receive_late(site, connection, numbered(0))
        limits, now_s = connection.limits, asyncio.get_running_loop().time()
        for _ in range(3):
            now_s += limits.keep_alive_s + limits.stall_s
            connection.sweep(now_s)
        assert (await caller.answer()).status == 200


@on_loop
async def test_steps_of_an_application_wait_for_their_turn_and_go_on() -> None:
    async with edge(Affine) as it, serving(it) as site, calling(site) as caller:
        connection = await connection_of(site)
        scheduler: Any = site.server._protocol.scheduler
        loop, waited = asyncio.get_running_loop(), []
        defer, share = scheduler.defer, scheduler.share_of("127.0.0.1")

        def watched(*arguments: Any) -> None:
            waited.append(arguments[1])
            defer(*arguments)

        scheduler.defer = watched
        fill_turn(site)
        scheduler.charge(share, scheduler.begin(loop), -0.02)  # it has had much
        for _ in range(60):
            defer(loop, scheduler.share_of("stranger"), lambda: None, 0.001)
        connection.data_received(GET)
        assert waited == [share]
        assert (await caller.answer()).status == 200
        assert len(waited) > 1  # its task has waited, too
