"""Log of the batcher about a model whose target is out of reach."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batchpool.batcher.batcher import Batcher
from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.metrics import End
from batchpool.batcher.model_queue import ModelQueue
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.core.errors import Status
from batchpool.core.scheduler.decide import Limits
from batchpool.core.tensors.spec import Tensor
from tests.unit.core.scheduler.decisions import NOW, time_of
from tests.unit.core.scheduler.queued import MS, rows_of
from tests.unit.lanes import new_lane, new_worker_segment
from tests.unit.specs import model


@pytest.fixture
def batcher() -> Batcher:
    """One model with a target of 10 ms, whose batches of n rows take 20 + n ms."""
    limits = Limits(8, 0, adaptive=True, target_ns=10 * MS)
    made = Batcher([ModelQueue("m", limits)], 1)
    lane = new_lane(model(Tensor("x", "float32", (4,))), 64)
    made.add_lane(AdmittedLane(0, 1, 0, lane, lambda: None, own_flow=False))
    proxy = WorkerProxy(0, 0, new_worker_segment(8, 1), lambda: None)
    proxy.worker_segment.ready.set(1)
    proxy.worker_segment.lanes[0] = 1
    made.add_worker(proxy)
    proxy.service_time = time_of(20 * MS, 1 * MS)
    return made


def refuse_one(batcher: Batcher) -> None:
    (queued,) = batcher.models.values()
    queued.queue.append(rows_of(1, name=1, submit=NOW - 2000 * MS))
    batcher.step(NOW)
    assert len(queued.queue) == 0


def test_it_is_noted_once_for_each_target(batcher: Batcher) -> None:
    refuse_one(batcher)
    note = (
        "model 'm' cannot keep target_p99_ms = 10: a lone row takes 21 ms, behind another up to"
        " 47.2 ms, and a part of the target is for the way to the caller; batches are of at most"
        " 5 rows, and what would take longer than 56.2 ms is refused"
    )
    assert batcher.warnings == [note]
    refuse_one(batcher)
    assert batcher.warnings == [note]
    (queued,) = batcher.models.values()
    queued.limits = replace(queued.limits, target_ns=1000 * MS)
    refuse_one(batcher)
    assert batcher.warnings == [note], "this one is in reach"
    queued.limits = replace(queued.limits, target_ns=11 * MS)
    refuse_one(batcher)
    assert batcher.warnings == [note, note.replace("= 10", "= 11")]


def test_a_refused_row_is_told_why(batcher: Batcher) -> None:
    refuse_one(batcher)
    (queued,) = batcher.models.values()
    (lane,) = batcher.lanes.by_number.values()
    assert lane.lane.status[0] == Status.OVERLOADED
    assert lane.lane.read_message(0) == queued.refusal_text()


def test_not_before_the_times_are_well_known(batcher: Batcher) -> None:
    (proxy,) = batcher.workers.by_number.values()
    proxy.service_time.batches = 15
    refuse_one(batcher)
    assert batcher.warnings == []
    proxy.service_time.batches = 16
    refuse_one(batcher)
    assert len(batcher.warnings) == 1


def test_not_where_one_of_the_workers_can_keep_it(batcher: Batcher) -> None:
    second = WorkerProxy(1, 0, new_worker_segment(8, 1), lambda: None)
    second.worker_segment.ready.set(1)
    second.worker_segment.lanes[0] = 1
    batcher.add_worker(second)
    second.service_time = time_of(2 * MS, 1 * MS)
    refuse_one(batcher)
    assert batcher.warnings == []


def test_behind_the_only_worker_that_is_overdue_nobody_new_is_let_wait(batcher: Batcher) -> None:
    """After 300 ms it is expected to be free in 300 more: in time for who comes now, not for who
    waits for 200 already. After 600 ms for nobody."""
    (queued,) = batcher.models.values()
    (proxy,) = batcher.workers.by_number.values()
    queued.limits = replace(queued.limits, target_ns=500 * MS)
    queued.queue.append(rows_of(1, name=1, submit=NOW))
    batcher.step(NOW)
    assert proxy.in_flight == 1
    for late_ms, waits, refused in ((100, 1, 0), (300, 1, 1), (600, 0, 3)):
        now_ns = NOW + late_ms * MS
        queued.queue.append(rows_of(1, name=2, submit=now_ns))
        batcher.step(now_ns)
        assert (len(queued.queue), queued.metrics.ended(End.OVERLOADED)) == (waits, refused)
        assert proxy.in_flight == 1, "nothing is sent behind it"
