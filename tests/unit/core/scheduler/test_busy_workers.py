"""When it is plain that no row can leave, since all workers are busy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batchpool.core.scheduler.busy_workers import all_busy_until
from batchpool.core.scheduler.element_budget import InputShape, RowElements
from batchpool.core.scheduler.limits import NEVER_NS, Limits
from batchpool.core.scheduler.worker_view import WorkerView
from tests.unit.core.scheduler.decisions import NOW, time_of
from tests.unit.core.scheduler.queued import MS, rows_of

ELEMENTS = RowElements((InputShape(1, (0,)),), (128,))
BUCKETED = Limits(4, 0, bucketed=True, row_elements=ELEMENTS)
LONG = time_of(20 * MS, 0)


def worker(in_flight: int, left_ms: float = 10.0, *, closed: bool = False) -> WorkerView:
    """A busy worker, whose batches end in so many ms."""
    free_at_ns = NOW + round(left_ms * MS)
    return WorkerView(0, in_flight, None, LONG, free_at_ns, closed, elements_time=LONG)


def until(*workers: WorkerView, buckets: list[int], limits: Limits = BUCKETED) -> int:
    return all_busy_until(NOW, rows_of(len(buckets), bucket=buckets), workers, limits)


def test_an_idle_worker_may_take_what_waits() -> None:
    assert until(worker(1), worker(0), buckets=[1]) == 0


def test_few_rows_wait_until_a_batch_ends_soon() -> None:
    """A partial batch may be queued from 1 ms before the end on."""
    assert until(worker(1, 10), buckets=[1, 2]) == NOW + 9 * MS
    assert until(worker(1, 10), worker(1, 4), buckets=[1, 2]) == NOW + 3 * MS
    assert until(worker(1, 1), buckets=[1, 2]) == 0
    assert until(worker(1, 1), buckets=[1], limits=replace(BUCKETED, row_elements=None)) == NEVER_NS


def test_behind_two_batches_nothing_partial_is_queued() -> None:
    assert until(worker(2, 0.5), buckets=[1, 2]) == NEVER_NS


@pytest.mark.parametrize(
    ("in_flight", "buckets", "leaves"),
    [(1, [1, 2, 1, 1, 1], True), (1, [1, 2, 1, 2, 1], False), (2, [1] * 5, False)],
)
def test_rows_that_fill_a_batch_may_leave_where_one_may_be_queued(
    in_flight: int, buckets: list[int], leaves: bool
) -> None:
    assert (until(worker(in_flight), buckets=buckets) == 0) == leaves


def test_rows_that_fill_a_batch_wait_until_the_one_in_front_ends_within_25_ms() -> None:
    assert until(worker(1, 40), buckets=[1] * 4) == NOW + 15 * MS
    assert until(worker(1, 40), buckets=[1] * 3) == NOW + 39 * MS
    assert until(worker(1, 25), buckets=[1] * 4) == 0


@pytest.mark.parametrize(("n", "leaves"), [(3, False), (4, True)])
def test_without_buckets_all_rows_count(n: int, leaves: bool) -> None:
    found = until(worker(1), buckets=[*range(n)], limits=Limits(4, 0))
    assert (found == 0) == leaves


def test_a_closed_worker_gets_nothing() -> None:
    assert until(worker(0, closed=True), buckets=[1]) == NEVER_NS
