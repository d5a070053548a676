"""A worker whose segment was overwritten: killed at once, and replaced with another segment."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any, cast

import pytest

from batchpool.control.process_messages import DropLane, WorkerBroken, WorkerLost, WorkerReady
from batchpool.shm.worker_segment import WorkerSegment
from batchpool.supervisor.children.worker_slot import WorkerSlot
from tests.unit.supervisor.fleet.fleet_scene import FleetScene, S
from tests.unit.supervisor.plan.test_diff import plan

TEXT = "overwrote its shared segment (a tail too far)"


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[FleetScene]:
    """Models a and b with a worker each; both are warm."""
    scene = FleetScene(monkeypatch, plan("a", "b", server={"stall_timeout_s": 4}, max_batch=4))
    fleet = scene.fleet
    fleet.start_all()
    for worker_slot in fleet.workers:
        assert worker_slot.child is not None
        segment_of(worker_slot).ready.set(1)
        fleet.workers.says(worker_slot.child, WorkerReady())
    fleet.was_ready = True
    scene.told(fleet.batcher.child)
    yield scene
    scene.close()


def segment_of(worker_slot: WorkerSlot) -> WorkerSegment:
    assert worker_slot.worker_segment is not None
    return worker_slot.worker_segment


def signals(worker_slot: WorkerSlot) -> list[int]:
    found: list[int] = cast(Any, worker_slot.child).process.signals
    return found


@pytest.mark.parametrize(("useful", "delay_ns"), [(True, 0), (False, S // 2)])
def test_one_that_the_batcher_names_is_killed_and_replaced(
    scene: FleetScene, useful: bool, delay_ns: int, caplog: pytest.LogCaptureFixture
) -> None:
    workers = scene.fleet.workers
    broken, other = workers.worker_slots
    segment_of(broken).good.set(9)  # which says nothing any more
    number, segment = broken.number, broken.worker_segment
    for _ in range(2):  # a batcher that takes over says it again
        workers.broken(WorkerBroken(number, "a tail too far", useful))
    assert signals(broken) == [signal.SIGKILL]
    assert not broken.serves
    assert signals(other) == []
    scene.end(broken.child)
    assert scene.told(scene.fleet.batcher.child) == [WorkerLost(number, TEXT)]
    assert broken.process_slot.last_error == TEXT
    assert broken.start_at_ns == scene.now_ns + delay_ns
    workers.broken(WorkerBroken(number, "a tail too far", useful))  # when it has ended
    workers.broken(WorkerBroken(99, "of a worker that is forgotten", useful))
    scene.now_ns += delay_ns
    workers.tick(scene.now_ns)
    assert broken.child is not None
    assert broken.number != number
    assert broken.worker_segment is not segment
    assert signals(broken) == []
    assert not broken.was_useful(), "the next one has done nothing yet"
    assert caplog.text.count(TEXT) == 3, "killed, ended, and found again"


@pytest.mark.parametrize("word", ["ready", "sequences", "kv_tokens"])
@pytest.mark.parametrize("value", [0, 7, 2**64 - 1])
def test_words_of_a_warm_worker_do_not_change(scene: FleetScene, word: str, value: int) -> None:
    broken, other = scene.fleet.workers.worker_slots
    if word != "ready":
        getattr(segment_of(broken), word).set(3)
    scene.fleet.tick()
    assert signals(broken) == []
    getattr(segment_of(broken), word).set(value)
    scene.now_ns += S
    scene.fleet.tick()
    assert (signals(broken), signals(other)) == ([signal.SIGKILL], [])


def test_the_head_of_a_segment_does_not_change(scene: FleetScene) -> None:
    broken, _ = scene.fleet.workers.worker_slots
    segment_of(broken).memory.cells()[2] = 5
    scene.fleet.tick()
    assert signals(broken) == [signal.SIGKILL]
    assert broken.child is not None
    assert "its slots is 0x5" in broken.child.cause


@pytest.mark.parametrize("value", [0, 12, 2**31])
def test_a_lane_that_a_worker_has_taken_stays_taken(scene: FleetScene, value: int) -> None:
    broken, _ = scene.fleet.workers.worker_slots
    broken.untaken[1] = 11
    segment_of(broken).lanes[1] = 11
    scene.fleet.tick()
    assert signals(broken) == []
    segment_of(broken).lanes[1] = value
    scene.fleet.tick()
    assert signals(broken) == [signal.SIGKILL]


def test_a_lane_that_was_dropped_is_not_missed(scene: FleetScene) -> None:
    worker_slot, _ = scene.fleet.workers.worker_slots
    worker_slot.untaken[1] = 11
    segment_of(worker_slot).lanes[1] = 11
    scene.fleet.tick()
    worker_slot.send_drop(DropLane(1))
    segment_of(worker_slot).lanes[1] = 0
    scene.fleet.tick()
    assert signals(worker_slot) == []


@pytest.mark.parametrize("progress_ns", [2**64 - 1, 2**62])
def test_a_time_to_come_lets_no_worker_hang_for_ever(scene: FleetScene, progress_ns: int) -> None:
    worker_slot, _ = scene.fleet.workers.worker_slots
    segment = segment_of(worker_slot)
    segment.running.set(1)
    segment.progress_ns.set(progress_ns)
    assert worker_slot.work_age_ns(scene.now_ns) == 0
    assert worker_slot.work_age_ns(scene.now_ns + 5 * S) == 5 * S


def test_a_batch_counts_although_the_worker_says_that_it_has_none(scene: FleetScene) -> None:
    worker_slot, _ = scene.fleet.workers.worker_slots
    segment = segment_of(worker_slot)
    segment.token_of[2] = 5
    assert worker_slot.work_age_ns(scene.now_ns) == 0
    assert worker_slot.work_age_ns(scene.now_ns + 5 * S) == 5 * S
    segment.finished_of[2] = 5  # the batcher has yet to take it
    assert worker_slot.work_age_ns(scene.now_ns + 6 * S) == 0
