"""The workers that get new batches, and those that are reported as idle once they do not."""

from __future__ import annotations

import pytest

from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.batcher.worker_table import WorkerTable
from batchpool.core.layout.states import DispatchReason
from tests.unit.core.scheduler.queued import rows_of
from tests.unit.lanes import new_worker_segment


def new_worker(number: int, *, active: bool = True) -> WorkerProxy:
    return WorkerProxy(number, 0, new_worker_segment(2), lambda: None, active=active)


@pytest.fixture
def table() -> WorkerTable:
    """Two active workers, 3 and 4."""
    made = WorkerTable()
    made.add(new_worker(3))
    made.add(new_worker(4))
    return made


def test_an_active_worker_is_not_reported_whatever_it_does(table: WorkerTable) -> None:
    assert table.take_idle() == []
    assert [worker.active for worker in table.by_number.values()] == [True, True]


def test_a_worker_that_is_added_inactive_is_reported_once_with_its_change(
    table: WorkerTable,
) -> None:
    table.add(new_worker(5, active=False), change=8)
    assert table.take_idle() == [(5, 8)]
    assert table.take_idle() == []


def test_a_worker_that_becomes_inactive_is_reported_once_its_last_batch_is_over(
    table: WorkerTable,
) -> None:
    worker = table.by_number[3]
    batch = worker.prepare(rows_of(1), DispatchReason.FULL, 1, 1)
    table.set_active((), (3, 99), change=6)
    assert [worker.active for worker in table.by_number.values()] == [False, True]
    assert table.take_idle() == []
    worker.free(batch)
    assert table.take_idle() == [(3, 6)]
    assert table.take_idle() == []


def test_the_last_change_is_reported(table: WorkerTable) -> None:
    table.set_active((), (3,), change=6)
    table.set_active((), (3, 4), change=7)
    assert table.take_idle() == [(3, 7), (4, 7)]


def test_a_worker_that_is_active_again_before_it_was_idle_is_not_reported(
    table: WorkerTable,
) -> None:
    table.set_active((), (3, 4), change=6)
    table.set_active((3, 99), (), change=7)
    assert [worker.active for worker in table.by_number.values()] == [True, False]
    assert table.take_idle() == [(4, 6)]


def test_a_worker_that_is_lost_is_not_reported_as_idle(table: WorkerTable) -> None:
    lost = table.by_number[3]
    table.set_active((), (3,), change=6)
    assert table.remove(3) is lost
    assert table.take_idle() == []
    assert table.remove(3) is None
    assert list(table.by_number) == [4]
