"""No answer depends on how the bytes were cut into reads."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from batchpool.frontend.http.connection_limits import ConnectionLimits
from tests.unit.frontend.fast.test_protocol import INFER, ROW, lines, raw
from tests.unit.frontend.frontend_double import Site, calling, chunk, edge, request, serving
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine
from tests.unit.frontend.roads import _constant

LIMITS = ConnectionLimits(head_bytes=200, fields=8)
GET = request("/v2", method="GET")
LAST = request("/v2", method="GET", headers={"Connection": "close"})
POST = f"POST {INFER} HTTP/1.1"
RAW = "Inference-Header-Content-Length: 0"
CHUNKED = lines(POST, "Host: a", RAW, "Transfer-Encoding: chunked")
both_roads = pytest.mark.parametrize("fast", [True, False], ids=["fast", "asgi"])


def head_of(size: int) -> bytes:
    """A GET that ends its connection, with a head of so many bytes."""
    bare = lines("GET /v2 HTTP/1.1", "Host: a", "Connection: close", "X-Request-Id: me", "X: ")
    return bare.replace(b"X: ", b"X: " + b"a" * (size - len(bare)))


# name -> a stream of which every answer, and the end, is compared.
STREAMS = {
    "a head as large as may be": head_of(200),
    "a head larger by one byte": head_of(201),
    "a large head": head_of(700),
    "a large head behind a request": GET + head_of(300),
    "empty lines before a head as large as may be": b"\r\n\r\n" + head_of(196),
    "empty lines before a head that is then too large": b"\r\n\r\n" + head_of(197),
    "as many fields as may be": lines("GET /v2 HTTP/1.1", *["Host: a", "Connection: close"],
        *[f"X-{i}: {i}" for i in range(6)]),
    "one field more": lines("GET /v2 HTTP/1.1", "Host: a", *[f"X-{i}: {i}" for i in range(8)]),
    "an id behind the last field": lines("GET /v2 HTTP/1.1", "Host: a",
        *[f"X-{i}: {i}" for i in range(8)], "X-Request-Id: me"),
    "a line that is no field behind two fields more": lines("GET /v2 HTTP/1.1", "Host: a",
        *[f"X-{i}: {i}" for i in range(9)], "nonsense"),
    "many trailers": CHUNKED + chunk(ROW) + b"0\r\n" + lines(*[f"X-{i}: {i}" for i in range(9)]),
    "a few trailers": CHUNKED + chunk(ROW) + b"0\r\n" + lines("X: 1", "Y: 2") + LAST,
    "a long chunk extension": CHUNKED + b"10;" + b"a" * 3000 + b"\r\n" + ROW + b"\r\n0\r\n\r\n",
    "ends within chunks": CHUNKED + b"".join(chunk(b"\r\n\r\n0\r\n\r\n" * n) for n in range(1, 9))
        + chunk(b"") + GET + LAST,
    "extensions beyond their share": CHUNKED + (b"1;" + b"a" * 60 + b"\r\n0\r\n") * 9 + chunk(b"")
        + GET,
    "extensions within their share": CHUNKED + b"".join(b"4;" + b"a" * 50 + b"\r\n%b\r\n"
        % ROW[at : at + 4] for at in range(0, 16, 4)) + chunk(b"") + LAST,
    "a size that is none": CHUNKED + chunk(ROW[:8]) + b"0x8\r\n" + ROW[8:] + b"\r\n0\r\n\r\n" + GET,
    "a size with a bare line end": CHUNKED + b"10\n" + ROW + b"\r\n0\r\n\r\n" + GET,
    "a long trailer": CHUNKED + chunk(ROW) + b"0\r\nX: " + b"a" * 3000 + b"\r\n\r\n",
    "pipelined": raw(ROW) + GET + raw(ROW[:7]) + raw(ROW) + b"\r\n" + raw(ROW) + LAST,
    "pipelined and chunked": raw(ROW) + CHUNKED + chunk(ROW) + chunk(b"") + raw(ROW) + LAST,
    "nonsense behind requests": raw(ROW) + GET + b"nonsense\r\n\r\n",
    "a request behind the last": raw(ROW) + LAST + GET + raw(ROW),
    "an upgrade on offer": request(INFER, ROW, headers={"Connection": "Upgrade",
        "Upgrade": "h2c", "Inference-Header-Content-Length": "0"}) + raw(ROW) + LAST,
}  # fmt: skip


def cuttings(size: int) -> Iterator[list[int]]:
    """Nowhere; everywhere; into pieces of some sizes; in two at many places."""
    yield []
    for step in (1, 2, 3, 5, 64, 1000, 1024):
        yield list(range(step, size, step))
    for at in range(1, size, max(1, size // 60)):
        yield [at]


async def answers_to(site: Site, stream: bytes, cuts: list[int], *, turns: bool) -> bytes:
    """All that comes back of a stream. turns: the loop has its turn between two pieces."""
    connections = site.server.server_state.connections
    await until(lambda: not connections, "the connections before have ended")
    async with calling(site) as caller:
        await until(lambda: len(connections) == 1, "the connection is accepted")
        (connection,) = connections
        ends = [0, *cuts, len(stream)]
        for begin, end in itertools.pairwise(ends):
            if connection.transport.is_closing():
                break
            connection.data_received(stream[begin:end])
            if turns:
                await asyncio.sleep(0)
        return _constant(await caller.ended())


@both_roads
@pytest.mark.parametrize("name", STREAMS)
@on_loop
async def test_answers_are_the_same_for_all_cuts(name: str, fast: bool) -> None:
    stream = STREAMS[name]
    async with edge(Affine) as it, serving(it, LIMITS, fast=fast) as site:
        whole = await answers_to(site, stream, [], turns=False)
        assert whole.startswith(b"HTTP/1.1 ")
        for turns in (False, True):
            for cuts in cuttings(len(stream)):
                assert await answers_to(site, stream, cuts, turns=turns) == whole, cuts
        lane_client = it.pool.lane_client("affine")
        await until(lambda: lane_client.allocator.claimed == 0, "all slots are free")
        assert it.view.memory.held_bytes == 0


@both_roads
@on_loop
async def test_thousands_of_pipelined_requests_are_all_answered(fast: bool) -> None:
    n = 5_000
    async with edge(Affine) as it, serving(it, fast=fast) as site, calling(site) as caller:
        get = request("/v2/health/live", method="GET")
        sending = asyncio.create_task(caller.send(get * n + LAST))
        answers = await caller.ended()
        await sending
        assert answers.count(b"HTTP/1.1 200 ") == n + 1


@pytest.mark.parametrize("size", [1 << 20, 1000])
@on_loop
async def test_seventy_kilobytes_of_headers_are_too_large_in_any_pieces(size: int) -> None:
    sent = request("/v2", method="GET", headers={f"X-{i}": "a" * 1000 for i in range(70)})
    async with edge(Affine) as it, serving(it) as site, calling(site) as caller:
        for at in range(0, len(sent), size):
            await caller.send(sent[at : at + size])
        answer = await caller.answer()
        assert answer.refused == (400, "invalid_request")
        assert "at most 65536 bytes" in answer.object["error"]
