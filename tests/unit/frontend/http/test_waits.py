"""Every wait has an end: callers that stall, trickle, idle, do not read, or go."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import time
from contextlib import AsyncExitStack

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.frontend.fast.protocol import fast_protocol
from batchpool.frontend.http.connection import Connection
from batchpool.frontend.http.connection_limits import ConnectionLimits
from batchpool.shm.resource_errors import open_descriptors
from tests.unit.frontend.calls import affine, affine_answer, binary, numbers
from tests.unit.frontend.frontend_double import Site, calling, edge, request, serving
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine, Two, Wide

INFER = "/v2/models/affine/infer"
GOOD = json.dumps(affine(3)).encode()
QUICK = ConnectionLimits(stall_s=0.1)


async def no_connections(site: Site) -> None:
    await until(lambda: site.connections == 0, "the connection is ended")


POST = b"POST /v2/models/affine/infer HTTP/1.1\r\nHost: pool\r\n"


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (b"P", [408]),
        (POST + b"Host: po", [408]),
        (POST + b"Content-Length: 64000000\r\n\r\n0123456789", [413]),
        (POST + b"Content-Length: 640\r\n\r\n0123456789", [408]),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\n01", [408]),
        (b"POST /nowhere HTTP/1.1\r\nHost: pool\r\nContent-Length: 640\r\n\r\n0123456789", [404]),
        (request(INFER, GOOD) + b"GET /v2 HT", [200, 408]),
    ],
)
@on_loop
async def test_a_stalled_sender_is_told_and_holds_no_slot(sent: bytes, statuses: list[int]) -> None:
    """C06: dropped after a bounded time, with neighbours served meanwhile."""
    async with edge(Affine) as it, serving(it, QUICK) as site:
        async with calling(site) as stalled, calling(site) as other:
            await stalled.send(sent)
            ended = asyncio.create_task(stalled.ended())
            while not ended.done():
                await until(
                    lambda: it.pool.lane_client("affine").allocator.claimed == 0, "no slot is held"
                )
                await other.send(request(INFER, GOOD))
                assert (await other.answer()).object["outputs"][0]["data"] == affine_answer(3)
            answers = ended.result()
            found = re.findall(rb"HTTP/1.1 (\d+) ", answers)
            assert [int(status) for status in found] == statuses
            if statuses[-1] == 408:
                assert b"connection: close\r\n" in answers
                assert answers.endswith(b'for 0.1 s","code":"request_timeout"}')
        await no_connections(site)
        await until(lambda: not site.server.server_state.tasks, "its task has ended")


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "asgi"])
@on_loop
async def test_a_trickle_is_not_a_stall_but_has_an_end_too(
    fast: bool, caplog: pytest.LogCaptureFixture
) -> None:
    limits = ConnectionLimits(stall_s=2, arrival_s=0.6)
    caplog.set_level(logging.INFO, logger="batchpool.access")
    async with (
        edge(Affine, server={"access_log": "errors"}) as it,
        serving(it, limits, fast=fast) as site,
        calling(site) as caller,
    ):
        await caller.send(POST + b"X-Request-Id: slow\r\nContent-Length: 9000\r\n\r\n")
        begun_s = asyncio.get_running_loop().time()
        answered = asyncio.create_task(caller.answer())
        sent = 0
        while not answered.done():
            await caller.send(b" ")
            sent += 1
            await asyncio.sleep(0.01)  # the trickle itself
        assert asyncio.get_running_loop().time() - begun_s >= limits.arrival_s
        answer = answered.result()
        assert answer.refused == (408, "request_timeout")
        assert answer.object["error"] == "the request was not complete within 0.6 s"
        assert answer.headers["connection"] == "close"
        assert answer.headers["x-request-id"] == "slow"
        await no_connections(site)
        await until(lambda: not site.server.server_state.tasks, "its task has ended")
        assert it.view.memory.held_bytes == 0
        counts = it.counters.totals().values("http_requests_total", "code", model="affine")
        assert counts == {"408": 1}, "once, on either road"
        (line,) = [found.args for found in caplog.records if found.name == "batchpool.access"]
        assert isinstance(line, dict)
        assert (line["status"], line["request_id"], line["model"]) == (408, "slow", "affine")
        assert 0 < line["bytes_in"] <= sent


@on_loop
async def test_how_long_a_request_may_take_to_arrive_is_configured() -> None:
    async with edge(Affine, server={"receive_timeout_s": 7.5}) as it:
        assert fast_protocol(it.view).limits == ConnectionLimits(arrival_s=7.5)


@given(arrival_s=st.floats(0.1, 86400), stall_s=st.floats(0.1, 60))
def test_no_wait_lasts_much_longer_than_its_limit(arrival_s: float, stall_s: float) -> None:
    sweep_s = ConnectionLimits(stall_s=stall_s, arrival_s=arrival_s).sweep_s
    assert arrival_s + sweep_s <= 1.25 * arrival_s or sweep_s <= 0.1
    assert stall_s + sweep_s <= 1.25 * stall_s


@pytest.mark.parametrize("held_up", [False, True])
@on_loop
async def test_a_trickle_is_looked_at_by_its_own_limit(held_up: bool) -> None:
    """And not by that of a stall, which is ten thousand seconds here; also where the loop never
    wakes in time."""
    busy = [asyncio.get_running_loop()] * held_up

    def hold_up() -> None:
        for loop in busy:
            time.sleep(0.25)
            loop.call_soon(hold_up)

    async with (
        edge(Affine) as it,
        serving(it, ConnectionLimits(stall_s=10_000, arrival_s=0.3)) as site,
        calling(site) as caller,
    ):
        await caller.send(POST + b"Content-Length: 9000\r\n\r\n")
        hold_up()
        answer = await caller.answer()
        assert answer.refused == (408, "request_timeout")
        busy.clear()


@on_loop
async def test_a_trickle_that_ends_in_time_is_answered() -> None:
    async with (
        edge(Affine) as it,
        serving(it, ConnectionLimits(stall_s=5)) as site,
        calling(site) as caller,
    ):
        for byte in request(INFER, GOOD):
            await caller.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await caller.answer()).status == 200


@pytest.mark.parametrize("ask_first", [False, True])
@on_loop
async def test_an_idle_connection_is_closed(ask_first: bool) -> None:
    limits = ConnectionLimits(stall_s=0.1, keep_alive_s=0.3)
    async with edge(Affine) as it, serving(it, limits) as site, calling(site) as caller:
        if ask_first:
            await caller.send(request(INFER, GOOD))
            assert (await caller.answer()).status == 200
        assert await caller.ended() == b""
        await no_connections(site)


@on_loop
async def test_a_request_that_runs_long_is_not_idle() -> None:
    limits = ConnectionLimits(stall_s=0.2, keep_alive_s=0.2)  # of which the first byte has as much
    async with edge(Affine) as it, serving(it, limits) as site, calling(site) as caller:
        it.pool.hold = True
        await caller.send(request(INFER, GOOD))
        await until(lambda: it.pool.lane_client("affine").allocator.claimed == 1, "it is under way")
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        await until(lambda: loop.time() > begun_s + 0.6, "several sweeps pass")
        it.pool.release()
        assert (await caller.answer()).status == 200


def deaf_socket(site: Site) -> socket.socket:
    """A connection whose receive buffer is small and that is never read."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(site.address)
    return sock


def wide_request(rows: int) -> bytes:
    x = np.zeros((rows, 1 << 20), "u1")
    headers, body = binary({"parameters": {"binary_data_output": True}}, ("x", "UINT8", x))
    return request("/v2/models/wide/infer", body, headers=headers)


@on_loop
async def test_a_caller_that_does_not_read_is_cut_and_holds_no_slot() -> None:
    async with edge(Wide, slots=9, server={"max_body_mib": 16}) as it, serving(it, QUICK) as site:
        with deaf_socket(site) as deaf:
            loop = asyncio.get_running_loop()
            deaf.setblocking(False)
            await loop.sock_sendall(deaf, wide_request(8))
            rows = it.pool.batcher.models[0].metrics
            await until(lambda: rows.completed == 8, "the rows are done")
            await until(
                lambda: it.pool.lane_client("wide").allocator.claimed == 0, "the slots are free"
            )
            await no_connections(site)


@on_loop
async def test_a_slow_reader_makes_progress_and_gets_everything() -> None:
    async with edge(Wide, slots=9, server={"max_body_mib": 16}) as it, serving(it) as site:
        with deaf_socket(site) as slow:
            loop = asyncio.get_running_loop()
            slow.setblocking(False)
            await loop.sock_sendall(slow, wide_request(8))
            await until(lambda: it.pool.batcher.models[0].metrics.completed == 8, "it is done")
            (connection,) = site.server.server_state.connections
            assert isinstance(connection, Connection)
            here = connection.transport.get_write_buffer_size
            await until(lambda: connection.unsent_bytes() > here() > 0, "the answer waits")
            before_bytes, before_here = connection.unsent_bytes(), here()
            found = await loop.sock_recv(slow, 1 << 17)
            await until(lambda: connection.unsent_bytes() < before_bytes, "progress is seen")
            assert here() == before_here  # what uvicorn's own buffer does not tell yet
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            while len(found) < 8 << 20:
                piece = await loop.sock_recv(slow, 1 << 20)
                assert piece
                found += piece
            assert found.startswith(b"HTTP/1.1 200")


@on_loop
async def test_a_steady_reader_is_never_cut_however_slow_and_one_that_stops_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eight megabytes, of which 64 KiB are taken between two looks, however far apart these are."""
    left = 8 << 20
    async with edge(Affine) as it, serving(it) as site, calling(site) as caller:
        await caller.send(request(INFER, GOOD))
        await caller.answer()
        (connection,) = site.server.server_state.connections
        assert isinstance(connection, Connection)
        monkeypatch.setattr(type(connection), "unsent_bytes", lambda self: left)
        now_s, stall_s = asyncio.get_running_loop().time(), connection.limits.stall_s
        connection.sweep(now_s)
        while left > 64 << 10:
            now_s, left = now_s + stall_s + 0.01, left - (64 << 10)
            connection.sweep(now_s)
            assert not connection.transport.is_closing(), f"cut with {left} bytes unsent"
        connection.sweep(now_s + stall_s)
        assert not connection.transport.is_closing()
        connection.sweep(now_s + stall_s + 0.01)
        assert connection.transport.is_closing()


# -- callers that go -------------------------------------------------------------------------


@on_loop
async def test_after_a_hundred_disconnects_all_is_as_before() -> None:
    """C24: every slot and task is free, and nothing queued was run."""
    async with edge(Two, slots=256, max_batch=4) as it, serving(it) as site:
        Two.batches.clear()
        lane_client = it.pool.lane_client("two")
        it.pool.hold = True
        tag = numbers("tag", np.array([[1]]), "INT64")
        raw = request("/v2/models/two/infer", json.dumps({"inputs": [tag]}).encode())
        connections = [await asyncio.open_connection(*site.address) for _ in range(100)]
        for _, writer in connections:
            writer.write(raw)
        await until(lambda: lane_client.allocator.claimed == 100, "all are under way")
        for _, writer in connections:
            writer.close()
            await writer.wait_closed()
        metrics = it.pool.batcher.models[0].metrics
        in_batches = metrics.rows
        await until(
            lambda: lane_client.allocator.claimed == in_batches, "what was queued is taken back"
        )
        assert metrics.cancelled == 100 - in_batches
        await until(lambda: not site.server.server_state.tasks, "its task has ended")
        it.pool.release()
        await until(lambda: lane_client.allocator.claimed == 0, "all slots are free")
        assert (metrics.cancelled, Two.batches) == (100, []), "the worker leaves them out too"
        async with calling(site) as caller:
            await caller.send(raw)
            assert (await caller.answer()).status == 200


@on_loop
async def test_a_caller_that_goes_while_it_sends() -> None:
    async with edge(Affine) as it, serving(it) as site:
        async with calling(site) as caller:
            await caller.send(request(INFER, GOOD)[:-5])
            await until(lambda: site.under_way == 1, "it is being read")
        await no_connections(site)
        await until(lambda: not site.server.server_state.tasks, "its task has ended")
        assert it.pool.lane_client("affine").allocator.claimed == 0


@on_loop
async def test_that_connections_are_turned_away_is_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below anything that is asked here: without a word nobody would know."""
    async with edge(Affine) as it, serving(it) as site:
        site.server.keep_room()
        assert caplog.messages == []
        full = open_descriptors() + 1
        monkeypatch.setattr("batchpool.frontend.server.descriptor_limit", lambda: full)
        site.server.keep_room()
    (message,) = caplog.messages
    assert message.startswith("connections are turned away, 0 are open: too many open files: this")


@on_loop
async def test_idle_connections_of_who_has_most_make_room_for_others(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with edge(Affine) as it, serving(it) as site, AsyncExitStack() as open_ones:
        callers = [await open_ones.enter_async_context(calling(site)) for _ in range(6)]
        await until(lambda: site.connections == 6, "all are accepted")
        await callers[5].send(request(INFER, GOOD)[:-5])  # this one is not idle
        await until(lambda: site.under_way == 1, "it is being read")
        site.server.keep_room()
        assert site.connections == 6
        most = open_descriptors() + 30  # less than a sixteenth is spare
        monkeypatch.setattr("batchpool.frontend.server.descriptor_limit", lambda: 16 * most)
        site.server.keep_room()
        assert site.connections == 6, "there is room"
        monkeypatch.setattr("batchpool.frontend.server.descriptor_limit", lambda: most)
        monkeypatch.setattr("batchpool.frontend.server._KEPT_FREE", 1)
        site.server.keep_room()
        await until(lambda: site.connections == 4, "half of the idle ones are closed")
        assert caplog.messages == [
            "descriptors run out: 2 of 5 idle connections of 127.0.0.1 are closed"
        ]
        await callers[5].send(request(INFER, GOOD)[-5:])
        assert b"200 OK" in await callers[5].reader.readuntil(b"\r\n")
