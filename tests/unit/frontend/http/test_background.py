"""The threads beside the loop: callers take turns, and scrapes wait for nobody's request."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from batchpool.core.errors import Overloaded
from batchpool.frontend.http import background as module
from batchpool.frontend.http import memory_budget
from batchpool.frontend.http.background import BackgroundThread
from batchpool.frontend.http.memory_budget import MemoryBudget, MemoryReservation
from tests.unit.frontend.calls import affine
from tests.unit.frontend.frontend_double import edge
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine
from tests.unit.garbage import left_garbage

INFER = "/v2/models/affine/infer"


@on_loop
async def test_callers_take_turns() -> None:
    background = BackgroundThread()
    begun, go_on, order = threading.Event(), threading.Event(), []

    def hold() -> None:
        begun.set()
        go_on.wait(30)

    first = background.run(1, hold)
    rest = [background.run(1, order.append, f"first {i}") for i in range(4)]
    rest += [background.run(flow, order.append, f"caller {flow}") for flow in (2, 3)]
    await asyncio.to_thread(begun.wait, 30)
    go_on.set()
    await asyncio.gather(first, *rest)
    assert order == ["first 0", "caller 2", "caller 3", "first 1", "first 2", "first 3"]
    background.close()


@on_loop
async def test_a_thread_with_a_share_pauses_after_each_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter(range(0, 9000, 100))  # each piece takes 100 s
    monkeypatch.setattr(module, "time", SimpleNamespace(thread_time=lambda: next(clock)))
    later: list[tuple[float, Callable[[], None]]] = []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "call_later", lambda after_s, call: later.append((after_s, call)))
    background = BackgroundThread(share=0.25)
    made: list[int] = []
    await background.run(1, made.append, 1)
    second = background.run(2, made.append, 2)
    await asyncio.sleep(0)
    assert (made, [after_s for after_s, _ in later]) == ([1], [300.0])
    later.pop()[1]()
    await second
    assert made == [1, 2]
    background.close()
    later.pop()[1]()  # nothing waits, and nothing begins any more


@on_loop
async def test_a_call_that_may_not_begin_or_that_nobody_awaits_is_not_made() -> None:
    background = BackgroundThread()
    made: list[int] = []

    def refuse() -> None:
        raise Overloaded("no", 1000)

    left = background.run(1, made.append, 1)
    waits = background.run(1, made.append, 2)
    waits.cancel()
    refused = background.run(1, made.append, 3, begin=refuse)
    last = background.run(1, made.append, 4, begin=lambda: made.append(0))
    with pytest.raises(Overloaded):
        await refused
    await asyncio.gather(left, last)
    assert sorted(made) == [0, 1, 4]
    background.close()
    assert background.run(1, made.append, 5).cancelled()


@on_loop
async def test_a_call_that_may_not_begin_leaves_nothing_to_the_garbage_collector() -> None:
    """Its arguments are a body of up to 64 MiB."""
    background = BackgroundThread()

    def refuse() -> None:
        raise Overloaded("no", 1000)

    async def be_refused() -> None:
        first = background.run(1, len, b"")
        with pytest.raises(Overloaded):
            await background.run(1, len, bytearray(8), begin=refuse)
        await first
        await background.run(1, len, b"")

    await be_refused()
    with left_garbage() as left:
        await be_refused()
    assert left == []
    background.close()


@on_loop
async def test_each_piece_of_work_stands_between_two_heartbeats() -> None:
    seen: list[str] = []
    background = BackgroundThread(lambda: seen.append("beat"))
    await background.run(1, seen.append, "work")
    with pytest.raises(ZeroDivisionError):
        await background.run(1, lambda: 1 // 0)
    assert seen == ["beat", "work", "beat", "beat", "beat"]
    background.close()


@on_loop
async def test_what_is_queued_at_the_end_is_cancelled_and_not_made() -> None:
    background = BackgroundThread()
    begun, go_on = threading.Event(), threading.Event()
    made: list[int] = []

    def hold() -> None:
        begun.set()
        go_on.wait(30)

    runs = background.run(1, hold)
    queued = [background.run(flow, made.append, flow) for flow in (1, 2)]
    await asyncio.to_thread(begun.wait, 30)
    background.close()
    assert [future.cancelled() for future in queued] == [True, True]
    go_on.set()
    await runs
    assert made == []


def test_a_budget_that_becomes_smaller_or_larger_is_full_or_not_at_once() -> None:
    budget = MemoryBudget(100)
    budget.count(1, 10)
    budget.check()
    budget.learn(10, 0)
    with pytest.raises(Overloaded, match="10 bytes"):
        budget.check()
    budget.learn(11, 0)
    budget.check()
    budget.give_back(1, 10)
    assert (budget.held_bytes, budget.held_for(1)) == (0, 0)


@on_loop
async def test_a_scrape_does_not_wait_for_bodies_that_are_decoded() -> None:
    """C30: /metrics is answered beside them."""
    async with edge(Affine) as it:
        begun, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            begun.set()
            go_on.wait(30)

        held = it.view.background.run(7, hold)
        await asyncio.to_thread(begun.wait, 30)
        body = gzip.compress(json.dumps(affine(1)).encode() + b" " * 1_000_000)
        headers = {"Content-Encoding": "gzip"}
        waits = asyncio.create_task(it.http.post(INFER, content=body, headers=headers))
        for _ in range(3):
            answer = await it.http.get("/metrics")
            assert answer.status_code == 200
            assert "batchpool_" in answer.text
        assert not waits.done()
        go_on.set()
        await held
        assert (await waits).status_code == 200


@on_loop
async def test_decoded_bytes_count_while_they_are_decoded() -> None:
    """A bomb counts as what it may become, from the moment that the thread takes it."""
    async with edge(Affine, server={"max_body_mib": 1, "max_bodies_mib": 2}) as it:
        memory, seen = it.view.memory, []
        endpoint = it.view.endpoints.find("affine")
        parse = endpoint.parse_long

        def noted(*arguments: Any) -> Any:
            seen.append(memory.held_bytes)
            return parse(*arguments)

        endpoint.parse_long = noted  # type: ignore[method-assign]
        body = gzip.compress(json.dumps(affine(1)).encode() + b" " * 900_000)
        headers = {"Content-Encoding": "gzip"}
        for _ in range(2):
            answer = await it.http.post(INFER, content=body, headers=headers)
            assert answer.status_code == 200
        assert seen == [len(body) + min(1032 * len(body), 1 << 20)] * 2
        assert memory.held_bytes == 0
        others = MemoryReservation(memory)
        others.grow_to((2 << 20) * 7 // 8 - 1000)
        answer = await it.http.post(INFER, content=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (503, "overloaded")
        others.release()
        assert memory.held_bytes == 0
        await until(lambda: endpoint.lane_client.allocator.claimed == 0, "all slots are free")


# -- shares of the memory ----------------------------------------------------------------------


def test_a_caller_leaves_room_for_newcomers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_budget, "_RESERVE", 10**9)
    memory = MemoryBudget(1000, body_bytes=100)
    first, second, third = (MemoryReservation(memory, flow) for flow in (1, 2, 3))
    first.grow_to(800)
    with pytest.raises(Overloaded, match="this caller's requests and responses take more"):
        first.grow_to(801)
    second.grow_to(100)  # one body of the largest size is nobody's too much
    with pytest.raises(Overloaded, match="more than its share of the 1000 bytes"):
        MemoryReservation(memory, 2).grow_to(61)
    third.grow_to(90)
    with pytest.raises(Overloaded, match="all of the memory"):
        MemoryReservation(memory, 4).grow_to(11)
    assert [memory.held_for(flow) for flow in (1, 2, 3, 4)] == [800, 100, 90, 0]
    for reservation in (first, second, third):
        reservation.release()
    assert memory.held_bytes == memory.held_for(1) == 0


def test_what_cannot_be_refused_is_counted_and_fills_the_budget() -> None:
    memory = MemoryBudget(100)
    reservation = MemoryReservation(memory, 1)
    reservation.count(150)
    assert (memory.held_bytes, memory.is_full) == (150, True)
    with pytest.raises(Overloaded, match="100 bytes"):
        memory.check()
    reservation.count(50)
    assert (memory.held_bytes, memory.is_full) == (50, False)
    memory.check()
    memory.learn(50, 10)
    assert memory.is_full
    reservation.release()
    assert (memory.held_bytes, memory.is_full) == (0, False)


def test_a_thread_that_computes_gives_the_interpreter_back_soon() -> None:
    """Each turn of the loop waits for it: 5 ms where Python's own interval holds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    try:
        BackgroundThread().close()
        assert sys.getswitchinterval() == pytest.approx(0.0005, abs=2e-6)
        sys.setswitchinterval(0.0001)
        BackgroundThread().close()
        assert sys.getswitchinterval() == pytest.approx(0.0001, abs=2e-6)
    finally:
        sys.setswitchinterval(before)
