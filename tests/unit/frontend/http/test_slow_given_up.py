"""Bodies that come slowly are given up for others, however many addresses they come from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress

import pytest

from batchpool.core.errors import Overloaded
from batchpool.frontend.http.memory_budget import MemoryBudget, MemoryReservation
from tests.unit.frontend.frontend_double import edge, serving
from tests.unit.frontend.http.test_memory_given_up import (
    MIB,
    OTHER,
    ROW,
    ROW_HEAD,
    Held,
    hold,
)
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Wide


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
    for _ in range(60):
        clock.now_s += 1
        honest.reservation.grow_to(honest.reservation.size + 700 * KIB)
    for at in range(500):
        clock.now_s += 0.005
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


def test_a_crowd_that_is_refused_does_not_look_at_everything_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, looks = Clock(), 0
    memory = MemoryBudget(SIZE, 64 * MIB, clock=clock)
    strangers = of_strangers(memory, 40)
    look = memory._of_holders

    def counted() -> Iterator[MemoryReservation]:
        nonlocal looks
        looks += 1
        return look()

    monkeypatch.setattr(memory, "_of_holders", counted)
    for _ in range(100):
        with pytest.raises(Overloaded):
            MemoryReservation(memory, 7).grow_to(BODY)
    assert looks == 1
    clock.now_s += 0.06
    with pytest.raises(Overloaded):
        MemoryReservation(memory, 7).grow_to(BODY)
    assert looks == 2
    clock.now_s += 5
    MemoryReservation(memory, 7).grow_to(BODY)
    assert sum(each.error is not None for each in strangers) == 4


def test_nobody_keeps_others_from_what_he_holds_himself() -> None:
    """A caller whose own bodies alone are slow looks in vain, and the next one does not."""
    clock = Clock()
    memory = MemoryBudget(SIZE, 64 * MIB, clock=clock)
    stranger = Held(memory, 1, 60 * MIB)
    clock.now_s += 5
    with pytest.raises(Overloaded):
        MemoryReservation(memory, 1).grow_to(40 * MIB)
    assert stranger.error is None
    MemoryReservation(memory, 7).grow_to(40 * MIB)
    assert stranger.error is not None


def test_a_body_that_came_fast_and_stands_still_since_then_is_slow() -> None:
    clock = Clock()
    memory = MemoryBudget(SIZE, 64 * MIB, clock=clock)
    stranger = Held(memory, 1, 60 * MIB)
    for still_s, given_up in ((4.9, False), (0.2, True)):
        clock.now_s += still_s
        with suppress(Overloaded):
            MemoryReservation(memory, 7).grow_to(40 * MIB)
        assert (stranger.error is not None) is given_up


def test_a_body_that_came_fast_and_drips_since_then_is_slow() -> None:
    clock = Clock()
    memory = MemoryBudget(SIZE, 64 * MIB, clock=clock)
    stranger = Held(memory, 1, 60 * MIB)
    for at in range(10):
        clock.now_s += 1
        stranger.reservation.grow_to(60 * MIB + at + 1)
    MemoryReservation(memory, 7).grow_to(40 * MIB)
    assert stranger.error is not None


def test_a_pause_of_seconds_makes_a_fast_body_not_slow() -> None:
    clock = Clock()
    memory = MemoryBudget(SIZE, 64 * MIB, clock=clock)
    honest = Held(memory, 1, 10 * MIB)
    for _ in range(20):
        for pause_s in (0.5, 0.5, 3):
            clock.now_s += pause_s
            with suppress(Overloaded):
                MemoryReservation(memory, 7).grow_to(80 * MIB)
            honest.reservation.grow_to(honest.reservation.size + 512 * KIB)
    assert honest.error is None


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
