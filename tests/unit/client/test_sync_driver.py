"""The steps of bp.Client's calls, in one thread: what another does happens while it waits."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from batchpool.client.call import Call
from batchpool.client.infer import infer, run_blocking
from batchpool.client.pending_request import PendingRequest
from batchpool.client.sync_driver import ThreadDriver
from batchpool.core.errors import (
    DeadlineExceeded,
    Draining,
    ModelError,
    Status,
)
from batchpool.core.layout.states import LaneGate
from batchpool.core.scheduler.queue import QueueColumn
from tests.unit.client.lane_clients import MS, NOW, S, answer, new_lane_client, rows_of, send
from tests.unit.client.scene import CountedCondition, Scene, is_rung


def sent(
    driver: ThreadDriver, scene: Scene, n: int = 1, **options: Any
) -> tuple[Call, deque[PendingRequest]]:
    """A call of n rows that has been submitted, and what of it is under way."""
    call, under_way = scene.call(n, **options), deque[PendingRequest]()
    assert run_blocking(driver.submit(scene.lane_client, call.rows, call, under_way))
    return call, under_way


def outputs(
    driver: ThreadDriver, scene: Scene, call: Call, under_way: deque[PendingRequest]
) -> list[list[float]]:
    found = run_blocking(driver.result(scene.lane_client, under_way, call))["y"]
    values: list[list[float]] = found.tolist()
    return values


# -- submit and result ----------------------------------------------------------------------


def test_a_call_is_published_with_a_ring_and_its_result_frees_its_slots(
    driver: ThreadDriver, scene: Scene
) -> None:
    call, under_way = sent(driver, scene, 2)
    assert (len(under_way), scene.rings, driver.reaper.torn) == (1, 1, False)
    scene.waits.steps.append(scene.answer)
    assert outputs(driver, scene, call, under_way) == answer(2)
    assert (list(under_way), scene.lane_client.allocator.claimed, driver.reaper.torn) == (
        [],
        0,
        False,
    )
    assert not is_rung(scene.session.bell)
    assert scene.clock() == NOW, "the bell ended the wait"


@pytest.mark.parametrize("kind", ["call", "future"])
def test_rows_are_there_with_their_times_and_priority_when_the_batcher_is_rung(
    driver: ThreadDriver, scene: Scene, kind: str
) -> None:
    scene.waits.holds = True  # the thread of the future lets no time pass
    seen: list[list[int]] = []
    columns = [QueueColumn.SUBMIT_NS, QueueColumn.DEADLINE_NS, QueueColumn.PRIORITY]
    scene.at_ring = lambda: seen.append(scene.pool.admit()[columns].ravel().tolist())
    if kind == "call":
        sent(driver, scene, priority=3)
    else:
        driver.submit_future(scene.lane_client, scene.call(priority=3)).cancel()
    assert seen[0] == [NOW, NOW + 2 * S, 3]


def test_a_cancel_is_there_when_the_batcher_is_rung(driver: ThreadDriver, scene: Scene) -> None:
    seen: list[int] = []
    _, under_way = sent(driver, scene)
    scene.at_ring = lambda: seen.append(scene.lane_client.lane.cancels.get())
    driver.drop(scene.lane_client, under_way)
    assert seen == [1]


@pytest.mark.parametrize("priority", [1, 0])
def test_a_raised_priority_has_the_last_slot(
    driver: ThreadDriver, scene: Scene, priority: int
) -> None:
    sent(driver, scene, 9)
    call = scene.call(priority=priority)
    assert run_blocking(driver.submit(scene.lane_client, call.rows, call, deque())) == priority


def test_a_raised_priority_waits_for_the_room_that_it_may_have(
    driver: ThreadDriver, scene: Scene
) -> None:
    sent(driver, scene, 9)
    run_blocking(driver.wait_for_room(scene.lane_client, rows_of(1), scene.call(priority=1)))
    assert scene.clock() == NOW


def test_a_wait_looks_each_half_second_and_ends_with_its_deadline(
    driver: ThreadDriver, scene: Scene
) -> None:
    call, under_way = sent(driver, scene, timeout_s=1.2)
    with pytest.raises(DeadlineExceeded, match=r"did not answer within 1\.2 s"):
        outputs(driver, scene, call, under_way)
    assert scene.waits.until_ns == [NOW + 500 * MS, NOW + S, NOW + 1200 * MS]


def test_a_completion_that_nobody_rang_for_is_found_by_the_next_look(
    driver: ThreadDriver, scene: Scene
) -> None:
    call, under_way = sent(driver, scene)
    scene.waits.steps.append(scene.pool.finish_all)
    assert outputs(driver, scene, call, under_way) == answer(1)
    assert scene.clock() == NOW + 500 * MS


def test_a_call_follows_the_thread_that_waits_on_the_bell(
    driver: ThreadDriver, scene: Scene
) -> None:
    driver.reaper.changed = CountedCondition(driver.reaper.lock, scene.waits)
    call, under_way = sent(driver, scene, timeout_s=0.7)
    driver.reaper.busy = True
    scene.waits.steps += [lambda: None, scene.answer_unheard]
    assert outputs(driver, scene, call, under_way) == answer(1)
    late, under_way = sent(driver, scene, timeout_s=0.7)
    with pytest.raises(DeadlineExceeded):
        outputs(driver, scene, late, under_way)
    driver.reaper.busy = False
    assert scene.waits.until_ns == [NOW + 500 * MS] * 3 + [NOW + 700 * MS]


def test_whoever_follows_hears_of_completions_and_of_the_end(
    driver: ThreadDriver, scene: Scene
) -> None:
    reaper = driver.reaper
    changed = reaper.changed = CountedCondition(reaper.lock, scene.waits)
    call, under_way = sent(driver, scene)
    scene.waits.steps.append(scene.answer)
    outputs(driver, scene, call, under_way)
    assert changed.words == 1
    with reaper.lock:
        reaper.lose(scene.session)
    assert changed.words == 2


def test_rows_that_failed_leave_the_session_and_its_room_as_they_were(
    driver: ThreadDriver, scene: Scene
) -> None:
    call, under_way = sent(driver, scene)
    scene.pool.admit()
    scene.pool.finish(*scene.pool.rows, status=Status.MODEL_ERROR, text="no")
    with pytest.raises(ModelError, match="no"):
        outputs(driver, scene, call, under_way)
    assert (scene.lane_client.allocator.claimed, driver.reaper.torn) == (0, False)


def test_a_lane_that_is_full_is_waited_for_unless_its_gate_is_shut(
    driver: ThreadDriver, scene: Scene
) -> None:
    sent(driver, scene, 9)
    call, under_way = scene.call(), deque[PendingRequest]()
    lane_client = scene.lane_client
    assert not run_blocking(driver.submit(lane_client, call.rows, call, under_way))
    lane_client.lane.gate.set(int(LaneGate.DRAINING))
    with pytest.raises(Draining):
        run_blocking(driver.submit(lane_client, call.rows, call, under_way))
    assert not under_way


def test_a_refused_submission_does_not_end_the_session(driver: ThreadDriver, scene: Scene) -> None:
    scene.lane_client.lane.gate.set(int(LaneGate.DRAINING))
    call = scene.call()
    with pytest.raises(Draining):
        run_blocking(driver.submit(scene.lane_client, call.rows, call, deque()))
    with pytest.raises(Draining):
        driver.submit_future(scene.lane_client, call)
    assert not driver.reaper.torn
    assert driver.open_lane_client("m") is scene.lane_client
    assert len(scene.sessions) == 1


# -- room -----------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["result", "error", "drop"])
def test_room_that_another_call_makes_ends_the_wait_for_it(
    driver: ThreadDriver, scene: Scene, end: str
) -> None:
    full, under_way = sent(driver, scene, 9)
    scene.pool.admit()
    status = Status.MODEL_ERROR if end == "error" else Status.OK
    scene.pool.finish(*scene.pool.rows, status=status)
    lane_client = scene.lane_client
    lane_client.reap(NOW)

    def make_room() -> None:
        if end == "drop":
            driver.drop(lane_client, under_way)
        elif end == "error":
            with pytest.raises(ModelError):
                outputs(driver, scene, full, under_way)
        else:
            outputs(driver, scene, full, under_way)

    scene.waits.steps.append(make_room)
    run_blocking(driver.wait_for_room(lane_client, rows_of(9), scene.call(9)))
    assert lane_client.may_claim(9)
    assert scene.clock() == NOW, "it was told"
    assert not is_rung(scene.session.self_bell)
    with driver.reaper.lock:
        driver.reaper.made_room()
    assert not is_rung(scene.session.self_bell), "nobody waits for room any more"


def test_whoever_follows_hears_of_room(driver: ThreadDriver, scene: Scene) -> None:
    sent(driver, scene, 9)
    reaper = driver.reaper
    changed = reaper.changed = CountedCondition(reaper.lock, scene.waits)
    reaper.busy = True
    told: list[int] = []

    def tell() -> None:
        reaper.made_room()
        told.append(changed.words)

    scene.waits.steps.append(tell)
    with pytest.raises(DeadlineExceeded):
        run_blocking(driver.wait_for_room(scene.lane_client, rows_of(1), scene.call(timeout_s=0.2)))
    reaper.busy = False
    assert told == [1]


def test_the_wait_for_room_ends_with_the_calls_deadline(driver: ThreadDriver, scene: Scene) -> None:
    sent(driver, scene, 9)
    call = scene.call(3, timeout_s=0.7)
    with pytest.raises(DeadlineExceeded, match="no room for 3 rows of 'm' in time"):
        run_blocking(driver.wait_for_room(scene.lane_client, rows_of(3), call))
    assert scene.clock() == NOW + 700 * MS


def test_windows_of_one_call_take_the_room_that_its_own_results_make(
    driver: ThreadDriver, scene: Scene
) -> None:
    """Two windows of four rows fit at a time."""
    scene.waits.steps += [scene.answer, scene.answer, scene.answer]
    found = run_blocking(infer(driver, "m", Call({"x": rows_of(20).tensors["x"]})))
    assert found["y"].tolist() == answer(20)
    assert scene.clock() == NOW
    assert (scene.lane_client.allocator.claimed, scene.rings) == (0, 5)


# -- drop -----------------------------------------------------------------------------------


def test_what_is_dropped_is_freed_or_cancelled_with_a_ring(
    driver: ThreadDriver, scene: Scene
) -> None:
    lane_client = scene.lane_client
    _, done = sent(driver, scene, 3)
    scene.answer_unheard()
    _, running = sent(driver, scene, 2)
    rings = scene.rings
    driver.drop(lane_client, [*done, *running])
    assert lane_client.allocator.claimed == 2, "those of the rows that run"
    assert lane_client.lane.cancel[list(running[0].slots)].tolist() == [1, 1]
    assert (scene.rings, driver.reaper.torn) == (rings + 1, False)


def test_rows_of_a_lane_that_is_not_driven_are_not_touched(
    driver: ThreadDriver, scene: Scene
) -> None:
    other = new_lane_client()
    pending = send(other)
    driver.drop(other, [pending])
    assert (pending.abandoned, scene.rings) == (False, 0)
