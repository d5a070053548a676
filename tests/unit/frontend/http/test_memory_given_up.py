"""Memory that callers of few addresses hold is given up for a caller of another one."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.core.errors import Overloaded
from batchpool.frontend.http.memory_budget import MemoryBudget, MemoryReservation
from tests.unit.frontend.frontend_double import Caller, Site, calling, chunk, edge, request, serving
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Wide

MIB = 1 << 20
WIDE = "/v2/models/wide/infer"
RAW = {"Inference-Header-Content-Length": "0"}
ROW = bytes(range(256)) * (MIB // 256)
ROW_HEAD = request(WIDE, ROW, headers=RAW)[: -len(ROW)]
CHUNKED = ROW_HEAD.replace(f"Content-Length: {MIB}".encode(), b"Transfer-Encoding: chunked", 1)
FIRST, SECOND, OTHER = (("127.0.0.2", 0), ("127.0.0.3", 0), ("127.0.0.4", 0))


class Held:
    """Something that a caller lets stand. error: why it was given up."""

    def __init__(self, memory: MemoryBudget, flow: int, size: int, *, stays: bool = False) -> None:
        self.reservation = MemoryReservation(memory, flow)
        self.error: Overloaded | None = None
        self._stays = stays
        self.reservation.give_up = self._give_up
        self.reservation.grow_to(size)

    def _give_up(self, error: Overloaded) -> bool:
        if not self._stays:
            self.error = error
        return not self._stays


def test_what_stands_still_longest_of_the_largest_holder_is_given_up() -> None:
    memory = MemoryBudget(800, body_bytes=100, clock=lambda: 0.9)
    first = [Held(memory, 1, 90) for _ in range(4)]
    second = [Held(memory, 2, 84) for _ in range(4)]
    first[0].reservation.grow_to(91)
    newcomer = MemoryReservation(memory, 3)
    newcomer.grow_to(93)
    given_up = [held.error is not None for held in (*first, *second)]
    assert given_up == [False, True, False, False, *[False] * 4]
    assert (memory.held_for(1), memory.held_for(2), memory.held_for(3)) == (271, 336, 93)
    assert first[1].error is not None
    assert first[1].error.retry_after_ms == 1000
    assert str(first[1].error) == (
        "the server gave this request up for another caller's: this caller's requests and responses"
        " take most of the 800 bytes that it holds of them; send fewer at a time, and faster"
    )


def test_nothing_young_is_given_up_for_who_holds_more_than_half_as_much() -> None:
    memory = MemoryBudget(800, body_bytes=400, clock=lambda: 0.9)
    held = [Held(memory, 1, 100) for _ in range(4)] + [Held(memory, 2, 100) for _ in range(3)]
    for flow, size in ((3, 201), (0, 10), (2, 151)):
        with pytest.raises(Overloaded, match="all of the memory"):
            MemoryReservation(memory, flow).grow_to(size)
    assert not any(each.error for each in held)
    MemoryReservation(memory, 3).grow_to(150)
    assert [each.error is not None for each in held] == [True] * 2 + [False] * 5


def test_what_must_go_on_is_passed_over_and_what_was_kept_is_forgotten() -> None:
    memory = MemoryBudget(800, clock=lambda: 0.9)
    stays, goes = Held(memory, 1, 100, stays=True), Held(memory, 1, 400)
    other = MemoryReservation(memory, 3)
    other.grow_to(200)
    MemoryReservation(memory, 2).grow_to(50)
    assert (stays.error, goes.error is not None) == (None, True)
    again = Held(memory, 1, 300)
    again.reservation.keep()
    other.grow_to(250)
    with pytest.raises(Overloaded):
        MemoryReservation(memory, 2).grow_to(10)
    assert again.error is None
    again.reservation.close()
    stays.reservation.close()
    assert memory.held_bytes == 300


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=80
    )
)  # fmt: skip
def test_what_is_held_stays_the_sum_while_others_are_given_up(steps: list[tuple[int, int]]) -> None:
    memory = MemoryBudget(112)
    held = [Held(memory, 1 + which // 2, 0) for which in range(6)]
    for which, size in steps:
        own = held[which].reservation
        try:
            own.grow_to(size)
        except Overloaded:
            assert own.size <= size
        sizes = [each.reservation.size for each in held]
        assert memory.held_bytes == sum(sizes) <= 98
        for flow in range(1, 4):
            assert memory.held_for(flow) == sum(sizes[2 * flow - 2 : 2 * flow])
    for each in held:
        each.reservation.close()
    assert (memory.held_bytes, memory._yielding, memory._callers) == (0, {}, {})


async def hold(site: Site, stack: AsyncExitStack, address: tuple[str, int]) -> Caller:
    return await stack.enter_async_context(calling(site, local_addr=address))


@pytest.mark.parametrize(
    ("fast", "chunked"),
    [(True, False), (False, False), (True, True)],
    ids=["fast", "asgi", "chunks"],
)
@on_loop
async def test_two_addresses_do_not_shut_others_out(fast: bool, chunked: bool) -> None:
    """Bodies that stand still held seven eighths of all, by two addresses alone, and every body in
    several reads was refused for two minutes."""
    head = CHUNKED if chunked else ROW_HEAD
    end = b"0\r\n\r\n" if chunked else b""

    def framed(part: bytes) -> bytes:
        return chunk(part) if chunked else part

    server = {"max_body_mib": 1, "max_bodies_mib": 8}
    async with (
        edge(Wide, server=server) as it,
        serving(it, fast=fast) as site,
        AsyncExitStack() as stack,
    ):
        memory = it.view.memory
        held = []
        for address in 4 * (FIRST, SECOND):
            caller = await hold(site, stack, address)
            await caller.send(head + framed(ROW[:900_000]))
            held.append(caller)
            await until(lambda: memory.held_bytes == 900_000 * len(held), "it is held")
        other = await hold(site, stack, OTHER)
        await other.send(ROW_HEAD + ROW[:600_000])
        await until(lambda: memory.held_bytes == 7 * 900_000 + 600_000, "the other's is held")
        await other.send(ROW[600_000:])
        assert (await other.answer()).status == 200
        # Its answer, of a megabyte, needs room as well, and gets it.
        refused, others = held[:3], held[3:]
        for caller in refused:
            answer = await caller.answer()
            assert answer.refused == (503, "overloaded")
            assert answer.object["error"].startswith("the server gave this request up for another")
        # What comes of a body that was given up is dropped, and its connection serves on.
        await refused[0].send(framed(ROW[900_000:]) + end + request(WIDE, ROW, headers=RAW))
        assert (await refused[0].answer()).status == 200
        for caller in others:
            await caller.send(framed(ROW[900_000:]) + end)
            assert (await caller.answer()).status == 200
        await until(lambda: memory.held_bytes == 0, "nothing is held")


@on_loop
async def test_heads_that_stand_still_are_given_up() -> None:
    async with (
        edge(Wide, server={"max_body_mib": 1, "max_bodies_mib": 1}) as it,
        serving(it) as site,
        AsyncExitStack() as stack,
    ):
        memory = it.view.memory
        held = []
        for number in range(16):
            caller = await hold(site, stack, (FIRST, SECOND)[number % 2])
            await caller.send(b"GET / HTTP/1.1\r\nX: " + b"x" * 60_000)
            held.append(caller)
            await until(lambda: memory.held_bytes > 60_000 * len(held), "it is held")
        other = await hold(site, stack, OTHER)
        await other.send(ROW_HEAD + ROW[:200_000])
        for caller in held[:2]:
            answer = await caller.answer()
            assert answer.refused == (503, "overloaded")
            assert answer.headers["connection"] == "close"
        assert memory.held_bytes > 14 * 60_000 + 200_000
