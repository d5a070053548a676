"""Rows that nobody waits for, beside rows that somebody waits for."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.core.priority import BACKGROUND, DEFAULT
from batchpool.core.scheduler.background import rows_beside
from batchpool.core.scheduler.decide import Decision, Limits, WorkerView, decide
from batchpool.core.scheduler.estimators import ServiceTime
from batchpool.core.scheduler.queue import QUEUE_COLUMNS, Queue, QueueColumn
from tests.unit.core.scheduler.decisions import NOW, time_of
from tests.unit.core.scheduler.queued import MS

SLOW_ROWS = time_of(4 * MS, 0.2 * MS)
LIMITS = Limits(64, 0, background_slowdown=0.25)


def queue_of(waited_for: int, background: int) -> Queue:
    """So many rows of each kind."""
    queue = Queue()
    for priority, n in ((BACKGROUND, background), (DEFAULT, waited_for)):
        rows = np.zeros((QUEUE_COLUMNS, n), dtype=np.int64)
        rows[QueueColumn.SUBMIT_NS], rows[QueueColumn.DEADLINE_NS] = NOW, NOW + 10_000 * MS
        rows[QueueColumn.PRIORITY], rows[QueueColumn.FLOW] = priority, 1
        queue.append(rows)
    return queue


def decided(
    queue: Queue, *, beside: bool = True, limits: Limits = LIMITS, **worker: object
) -> Decision:
    view = WorkerView(**{"number": 0, "in_flight": 0, "time": SLOW_ROWS, **worker})  # type: ignore[arg-type]
    return decide(NOW, queue.view(), [view], limits, beside=beside)


def batches(decision: Decision, queue: Queue) -> list[tuple[str, int]]:
    """(reason, rows) of each batch."""
    places = np.arange(len(queue))
    return [(batch.reason.name, len(places[batch.rows])) for batch in decision.dispatch]


@given(
    st.integers(0, 80),
    st.sampled_from([0.0, 0.25, 1.0, 1000.0]),
    st.sampled_from([(0, 0.1), (4, 0.2), (4, 0), (1, 1)]),
    st.sampled_from([(), (1, 8, 64)]),
)
def test_the_bound_holds_and_is_not_smaller_than_it_must_be(
    n: int, slowdown: float, line: tuple[float, float], sizes: tuple[int, ...]
) -> None:
    time = time_of(int(line[0] * MS), line[1] * MS)
    limits = replace(LIMITS, background_slowdown=slowdown, sizes=sizes)
    least, bound = limits.padded(min(64, max(1, n))), rows_beside(n, time, limits)
    assert min(64, max(1, n)) <= bound <= 64
    allowed_ns = (1 + slowdown) * time.mean_ns(least)
    larger = [size for size in sizes or range(1, 65) if size > bound]
    just = 1e-9 * allowed_ns  # of rounding
    assert bound == least or time.mean_ns(bound) <= allowed_ns + just
    assert not larger or time.mean_ns(larger[0]) > allowed_ns - just


def test_without_a_measured_time_nothing_is_known() -> None:
    assert rows_beside(1, None, LIMITS) == 64
    assert rows_beside(1, ServiceTime(), LIMITS) == 64
    assert rows_beside(1, SLOW_ROWS, Limits(64, 0)) == 64, "and by default nothing is bounded"
    assert Limits(64, 0).background_slowdown == math.inf


@pytest.mark.parametrize("bucketed", [False, True])
def test_background_rows_lengthen_a_batch_by_their_share(bucketed: bool) -> None:
    """4.6 ms of three rows, and a quarter more: 5 rows; of a lone row 4.2 ms, and 6 rows."""
    queue = queue_of(3, 100)
    limits = replace(LIMITS, bucketed=bucketed)
    lanes = np.ones(1, dtype=bool) if bucketed else None
    assert batches(decided(queue, limits=limits, lanes=lanes), queue) == [("IDLE", 8)]
    queue = queue_of(0, 100)
    assert batches(decided(queue, limits=limits, lanes=lanes), queue) == [("IDLE", 6)]
    assert batches(decided(queue, limits=limits, lanes=lanes, beside=False), queue)[0] == (
        "FULL",
        64,
    )


def test_a_bounded_batch_is_not_queued_behind_another() -> None:
    """A row that comes meanwhile may join it."""
    assert batches(decided(queue_of(3, 100), in_flight=1), queue_of(3, 100)) == []
    assert batches(decided(queue_of(64, 100), in_flight=1), queue_of(64, 100)) == [("FULL", 64)]


def test_rows_that_are_waited_for_are_not_bounded() -> None:
    queue = queue_of(64, 10)
    assert batches(decided(queue), queue)[0] == ("FULL", 64)
    queue = queue_of(70, 0)
    assert batches(decided(queue), queue)[0] == ("FULL", 64)
