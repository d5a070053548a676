"""The names of one origin share its turns of the thread, and its share of the memory."""

from __future__ import annotations

import asyncio
import threading

import pytest

from batchpool.core.errors import Overloaded
from batchpool.core.flows import named_flow
from batchpool.frontend.http import memory_budget
from batchpool.frontend.http.background import BackgroundThread
from batchpool.frontend.http.memory_budget import MemoryBudget, MemoryReservation
from tests.unit.frontend.loops import on_loop

MANY, OTHER = 7, 8


@on_loop
async def test_a_new_name_for_each_piece_of_work_is_one_caller() -> None:
    background = BackgroundThread()
    begun, go_on, order = threading.Event(), threading.Event(), []

    def hold() -> None:
        begun.set()
        go_on.wait(30)

    first = background.run(OTHER, hold)
    rest = [background.run(named_flow(MANY, i), order.append, f"name {i}") for i in range(3)]
    rest += [background.run(OTHER, order.append, f"other {i}") for i in range(3)]
    rest.append(background.run(named_flow(MANY, 0), order.append, "name 0 again"))
    await asyncio.to_thread(begun.wait, 30)
    go_on.set()
    await asyncio.gather(first, *rest)
    turns = ["name 0", "other 0", "name 1", "other 1", "name 2", "other 2", "name 0 again"]
    assert order == turns
    background.close()


@on_loop
async def test_what_is_queued_under_names_is_cancelled_at_the_end() -> None:
    background = BackgroundThread()
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        go_on.wait(30)

    background.run(OTHER, hold)
    await asyncio.to_thread(begun.wait, 30)
    queued = [background.run(named_flow(MANY, i), int) for i in (1, 2, 1)]
    background.close()
    go_on.set()
    assert all(future.cancelled() for future in queued)


def test_names_do_not_hold_more_of_the_memory_than_one_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_budget, "_RESERVE", 10**9)
    memory = MemoryBudget(1000, body_bytes=10)
    held = [MemoryReservation(memory, named_flow(MANY, number)) for number in range(8)]
    for reservation in held:
        reservation.grow_to(98)
    with pytest.raises(Overloaded, match="this caller's requests and responses take more"):
        MemoryReservation(memory, named_flow(MANY, 99)).grow_to(98)
    MemoryReservation(memory, OTHER).grow_to(98)
    assert memory.held_for(MANY) == memory.held_for(named_flow(MANY, 5)) == 8 * 98
    for reservation in held:
        reservation.release()
    assert (memory.held_for(MANY), memory.held_bytes) == (0, 98)
