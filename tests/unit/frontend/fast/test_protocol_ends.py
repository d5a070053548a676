"""The fast road and everything that ends a request early: callers that go, stops, limits."""

from __future__ import annotations

import asyncio
import socket

import pytest

from batchpool.frontend.http.connection_limits import ConnectionLimits
from batchpool.frontend.service import body_limits
from tests.unit.frontend.frontend_double import calling, edge, request, serving
from tests.unit.frontend.http.test_waits import deaf_socket
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine, Wide
from tests.unit.frontend.roads import Visit, same

INFER = "/v2/models/affine/infer"
RAW = {"Inference-Header-Content-Length": "0"}
SHORT = request(INFER, bytes(16), headers=RAW)
OTHER = request("/v2", method="GET")
FOR_EVER = 1000.0
MIB = 1 << 20
SHORT_WIDE = request("/v2/models/wide/infer", bytes(MIB), headers=RAW)


async def read_all(sock: socket.socket, size: int) -> None:
    """Take so many bytes of a socket that does not block."""
    loop = asyncio.get_running_loop()
    while size > 0:
        size -= len(await loop.sock_recv(sock, 1 << 20))


@pytest.mark.parametrize("behind", [b"", SHORT[:20]])
@on_loop
async def test_a_caller_that_goes_takes_its_row_back(behind: bytes) -> None:
    async with edge(Affine, max_batch=1) as it, serving(it) as site:
        it.pool.hold = True
        lane_client = it.pool.lane_client("affine")
        metrics = it.pool.batcher.models[0].metrics
        async with calling(site) as first:
            await first.send(request(INFER, bytes(16 * 20), headers=RAW))
            await until(
                lambda: lane_client.allocator.claimed == 20, "the worker has enough, and is held"
            )
            async with calling(site) as caller:
                await caller.send(SHORT + behind)
                await until(lambda: lane_client.allocator.claimed == 21, "another is under way")
            await until(lambda: lane_client.allocator.claimed == 20, "it is taken back")
            assert metrics.cancelled == 1
            it.pool.release()
            assert (await first.answer()).status == 200
        await until(lambda: lane_client.allocator.claimed == 0, "all slots are free")
        await until(lambda: site.connections == 0, "no connection is left")
        assert site.server.server_state.tasks == set()


@pytest.mark.parametrize("behind", [OTHER, SHORT * 3 + OTHER, SHORT[:-2]])
@on_loop
async def test_a_caller_that_goes_with_requests_in_the_queue(behind: bytes) -> None:
    async with edge(Affine) as it, serving(it) as site:
        it.pool.hold = True
        lane_client = it.pool.lane_client("affine")
        async with calling(site) as caller:
            await caller.send(SHORT + behind)
            await until(lambda: lane_client.allocator.claimed == 1, "the first is under way")
        it.pool.release()
        await until(lambda: site.connections == 0, "the connection is ended")
        await until(lambda: lane_client.allocator.claimed == 0, "all slots are free")
        await until(lambda: site.server.server_state.tasks == set(), "no task is left")


@on_loop
async def test_a_caller_that_goes_when_its_rows_run() -> None:
    async with edge(Affine, slots=8) as it, serving(it) as site:
        it.pool.hold = True
        lane_client = it.pool.lane_client("affine")
        async with calling(site) as caller:
            await caller.send(SHORT)
            await until(lambda: it.pool.batcher.models[0].metrics.rows == 1, "it is dispatched")
        await until(lambda: site.connections == 0, "the caller has gone")
        assert lane_client.allocator.claimed == 1
        it.pool.release()
        await until(lambda: lane_client.allocator.claimed == 0, "the slot is free")


@on_loop
async def test_malformed_bytes_behind_a_request_under_way() -> None:
    """The request is answered as if it had come in a read of its own."""

    async def scenario(it: Visit) -> None:
        it.of.pool.hold = True
        await it.send(SHORT + b"\x16\x03\x01 what is this\r\n\r\n")
        lane_client = it.of.pool.lane_client("affine")
        await until(lambda: lane_client.allocator.claimed == 1, "it is under way")
        it.of.pool.release()
        assert (await it.take()).startswith(b"HTTP/1.1 200 ")
        assert (await it.take()).startswith(b"HTTP/1.1 400 ")
        await it.take_end()
        await until(lambda: lane_client.allocator.claimed == 0, "the slot is free")

    assert (await same(scenario, Affine)).fast == 1


@on_loop
async def test_discarding_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_limits, "_LEAST_DISCARD_BYTES", MIB)
    async with (
        edge(Affine, server={"max_body_mib": 1}) as it,
        serving(it) as site,
        calling(site) as caller,
    ):
        await caller.send(request(INFER, headers={**RAW, "Content-Length": f"{1 << 40}"}))
        assert (await caller.answer()).refused == (413, "too_large")
        with pytest.raises(ConnectionError):
            for _ in range(1000):
                await caller.send(b" " * MIB)


@on_loop
async def test_too_many_fields_get_one_answer() -> None:
    limits = ConnectionLimits(fields=20)
    async with edge(Affine) as it, serving(it, limits) as site, calling(site) as caller:
        fields = {f"X-{i}": f"{i}" for i in range(30)}
        await caller.send(request(INFER, b"half a row", headers={**RAW, **fields}))
        answer = await caller.answer()
        assert answer.refused == (400, "invalid_request")
        assert "too large" in answer.object["error"]
        assert await caller.ended() == b""


@on_loop
async def test_a_head_that_trickles_counts_from_its_first_byte() -> None:
    async with edge(Affine) as it, serving(it) as site, calling(site) as caller:
        await caller.send(b"GET /v2 HTTP/1.1\r\nHost: pool\r\n")
        await until(lambda: site.connections == 1, "the connection is accepted")
        (connection,) = site.server.server_state.connections
        await until(lambda: connection._arriving, "its first line has come")
        begun_s = connection._begun_s
        await until(lambda: it.client_loop._loop.time() > begun_s + 0.01, "some time passes")
        await caller.send(b"Content-Length: 1\r\n\r\n")
        await until(lambda: not connection._in_head, "its head is complete")
        assert connection._begun_s == begun_s


# -- stops ---------------------------------------------------------------------------------


@pytest.mark.parametrize("behind", [b"", OTHER + SHORT])
@on_loop
async def test_a_stop_waits_for_what_is_under_way(behind: bytes) -> None:
    async def scenario(it: Visit) -> None:
        it.of.pool.hold = True
        await it.send(SHORT + behind)
        lane_client = it.of.pool.lane_client("affine")
        await until(lambda: lane_client.allocator.claimed == 1, "it is under way")
        it.site.server.stop()
        server = it.site.server.servers[0]
        await until(lambda: not server.is_serving(), "it listens no more")
        it.of.pool.release()
        for _ in range(3 if behind else 1):
            await it.take()
        await it.take_end()
        await it.site.ended
        assert it.site.server.cut == 0

    await same(scenario, Affine)


@on_loop
async def test_a_stop_gives_up_in_time() -> None:
    async def scenario(it: Visit) -> None:
        it.of.pool.hold = True
        await it.send(SHORT)
        lane_client = it.of.pool.lane_client("affine")
        await until(lambda: lane_client.allocator.claimed == 1, "it is under way")
        it.site.server.stop()
        it.site.server.stop()
        assert b"pool_stopped" in await it.take()
        await it.take_end()

    assert (await same(scenario, Affine)).fast == 1


# -- callers that do not read ----------------------------------------------------------------


@on_loop
async def test_nothing_is_begun_for_a_caller_that_is_behind_with_reading() -> None:
    async with edge(Wide, slots=9, server={"max_body_mib": 16}) as it, serving(it) as site:
        wide = request("/v2/models/wide/infer", bytes(8 * MIB), headers=RAW)
        lane_client = it.pool.lane_client("wide")
        with deaf_socket(site) as deaf:
            loop = asyncio.get_running_loop()
            deaf.setblocking(False)
            await loop.sock_sendall(deaf, wide)
            metrics = it.pool.batcher.models[0].metrics
            await until(lambda: metrics.completed == 8, "its rows are done")
            await until(lambda: lane_client.allocator.claimed == 0, "it is answered")
            (connection,) = site.server.server_state.connections
            assert connection.flow.write_paused
            waiting = connection.transport.get_write_buffer_size()
            assert it.view.memory.held_bytes >= waiting
            deaf.send(SHORT_WIDE)
            await until(lambda: connection._unparsed.size > 0, "the next one has come")
            assert metrics.completed == 8
            assert connection.transport.get_write_buffer_size() <= waiting
            await read_all(deaf, 8 * MIB)
            await until(lambda: metrics.completed == 9, "it is begun as soon as the caller reads")
        await until(lambda: site.connections == 0, "the caller has gone")
        assert it.view.memory.held_bytes == 0


@on_loop
async def test_an_idle_connection_is_swept() -> None:
    limits = ConnectionLimits(stall_s=0.1, keep_alive_s=0.3)
    async with edge(Affine) as it, serving(it, limits) as site, calling(site) as caller:
        for _ in range(3):
            await caller.send(SHORT)
            assert (await caller.answer()).status == 200
        assert await caller.ended() == b""
