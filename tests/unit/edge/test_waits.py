"""Every wait has an end: callers that stall, trickle, idle, do not read, or go."""

from __future__ import annotations

import asyncio
import json
import socket

import numpy as np
import pytest

from batchpool.edge.connection import Connection, ConnectionLimits
from tests.unit.edge.calls import affine, affine_answer, binary, numbers
from tests.unit.edge.edge_double import Site, calling, edge, request, serving
from tests.unit.edge.loops import on_loop, until
from tests.unit.edge.models import Affine, Two, Wide

INFER = "/v2/models/affine/infer"
GOOD = json.dumps(affine(3)).encode()
QUICK = ConnectionLimits(stall_s=0.1)


async def no_connections(site: Site) -> None:
    await until(lambda: site.connections == 0, "the connection is ended")


@pytest.mark.parametrize(
    "sent",
    [
        b"P",
        b"POST /v2/models/affine/infer HTTP/1.1\r\nHost: po",
        b"POST /v2/models/affine/infer HTTP/1.1\r\nContent-Length: 64000000\r\n\r\n0123456789",
        b"POST /v2/models/affine/infer HTTP/1.1\r\nContent-Length: 640\r\n\r\n0123456789",
        b"POST /v2/models/affine/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n01",
        b"POST /nowhere HTTP/1.1\r\nContent-Length: 640\r\n\r\n0123456789",
        request(INFER, GOOD) + b"GET /v2 HT",
    ],
)
@on_loop
async def test_a_stalled_sender_is_dropped_and_holds_no_slot(sent: bytes) -> None:
    async with edge(Affine) as it, serving(it, QUICK) as site:
        async with calling(site) as stalled, calling(site) as other:
            await stalled.send(sent)
            ended = asyncio.create_task(stalled.ended())
            while not ended.done():
                await until(lambda: it.pool.port("affine").map.claimed == 0, "no slot is held")
                await other.send(request(INFER, GOOD))
                assert (await other.answer()).object["outputs"][0]["data"] == affine_answer(3)
        await no_connections(site)
        assert site.server.server_state.tasks == set()


@on_loop
async def test_a_trickle_is_not_a_stall_but_has_an_end_too() -> None:
    limits = ConnectionLimits(stall_s=2, arrival_s=0.6)
    async with edge(Affine) as it, serving(it, limits) as site, calling(site) as caller:
        await caller.send(b"POST /v2/models/affine/infer HTTP/1.1\r\nContent-Length: 9000\r\n\r\n")
        begun_s = asyncio.get_running_loop().time()
        try:
            while not caller.reader.at_eof():
                await caller.send(b" ")
                await asyncio.sleep(0.01)  # the trickle itself
        except (ConnectionError, RuntimeError):  # uvloop says the latter of a closed transport
            pass
        assert asyncio.get_running_loop().time() - begun_s >= limits.arrival_s


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
    limits = ConnectionLimits(stall_s=0.05, keep_alive_s=0.05)
    async with edge(Affine) as it, serving(it, limits) as site, calling(site) as caller:
        it.pool.hold = True
        await caller.send(request(INFER, GOOD))
        await until(lambda: it.pool.port("affine").map.claimed == 1, "it is under way")
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        await until(lambda: loop.time() > begun_s + 0.3, "several sweeps pass")
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
            rows = it.pool.batcher.models[0].tally
            await until(lambda: rows.completed == 8, "the rows are done")
            await until(lambda: it.pool.port("wide").map.claimed == 0, "the slots are free")
            await no_connections(site)


@on_loop
async def test_a_slow_reader_makes_progress_and_gets_everything() -> None:
    async with edge(Wide, slots=9, server={"max_body_mib": 16}) as it, serving(it) as site:
        with deaf_socket(site) as slow:
            loop = asyncio.get_running_loop()
            slow.setblocking(False)
            await loop.sock_sendall(slow, wide_request(8))
            await until(lambda: it.pool.batcher.models[0].tally.completed == 8, "it is done")
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


# -- callers that go -------------------------------------------------------------------------


@on_loop
async def test_after_a_hundred_disconnects_all_is_as_before() -> None:
    async with edge(Two, slots=256, max_batch=4) as it, serving(it) as site:
        Two.batches.clear()
        port = it.pool.port("two")
        it.pool.hold = True
        tag = numbers("tag", np.array([[1]]), "INT64")
        raw = request("/v2/models/two/infer", json.dumps({"inputs": [tag]}).encode())
        connections = [await asyncio.open_connection(*site.address) for _ in range(100)]
        for _, writer in connections:
            writer.write(raw)
        await until(lambda: port.map.claimed == 100, "all are under way")
        for _, writer in connections:
            writer.close()
            await writer.wait_closed()
        tally = it.pool.batcher.models[0].tally
        in_batches = tally.rows
        await until(lambda: port.map.claimed == in_batches, "what was queued is taken back")
        assert tally.cancelled == 100 - in_batches
        assert site.server.server_state.tasks == set()
        it.pool.release()
        await until(lambda: port.map.claimed == 0, "all slots are free")
        assert sum(Two.batches) == in_batches < 100
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
        assert it.pool.port("affine").map.claimed == 0
