"""The fast road and everything that ends a request early: callers that go, stops, limits."""

from __future__ import annotations

import asyncio

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from batchpool.frontend.http.connection import ConnectionLimits
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


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The cycles for which uvicorn started an ASGI task."""
    started: list[object] = []
    start = HttpToolsProtocol._start_asgi_task

    def noted(self: HttpToolsProtocol, cycle: object, *more: object) -> None:
        started.append(cycle)
        start(self, cycle, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(HttpToolsProtocol, "_start_asgi_task", noted)
    return started


@pytest.mark.parametrize("behind", [b"", SHORT[:20]])
@on_loop
async def test_a_caller_that_goes_takes_its_row_back(behind: bytes) -> None:
    async with edge(Affine, max_batch=1) as it, serving(it) as site:
        it.pool.hold = True
        lane_client = it.pool.lane_client("affine")
        metrics = it.pool.batcher.models[0].metrics
        async with calling(site) as first:
            await first.send(request(INFER, bytes(16 * 20), headers=RAW))
            await until(lambda: lane_client.map.claimed == 20, "the worker has enough, and is held")
            async with calling(site) as caller:
                await caller.send(SHORT + behind)
                await until(lambda: lane_client.map.claimed == 21, "another is under way")
            await until(lambda: lane_client.map.claimed == 20, "it is taken back")
            assert metrics.cancelled == 1
            it.pool.release()
            assert (await first.answer()).status == 200
        await until(lambda: lane_client.map.claimed == 0, "all slots are free")
        await until(lambda: site.connections == 0, "no connection is left")
        assert site.server.server_state.tasks == set()


@pytest.mark.parametrize("behind", [OTHER, SHORT * 3 + OTHER, SHORT[:-2]])
@on_loop
async def test_a_caller_that_goes_with_requests_in_the_queue(behind: bytes) -> None:
    # uvicorn does not read on while requests queue up, so nobody knows before the answer.
    async with edge(Affine) as it, serving(it) as site:
        it.pool.hold = True
        lane_client = it.pool.lane_client("affine")
        async with calling(site) as caller:
            await caller.send(SHORT + behind)
            await until(lambda: lane_client.map.claimed == 1, "the first is under way")
        it.pool.release()
        await until(lambda: site.connections == 0, "the connection is ended")
        await until(lambda: lane_client.map.claimed == 0, "all slots are free")
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
        assert lane_client.map.claimed == 1
        it.pool.release()
        await until(lambda: lane_client.map.claimed == 0, "the slot is free")


@on_loop
async def test_malformed_bytes_behind_a_request_under_way() -> None:
    async def scenario(it: Visit) -> None:
        it.of.pool.hold = True
        await it.send(SHORT + b"\x16\x03\x01 what is this\r\n\r\n")
        answer = await it.take()
        assert answer.startswith(b"HTTP/1.1 400 ")
        await it.take_end()
        it.of.pool.release()
        lane_client = it.of.pool.lane_client("affine")
        await until(lambda: lane_client.map.claimed == 0, "the slot is free")

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
        await caller.send(b"GET /v2 HTTP/1.1\r\n")
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
        await until(lambda: lane_client.map.claimed == 1, "it is under way")
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
        await until(lambda: lane_client.map.claimed == 1, "it is under way")
        it.site.server.stop()
        it.site.server.stop()
        assert b"pool_stopped" in await it.take()
        await it.take_end()

    assert (await same(scenario, Affine)).fast == 1


# -- callers that do not read ----------------------------------------------------------------


@on_loop
async def test_a_caller_that_is_behind_with_reading_is_asgis(tasks: list[object]) -> None:
    async with edge(Wide, slots=9, server={"max_body_mib": 16}) as it, serving(it) as site:
        wide = request("/v2/models/wide/infer", bytes(8 * MIB), headers=RAW)
        lane_client = it.pool.lane_client("wide")
        with deaf_socket(site) as deaf:
            loop = asyncio.get_running_loop()
            deaf.setblocking(False)
            await loop.sock_sendall(deaf, wide)
            metrics = it.pool.batcher.models[0].metrics
            await until(lambda: metrics.completed == 8, "its rows are done")
            await until(lambda: lane_client.map.claimed == 0, "it is answered")
            assert tasks == []
            (connection,) = site.server.server_state.connections
            assert connection.flow.write_paused
            waiting = connection.transport.get_write_buffer_size()
            await loop.sock_sendall(deaf, request("/v2/models/wide/infer", bytes(MIB), headers=RAW))
            await until(lambda: metrics.completed == 9, "the next one is done")
            await until(lambda: lane_client.map.claimed == 0, "its slot is free")
            assert len(tasks) == 1
            assert connection.transport.get_write_buffer_size() <= waiting


@on_loop
async def test_an_idle_connection_is_swept() -> None:
    limits = ConnectionLimits(stall_s=0.1, keep_alive_s=0.3)
    async with edge(Affine) as it, serving(it, limits) as site, calling(site) as caller:
        for _ in range(3):
            await caller.send(SHORT)
            assert (await caller.answer()).status == 200
        assert await caller.ended() == b""
