"""Workers that are ready, and those that are to end: who is asked, killed, and named in the log."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any, cast

import pytest

from batchpool.control.process_messages import EndWorker, WorkerFailed, WorkerReady
from batchpool.core.errors import StartError
from batchpool.supervisor.children.child import Child
from batchpool.supervisor.children.worker_slot import WorkerSlot
from tests.unit.supervisor.fleet.fleet_scene import FleetScene, S
from tests.unit.supervisor.plan.test_diff import plan

LIMIT_S = 7


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[FleetScene]:
    """Models a and b with a worker each; both are warm."""
    server = {"frontends": 2, "stall_timeout_s": 0.4, "unload_timeout_s": LIMIT_S}
    scene = FleetScene(monkeypatch, plan("a", "b", server=server, max_batch=4))
    fleet = scene.fleet
    fleet.start_all()
    for worker_slot in fleet.workers:
        assert worker_slot.child is not None
        assert worker_slot.worker_segment is not None
        worker_slot.worker_segment.ready.set(1)
        fleet.workers.says(worker_slot.child, WorkerReady())
        scene.told(worker_slot.child)
    fleet.was_ready = True
    yield scene
    scene.close()


def child_of(worker_slot: WorkerSlot) -> Child:
    assert worker_slot.child is not None
    return worker_slot.child


def signals(worker_slot: WorkerSlot) -> list[int]:
    found: list[int] = cast(Any, child_of(worker_slot).process).signals
    return found


def give_batch(worker_slot: WorkerSlot) -> None:
    segment = worker_slot.worker_segment
    assert segment is not None
    segment.sq_producer().push_few([0])


def test_a_warm_worker_is_asked_and_one_that_loads_is_killed(scene: FleetScene) -> None:
    warm, loads = scene.fleet.workers.worker_slots
    loads.ready = False
    for _ in range(2):
        for worker_slot in (warm, loads):
            worker_slot.end(scene.now_ns)
    assert (scene.told(warm.child), signals(warm)) == ([EndWorker()], [])
    assert (scene.told(loads.child), set(signals(loads))) == ([], {signal.SIGKILL})
    assert (warm.serves, child_of(warm).state) == (False, "ending")


def test_a_worker_that_is_killed_already_is_not_asked(scene: FleetScene) -> None:
    worker_slot = scene.fleet.workers.worker_slots[0]
    child_of(worker_slot).terminate("was stuck in a batch")
    worker_slot.end(scene.now_ns)
    assert (scene.told(worker_slot.child), child_of(worker_slot).end_by_ns) == ([], 0)


@pytest.mark.parametrize("answered", [False, True])
def test_at_the_end_a_worker_with_rows_that_nobody_waits_for_is_killed(
    scene: FleetScene, answered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Where every row is answered, its queue may not be advanced yet."""
    busy, idle = scene.fleet.workers.worker_slots
    give_batch(busy)
    scene.fleet.end(answered=answered)
    assert signals(busy) == ([] if answered else [signal.SIGKILL])
    assert scene.told(busy.child) == ([EndWorker()] if answered else [])
    assert scene.told(idle.child) == [EndWorker()]
    assert [record.getMessage() for record in caplog.records] == (
        [] if answered else ["worker 0 of a (pid 13) has a batch still: killing it"]
    )


def test_the_end_kills_batcher_and_front_ends_and_misses_nobody(scene: FleetScene) -> None:
    fleet = scene.fleet
    others = [child for child in fleet.watched() if child is not None]
    assert len(others) == 3
    started = [*scene.children.started]
    fleet.end(answered=True)
    assert [cast(Any, child.process).signals for child in others] == [[signal.SIGKILL]] * 3
    assert scene.unwatched == others
    assert fleet.everybody() == [child_of(worker_slot) for worker_slot in fleet.workers]
    for worker_slot in list(fleet.workers):
        assert fleet.workers.are_to_end()
        child = child_of(worker_slot)
        scene.end(child, status=0)
    assert not fleet.workers.are_to_end()
    assert scene.children.started == started


def test_who_does_not_end_in_time_is_killed_and_named(
    scene: FleetScene, caplog: pytest.LogCaptureFixture
) -> None:
    workers = scene.fleet.workers
    first, second = workers.worker_slots
    assert workers.kill_overdue(scene.now_ns) == 1 << 62
    first.end(scene.now_ns)
    due_ns = scene.now_ns + LIMIT_S * S
    second.end(scene.now_ns + S)
    assert workers.kill_overdue(due_ns - 1) == due_ns
    assert (signals(first), caplog.records) == ([], [])
    scene.now_ns = due_ns
    assert workers.tick(due_ns) == due_ns + S, "the loop wakes for the next one"
    assert (signals(first), signals(second)) == ([signal.SIGKILL], [])
    assert [record.getMessage() for record in caplog.records] == [
        "worker 0 of a (pid 13) did not end within unload_timeout_s = 7: killing it"
    ]
    workers.kill_overdue(due_ns)
    assert len(signals(first)) == 1
    assert workers.are_to_end()
    child_of(second).kill()
    assert not workers.are_to_end(), "nobody waits for what is killed"


def test_a_worker_that_ends_is_none_of_the_watchdogs(scene: FleetScene) -> None:
    worker_slot = scene.fleet.workers.worker_slots[0]
    give_batch(worker_slot)
    scene.fleet.tick()
    worker_slot.end(scene.now_ns)
    child_of(worker_slot).end_by_ns = 1 << 62
    for _ in range(200):
        scene.now_ns += S
        scene.fleet.tick()
    assert signals(worker_slot) == []


def test_a_worker_that_has_failed_gets_no_longer_for_its_end(scene: FleetScene) -> None:
    workers = scene.fleet.workers
    worker_slot = workers.worker_slots[0]
    worker_slot.ready = False
    child = child_of(worker_slot)
    workers.says(child, WorkerFailed("ValueError: not even this one"))
    workers.kill_overdue(scene.now_ns + LIMIT_S * S)
    assert signals(worker_slot) == [signal.SIGKILL]
    scene.fleet.was_ready = False
    with pytest.raises(StartError, match="failed: ValueError: not even this one"):
        scene.end(child)


@pytest.mark.parametrize(
    ("status", "killed", "wanted"),
    [
        (0, False, []),
        (7, False, ["worker 0 of a (pid 13) ended with exit status 7 at its end"]),
        (-11, False, ["worker 0 of a (pid 13) was killed by SIGSEGV at its end"]),
        (-9, True, []),
    ],
)
def test_a_worker_that_dies_at_its_end_is_named(
    scene: FleetScene,
    caplog: pytest.LogCaptureFixture,
    status: int,
    killed: bool,
    wanted: list[str],
) -> None:
    """One that was killed, since its time was up, was named then."""
    scene.fleet.end(answered=True)
    child = child_of(scene.fleet.workers.worker_slots[0])
    if killed:
        child.kill()
    scene.end(child, status=status)
    assert [record.getMessage() for record in caplog.records] == wanted


def test_a_worker_whose_batches_take_longer_than_they_may_is_warned_of(
    scene: FleetScene, caplog: pytest.LogCaptureFixture
) -> None:
    worker_slot = scene.fleet.workers.worker_slots[0]
    limit_s = worker_slot.model.config.batch_timeout_s
    scene.fleet.workers.says(child_of(worker_slot), WorkerReady(8, limit_s))
    assert "batch_timeout_s" not in caplog.text
    scene.fleet.workers.says(child_of(worker_slot), WorkerReady(8, 2 * limit_s))
    assert f"{worker_slot.name}: a batch of 8 rows took {2 * limit_s:.3g} s" in caplog.text
