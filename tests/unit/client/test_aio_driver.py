"""The steps of bp.AsyncClient's calls, on a loop that lives by the test's clock."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from batchpool.client.aio_driver import LoopDriver
from batchpool.client.call import Call
from batchpool.client.infer import infer
from batchpool.client.loop import ClientLoop
from batchpool.client.pending_request import PendingRequest
from batchpool.core.errors import DeadlineExceeded, Draining, Moved, Overloaded, PoolStopped
from batchpool.core.layout.states import LaneGate
from batchpool.core.scheduler.queue import QueueColumn
from tests.unit.client.lane_clients import NOW, S, answer, new_lane_client, rows_of
from tests.unit.client.scene import Scene
from tests.unit.control.packets import receive_form
from tests.unit.garbage import left_garbage
from tests.unit.inprocess.clock import run, turns


def opened(scene: Scene) -> LoopDriver:
    """A driver with a live session."""
    driver = LoopDriver("here", 10.0, pinned=False)
    scene.connect()
    driver.client_loop = ClientLoop(scene.session)
    return driver


def driving(scene: Scene, test: Callable[[LoopDriver], Coroutine[Any, Any, None]]) -> None:
    """Run a test on the loop of the test's clock."""

    async def main() -> None:
        driver = opened(scene)
        await test(driver)
        await driver.close()
        await turns(3)

    run(scene.clock, main())


def started(driver: LoopDriver, n: int, **options: Any) -> asyncio.Task[dict[str, Any]]:
    call = Call({"x": rows_of(n).tensors["x"]}, **{"timeout_s": 2.0, **options})
    return asyncio.create_task(infer(driver, "m", call))


def error_of(task: asyncio.Task[Any]) -> BaseException | None:
    assert task.done()
    return task.exception()


# -- calls ----------------------------------------------------------------------------------


def test_a_call_and_its_answer(scene: Scene) -> None:
    async def test(driver: LoopDriver) -> None:
        task = started(driver, 2)
        await turns(3)
        assert scene.rings == 1
        scene.answer()
        await turns(4)
        assert task.result()["y"].tolist() == answer(2)
        assert scene.lane_client.allocator.claimed == 0

    driving(scene, test)


def test_a_result_is_under_way_no_more(scene: Scene) -> None:
    async def test(driver: LoopDriver) -> None:
        call, under_way = scene.call(), deque[PendingRequest]()
        assert await driver.submit(scene.lane_client, call.rows, call, under_way)
        assert len(under_way) == 1
        await turns(1)
        scene.answer()
        await driver.result(scene.lane_client, under_way, call)
        assert not under_way

    driving(scene, test)


def test_answered_calls_are_freed_without_the_garbage_collector(scene: Scene) -> None:
    async def test(driver: LoopDriver) -> None:
        async def call() -> None:
            task = started(driver, 2)
            await turns(3)
            scene.answer()
            await turns(4)
            assert task.result()["y"].tolist() == answer(2)

        await call()
        with left_garbage() as left:
            await call()
        assert left == []

    driving(scene, test)


def test_a_raised_priority_is_passed_on_and_has_the_last_slot(scene: Scene) -> None:
    async def test(driver: LoopDriver) -> None:
        first, raised, other = (started(driver, n, priority=p) for n, p in ((9, 0), (1, 3), (1, 0)))
        await turns(3)
        assert scene.lane_client.allocator.claimed == 10
        rows = scene.pool.admit()
        assert rows[QueueColumn.PRIORITY].tolist() == [0] * 9 + [3]
        assert set(rows[QueueColumn.SUBMIT_NS].tolist()) == {NOW}
        assert set(rows[QueueColumn.DEADLINE_NS].tolist()) == {NOW + 2 * S}
        for task in (first, raised, other):
            task.cancel()
        await turns(3)

    driving(scene, test)


def test_a_call_waits_for_room_and_is_then_sent(scene: Scene) -> None:
    async def test(driver: LoopDriver) -> None:
        first, second = started(driver, 9), started(driver, 9)
        await turns(3)
        assert (scene.rings, scene.lane_client.allocator.claimed) == (1, 9)
        scene.answer()
        await turns(6)
        assert (first.done(), second.done(), scene.rings) == (True, False, 2)
        scene.answer()
        await turns(6)
        assert second.result()["y"].tolist() == answer(9)

    driving(scene, test)


def test_a_call_that_does_not_wait_is_refused_at_once(scene: Scene) -> None:
    async def test(driver: LoopDriver) -> None:
        first, second = started(driver, 9), started(driver, 1, wait_for_room=False)
        await turns(3)
        assert isinstance(error_of(second), Overloaded)
        first.cancel()
        await turns(3)

    driving(scene, test)


def test_a_full_lane_whose_gate_is_shut_is_not_waited_for(scene: Scene) -> None:
    async def test(driver: LoopDriver) -> None:
        first = started(driver, 9)
        await turns(3)
        scene.lane_client.lane.gate.set(int(LaneGate.DRAINING))
        second = started(driver, 1)
        await turns(3)
        assert isinstance(error_of(second), Draining)
        first.cancel()
        await turns(3)

    driving(scene, test)


def test_the_wait_for_room_ends_with_the_calls_deadline(scene: Scene) -> None:
    async def test(driver: LoopDriver) -> None:
        first, second = started(driver, 9), started(driver, 1, timeout_s=0.3)
        await asyncio.sleep(0.29)
        assert not second.done()
        await asyncio.sleep(0.02)
        error = error_of(second)
        assert isinstance(error, DeadlineExceeded)
        assert str(error) == "model 'm' did not answer within 0.3 s"
        first.cancel()
        await turns(3)

    driving(scene, test)


def test_a_cancelled_call_cancels_its_rows_and_rings(scene: Scene) -> None:
    async def test(driver: LoopDriver) -> None:
        task = started(driver, 2)
        await turns(3)
        task.cancel()
        await turns(3)
        assert task.cancelled()
        assert (scene.rings, scene.lane_client.lane.cancel.tolist()[:2]) == (2, [1, 1])
        scene.answer()
        await turns(3)
        assert scene.lane_client.allocator.claimed == 0

    driving(scene, test)


def test_what_is_finished_and_dropped_is_freed_and_what_runs_is_cancelled(scene: Scene) -> None:
    async def test(driver: LoopDriver) -> None:
        call, under_way = scene.call(2), deque[PendingRequest]()
        await driver.submit(scene.lane_client, call.rows, call, under_way)
        await turns(1)
        scene.answer()
        await turns(2)
        await driver.submit(scene.lane_client, call.rows, call, under_way)
        await turns(1)
        driver.drop(scene.lane_client, under_way)
        assert scene.lane_client.allocator.claimed == 2
        assert scene.lane_client.lane.cancel[list(under_way[1].slots)].tolist() == [1, 1]
        assert under_way[1].tag.cancelled()
        await turns(1)
        assert scene.rings == 3

    driving(scene, test)


def test_rows_of_an_ended_session_are_not_touched_when_they_are_dropped(scene: Scene) -> None:
    async def test(driver: LoopDriver) -> None:
        call, under_way = scene.call(2), deque[PendingRequest]()
        await driver.submit(scene.lane_client, call.rows, call, under_way)
        old = scene.lane_client
        assert driver.client_loop is not None
        driver.client_loop.close()
        assert isinstance(under_way[0].tag.exception(), PoolStopped)
        driver.client_loop = ClientLoop(scene.connect())
        driver.drop(old, under_way)
        await turns(1)
        assert (scene.rings, old.lane.cancels.get()) == (0, 0)

    driving(scene, test)


# -- sessions -------------------------------------------------------------------------------


def test_calls_fail_when_the_pool_goes_away(scene: Scene) -> None:
    async def test(driver: LoopDriver) -> None:
        waits, runs = started(driver, 9), started(driver, 9)
        await turns(3)
        scene.stop()
        await turns(5)
        for task in (waits, runs):
            assert isinstance(error_of(task), PoolStopped)

    driving(scene, test)


def test_calls_fail_when_the_client_is_closed_and_none_begins(scene: Scene) -> None:
    async def test(driver: LoopDriver) -> None:
        runs, waits = started(driver, 9), started(driver, 9)
        await turns(3)
        lane_client = scene.lane_client
        await driver.close()
        await turns(5)
        for task in (waits, runs):
            assert isinstance(error_of(task), PoolStopped)
        assert scene.session.closed
        with pytest.raises(PoolStopped, match="this client is closed"):
            await driver.usable()
        call = scene.call()
        with pytest.raises(PoolStopped, match="this client is closed"):
            await driver.submit(lane_client, call.rows, call, deque())
        driver.leave_moved()

    driving(scene, test)


def test_a_lane_that_is_not_driven_takes_no_rows(scene: Scene) -> None:
    async def test(driver: LoopDriver) -> None:
        call, other = scene.call(), new_lane_client()
        with pytest.raises(PoolStopped):
            await driver.submit(other, call.rows, call, deque())
        other.lane.gate.set(int(LaneGate.MOVED))
        other.sees_move()
        with pytest.raises(Moved):
            await driver.submit(other, call.rows, call, deque())

    driving(scene, test)


def test_the_pool_is_told_of_a_moved_lane_that_is_left(scene: Scene) -> None:
    async def test(driver: LoopDriver) -> None:
        scene.lane_client.lane.gate.set(int(LaneGate.MOVED))
        assert scene.lane_client.sees_move()
        driver.leave_moved()
        assert receive_form(scene.session.theirs)[0] == {"op": "left", "serial": 7}

    driving(scene, test)
