"""Memory that callers of few addresses hold is given up for a caller of another one."""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress

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


class Clock:
    """A clock that a test moves. now_s: seconds."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


KIB = 1 << 10
BODY = 7 * MIB
SIZE = 96 * MIB  # of which 84 may arrive


def of_strangers(memory: MemoryBudget, number: int) -> list[Held]:
    """Bodies of as many addresses that take all that may arrive."""
    return [Held(memory, 1000 + at, 84 * MIB // number) for at in range(number)]


@pytest.mark.parametrize("number", [12, 13, 40, 500])
@pytest.mark.parametrize("body", [BODY, 40 * MIB])
def test_a_newcomer_gets_in_whatever_a_number_of_strangers_hold(number: int, body: int) -> None:
    clock = Clock()
    memory = MemoryBudget(SIZE, 64 * MIB, clock=clock)
    strangers = of_strangers(memory, number)
    newcomer = MemoryReservation(memory, 7)
    clock.now_s += 0.9
    with pytest.raises(Overloaded):  # they may be as honest, and have sent faster
        newcomer.grow_to(BODY)
    clock.now_s += 60
    for size in range(64 * KIB, body + 1, 64 * KIB):
        newcomer.grow_to(size)
    given_up = [each for each in strangers if each.error is not None]
    assert len(given_up) == -(-body // (84 * MIB // number))  # no more than it needs
    assert str(given_up[0].error) == (
        "the server gave this request up for another caller's: it comes, or its response is read,"
        " at less than 262144 bytes a second, and requests and responses take most of the"
        f" {SIZE} bytes that the server holds of them; send it again"
    )


def test_strangers_that_send_a_byte_now_and_then_are_as_slow() -> None:
    clock = Clock()
    memory = MemoryBudget(SIZE, 64 * MIB, clock=clock)
    strangers = [Held(memory, 1000 + at, 84 * MIB // 12 - 100) for at in range(12)]
    for second in range(60):
        clock.now_s += 1
        for stranger in strangers:
            stranger.reservation.grow_to(84 * MIB // 12 - 99 + second)
    newcomer = MemoryReservation(memory, 7)
    newcomer.grow_to(BODY)
    assert sum(each.error is not None for each in strangers) == 1


def test_strangers_throw_out_no_body_that_comes_faster_than_that() -> None:
    clock = Clock()
    memory = MemoryBudget(SIZE, 64 * MIB, clock=clock)
    honest = Held(memory, 7, 20 * MIB)
    for _ in range(100):
        clock.now_s += 1
        honest.reservation.grow_to(honest.reservation.size + 257 * KIB)
    for at in range(500):
        clock.now_s += 0.01
        with suppress(Overloaded):
            Held(memory, 1000 + at, MIB)
    assert memory.held_bytes > 83 * MIB
    assert honest.error is None


def test_strangers_throw_out_no_body_of_who_holds_little() -> None:
    """A slow body below half of an equal share stays, however many others stand still."""
    clock = Clock()
    memory = MemoryBudget(SIZE, 64 * MIB, clock=clock)
    honest = Held(memory, 7, 2 * MIB)  # an equal share of 14 is 6 MiB
    strangers = [Held(memory, 1000 + at, 82 * MIB // 12) for at in range(12)]
    for at in range(30):
        clock.now_s += 30
        Held(memory, 2000 + at, BODY)
    assert honest.error is None
    assert all(each.error is not None for each in strangers)


def test_the_slowest_goes_first() -> None:
    """A body that comes slowly, but faster than those of the strangers, stays."""
    clock = Clock()
    memory = MemoryBudget(SIZE, 64 * MIB, clock=clock)
    strangers = of_strangers(memory, 12)[:11]
    strangers[-1].reservation.close()
    honest = Held(memory, 7, KIB)
    for _ in range(60):
        clock.now_s += 1
        honest.reservation.grow_to(honest.reservation.size + 120 * KIB)
    taken = [Held(memory, 2000 + at, BODY) for at in range(5)]
    assert honest.error is None
    assert all(each.error is None for each in taken)
    assert sum(each.error is not None for each in strangers) >= 4


def test_a_response_that_is_read_is_not_slow() -> None:
    clock = Clock()
    memory = MemoryBudget(SIZE, 64 * MIB, clock=clock)
    read, unread = (Held(memory, flow, 0) for flow in (1, 2))
    for each in (read, unread):
        each.reservation.count(40 * MIB)
    for _ in range(200):
        clock.now_s += 1
        read.reservation.count(read.reservation.size - 100 * KIB)
    Held(memory, 3, 42 * MIB)
    assert (read.error, unread.error is not None) == (None, True)


def test_what_is_sent_again_over_a_connection_is_young_again() -> None:
    clock = Clock()
    memory = MemoryBudget(SIZE, 64 * MIB, clock=clock)
    strangers = of_strangers(memory, 12)
    clock.now_s += 500
    for each in strangers:
        each.reservation.release()
        each.reservation.grow_to(BODY)
    with pytest.raises(Overloaded):
        MemoryReservation(memory, 7).grow_to(BODY)
    assert not any(each.error for each in strangers)


def test_the_only_body_of_the_largest_holder_is_not_given_up_while_it_is_young() -> None:
    memory = MemoryBudget(800, body_bytes=400, clock=lambda: 0.9)
    held = [Held(memory, 1, 400), *(Held(memory, 2 + at, 60) for at in range(5))]
    with pytest.raises(Overloaded, match="all of the memory"):
        MemoryReservation(memory, 9).grow_to(10)
    assert not any(each.error for each in held)


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


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "asgi"])
@on_loop
async def test_a_number_of_addresses_do_not_shut_others_out(fast: bool) -> None:
    """Each held less than twice what a newcomer brings, and so nothing was given up for one."""
    clock = Clock()
    async with (
        edge(Wide, server={"max_body_mib": 1, "max_bodies_mib": 8}) as it,
        serving(it, fast=fast) as site,
        AsyncExitStack() as stack,
    ):
        memory = it.view.memory
        memory.clock = clock
        held = []
        for number in range(36):
            caller = await hold(site, stack, (f"127.0.1.{number + 1}", 0))
            await caller.send(ROW_HEAD + ROW[:200_000])
            held.append(caller)
            await until(lambda: memory.held_bytes == 200_000 * len(held), "it is held")
        other = await hold(site, stack, OTHER)
        await other.send(ROW_HEAD + ROW[:600_000])
        assert (await other.answer()).refused == (503, "overloaded")
        clock.now_s += 5
        another = await hold(site, stack, ("127.0.0.5", 0))
        await another.send(ROW_HEAD + ROW[:600_000])
        answer = await held[0].answer()
        assert answer.refused == (503, "overloaded")
        assert "at less than 262144 bytes a second" in answer.object["error"]
        await another.send(ROW[600_000:])
        assert (await another.answer()).status == 200
        for caller in held[-4:]:
            await caller.send(ROW[200_000:])
            assert (await caller.answer()).status == 200


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
