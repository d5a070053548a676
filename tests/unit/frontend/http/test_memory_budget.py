"""Bodies that arrive at the same time: how much of them is held has a bound."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.core.errors import Overloaded
from batchpool.frontend.http.memory_budget import MemoryBudget, MemoryReservation
from tests.unit.frontend.calls import affine, affine_answer
from tests.unit.frontend.frontend_double import Caller, Site, calling, chunk, edge, request, serving
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine, Wide

MIB = 1 << 20
WIDE = "/v2/models/wide/infer"
RAW = {"Inference-Header-Content-Length": "0"}
ROW = bytes(range(256)) * (MIB // 256)
SMALL = request("/v2/models/affine/infer", json.dumps(affine(3)).encode())
both_roads = pytest.mark.parametrize("fast", [True, False], ids=["fast", "asgi"])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), max_size=60))
def test_what_is_held_is_the_sum_and_never_above_its_bound(
    steps: Sequence[tuple[int, int]],
) -> None:
    bodies = MemoryBudget(112)  # 14 of them are kept
    held = [MemoryReservation(bodies) for _ in range(4)]
    sizes = [0] * 4
    for which, more in steps:
        if more == 0:
            held[which].release()
            sizes[which] = 0
        elif sum(sizes) + more > 98:
            with pytest.raises(Overloaded, match="112 bytes"):
                held[which].grow_to(sizes[which] + more)
        else:
            sizes[which] += more
            held[which].grow_to(sizes[which])
        assert bodies.held_bytes == sum(sizes) <= 98
        assert [one.size for one in held] == sizes


def test_bodies_that_never_end_do_not_use_up_what_others_need() -> None:
    memory = MemoryBudget(800, body_bytes=100)
    for flow in range(1, 8):
        MemoryReservation(memory, flow).grow_to(100)
    with pytest.raises(Overloaded, match="all of the memory"):
        MemoryReservation(memory, 8).grow_to(1)
    memory.check()  # a request that comes whole is taken
    MemoryReservation(memory, 8).count(100)
    with pytest.raises(Overloaded, match="all of the memory"):
        memory.check()


def test_one_body_of_the_largest_size_always_fits() -> None:
    memory = MemoryBudget(100, body_bytes=100)
    MemoryReservation(memory, 1).grow_to(100)


async def begin(site: Site, bodies: MemoryBudget, caller: Caller, size: int) -> None:
    """Send the head of a row and so much of it, and wait until that is held."""
    before = bodies.held_bytes
    await caller.send(request(WIDE, ROW, headers=RAW)[: -len(ROW)] + ROW[:size])
    await until(lambda: bodies.held_bytes == before + size, "it is held")


@both_roads
@on_loop
async def test_what_would_be_too_much_is_refused_at_once_and_nobody_else(fast: bool) -> None:
    server = {"max_body_mib": 1, "max_bodies_mib": 1}
    async with (
        edge(Wide, Affine, server=server) as it,
        serving(it, fast=fast) as site,
        calling(site) as first,
        calling(site) as second,
        calling(site) as third,
    ):
        bodies = it.view.memory
        await begin(site, bodies, first, 600_000)
        await second.send(request(WIDE, ROW, headers=RAW)[: -len(ROW)] + ROW[:500_000])
        answer = await second.answer()
        assert answer.refused == (503, "overloaded")
        assert answer.object["error"] == (
            "requests and responses take all of the memory that the server has for them,"
            " 1048576 bytes; send the request again"
        )
        assert answer.headers["retry-after"] == "1"
        assert bodies.held_bytes == 600_000
        await third.send(SMALL)
        assert (await third.answer()).object["outputs"][0]["data"] == affine_answer(3)

        await first.send(ROW[600_000:])
        assert (await first.answer()).status == 200
        assert bodies.held_bytes == 0
        # What was refused is dropped as it comes, and its connection serves on.
        await second.send(ROW[500_000:])
        await second.send(request(WIDE, ROW, headers=RAW))
        assert (await second.answer()).status == 200
        await until(lambda: bodies.held_bytes == 0, "nothing is held")
        totals = it.counters.totals().values("http_requests_total", "code", model="wide")
        assert totals == {"200": 2, "503": 1}


@both_roads
@on_loop
async def test_nothing_is_held_of_those_who_go_or_send_what_is_refused(fast: bool) -> None:
    server = {"max_body_mib": 1, "max_bodies_mib": 4}
    async with edge(Wide, server=server) as it, serving(it, fast=fast) as site:
        bodies = it.view.memory
        async with calling(site) as leaver:
            await begin(site, bodies, leaver, 600_000)
        await until(lambda: bodies.held_bytes == 0, "nothing is held of who has gone")
        async with calling(site) as wrong:
            sent = request(WIDE, ROW[:-1], headers=RAW)
            await wrong.send(sent[:-9])
            await until(lambda: bodies.held_bytes == len(ROW) - 10, "it is held")
            await wrong.send(sent[-9:])
            assert (await wrong.answer()).refused == (400, "invalid_request")
            assert bodies.held_bytes == 0
            head = f"POST {WIDE} HTTP/1.1\r\nHost: pool\r\nTransfer-Encoding: chunked\r\n\r\n"
            await wrong.send(head.encode() + chunk(b"x" * 1000))
            await until(lambda: bodies.held_bytes == 1000, "chunks are held")
            await wrong.send(chunk(b"x" * MIB))
            answer = await wrong.answer()
            assert answer.refused == (413, "too_large")
            assert answer.object["error"].endswith(
                "send fewer rows at a time, or raise max_body_mib"
            )
            assert bodies.held_bytes == 0


@on_loop
async def test_a_body_in_one_read_is_never_counted() -> None:
    async with (
        edge(Affine, server={"max_body_mib": 1, "max_bodies_mib": 1}) as it,
        serving(it) as site,
        calling(site) as caller,
    ):
        it.view.memory.max_bytes = 0
        for _ in range(3):
            await caller.send(SMALL)
            assert (await caller.answer()).status == 200


@on_loop
async def test_the_bound_follows_a_reload() -> None:
    async with edge(Affine, server={"max_body_mib": 3}) as it:
        assert it.view.memory.max_bytes == 24 * MIB
        it.pool.session.server["max_bodies_mib"] = 5
        it.view.learn()
        assert it.view.memory.max_bytes == 5 * MIB
