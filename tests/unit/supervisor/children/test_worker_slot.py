"""A worker's place: its names, the age of its oldest batch, and whether its work was useful."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from batchpool.core.layout.states import DispatchReason
from batchpool.supervisor.children.worker_slot import WorkerSlot
from tests.unit.supervisor.plan.test_diff import plan

APART, TOGETHER = int(DispatchReason.APART), 0


class Segment:
    """The part of a worker's segment that is read here: two places for batches."""

    def __init__(self) -> None:
        self.token, self.freed, self.finished = np.zeros(2), np.zeros(2), np.zeros(2)
        self.reason = np.full(2, TOGETHER)
        self.good, self.running = Cell(), Cell()
        self.progress_ns, self.launched = Cell(), Cell()
        self.waiting = 0

    def sq_consumer(self) -> Any:
        return SimpleNamespace(pending=lambda: self.waiting)


class Cell:
    value = 0

    def get(self) -> int:
        return self.value


@pytest.fixture
def segment() -> Segment:
    return Segment()


@pytest.fixture
def slot(segment: Segment) -> WorkerSlot:
    made = plan("a")
    found = WorkerSlot.of(made, 0, made.models[0].workers[0])
    found.worker_segment = cast(Any, segment)
    return found


def test_good_batches_are_useful_work(slot: WorkerSlot, segment: Segment) -> None:
    assert not slot.was_useful()
    segment.good.value = 1
    assert slot.was_useful()


def test_an_end_with_suspect_rows_under_way_may_be_their_fault(
    slot: WorkerSlot, segment: Segment
) -> None:
    segment.reason[1] = APART
    assert not slot.was_useful(), "they are done"
    segment.token[0] = 5
    assert not slot.was_useful(), "those are under way that are no suspects"
    segment.token[1] = 6
    assert slot.was_useful()
    segment.freed[1] = 6
    assert not slot.was_useful()


def test_a_batch_that_runs_is_as_old_as_the_worker_says(slot: WorkerSlot, segment: Segment) -> None:
    segment.running.value, segment.progress_ns.value = 1, 100
    assert slot.work_age_ns(130) == 30


def test_a_batch_that_is_not_begun_counts_from_when_it_was_seen(
    slot: WorkerSlot, segment: Segment
) -> None:
    assert slot.work_age_ns(100) == 0
    segment.waiting = 1
    assert [slot.work_age_ns(now) for now in (200, 250)] == [0, 50]
    segment.launched.value = 1  # it began that one, and has another
    assert [slot.work_age_ns(now) for now in (300, 310)] == [0, 10]
    segment.waiting = 0
    assert slot.work_age_ns(400) == 0
    segment.waiting = 1
    assert [slot.work_age_ns(now) for now in (500, 501)] == [0, 1]


def test_a_batch_that_ran_meanwhile_begins_the_time_anew(
    slot: WorkerSlot, segment: Segment
) -> None:
    segment.waiting = 1
    slot.work_age_ns(100)
    segment.running.value, segment.progress_ns.value = 1, 150
    assert slot.work_age_ns(160) == 10
    segment.running.value = 0
    assert [slot.work_age_ns(now) for now in (200, 230)] == [0, 30]
