"""Rows of several size buckets: who may share a batch, and what is queued behind another one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from batchpool.core.scheduler.decide import Limits, WorkerView
from batchpool.core.scheduler.estimators import ServiceTime
from batchpool.core.scheduler.joined_buckets import with_other_buckets
from batchpool.core.scheduler.queue import I64, QueueColumn
from batchpool.core.scheduler.size_buckets import joined_bucket
from tests.unit.core.scheduler.decisions import (
    NOW,
    ROW_ELEMENTS,
    Case,
    Outcome,
    bucket_rows_of,
    time_of,
    waiting,
)
from tests.unit.core.scheduler.queued import MS
from tests.unit.core.scheduler.virtual import VirtualPool

US = MS // 1000
# A call takes 1 ms whatever is in it, and 1 us an element.
CALL = time_of(MS, US)
LIMITS = Limits(64, 0, bucketed=True, row_elements=ROW_ELEMENTS)


def joined(
    *buckets: int, limits: Limits = LIMITS, time: ServiceTime | None = CALL, most: int = 64
) -> list[int]:
    """The rows that leave with the first of these."""
    first = [at for at, bucket in enumerate(buckets) if bucket == buckets[0]]
    return with_other_buckets(first, [*range(len(buckets))], [*buckets], most, limits, time)


def test_few_rows_join_where_padding_takes_less_than_a_quarter_of_a_call() -> None:
    assert joined(5, 4, 5, 4) == [0, 1, 2, 3]
    # Rows of 16 padded to 32 elements: 15 of them take 240 us, 16 of them 256.
    wide = Limits(128, 0, bucketed=True, row_elements=ROW_ELEMENTS)
    assert joined(5, *[4] * 15, limits=wide, most=128) == [*range(16)]
    assert joined(5, *[4] * 16, limits=wide, most=128) == [0]
    assert joined(4, 5, limits=wide) == [0, 1], "and the other way round"


def test_rows_behind_those_that_join_them_are_in_the_batch_once() -> None:
    """The bucket that is due need not be the first one, and is not its own company once it holds
    longer rows."""
    buckets = [4, 6, 5, 5]
    assert with_other_buckets([2, 3], [0, 1, 2, 3], buckets, 64, LIMITS, CALL) == [0, 1, 2, 3]


def test_a_bucket_that_costs_too_much_is_left_out_and_the_next_one_joins() -> None:
    slow = time_of(MS, 15 * US)
    assert joined(4, 6, 5, time=slow) == [0, 2]
    assert joined(4, 5, 6, time=slow) == [0, 1], "with both it would be wider still"
    assert joined(4, 5, 6, time=time_of(MS, 3 * US)) == [0, 1, 2], "192 us more than 4 and 5 take"


@pytest.mark.parametrize("time", [None, ServiceTime(), time_of(0, US), time_of(MS, 0)])
def test_nobody_joins_where_times_do_not_tell_that_it_pays(time: ServiceTime | None) -> None:
    assert joined(5, 4, time=time) == [0]


def test_nobody_joins_where_many_wait_or_there_is_no_room() -> None:
    assert joined(5, 4, *[5] * 30) == [*range(32)]
    assert joined(5, 4, *[5] * 31) == [0, *range(2, 33)], "more than half of a full batch"
    assert joined(5, 4, 4, most=2) == [0]
    budget = Limits(
        64, 0, bucketed=True, row_elements=ROW_ELEMENTS, bucket_rows=bucket_rows_of(96, 64)
    )
    assert joined(5, 4, 4, limits=budget) == [0, 1, 2], "three rows of 32 elements"
    assert joined(5, 4, 4, 4, limits=budget) == [0]
    assert joined(5, 4, limits=Limits(64, 0, bucketed=True)) == [0]


def test_the_bucket_of_all_is_the_largest_in_each_dimension() -> None:
    assert joined_bucket([5]) == 5
    assert joined_bucket([4 + 32 * 7, 6 + 32 * 4]) == 6 + 32 * 7
    assert joined_bucket([4, 0]) == 0, "rows of any size"


def idle(*, measured: bool = True) -> WorkerView:
    time = time_of(MS, US)
    return WorkerView(0, 0, time=time, elements_time=time if measured else None)


def told(o: Outcome) -> list[tuple[int, list[int]]]:
    return [(dispatch.worker, rows) for dispatch, rows in o.batches]


BUSY = time_of(0, MS)  # elements cost too much for rows to join


def behind(worker: WorkerView, *buckets: int, limits: Limits = LIMITS) -> Outcome:
    rows = waiting([NOW] * len(buckets), bucket=buckets)
    return Outcome(Case(rows, [worker], limits))


def test_a_partial_batch_is_queued_behind_one_that_ends_soon_where_another_bucket_waits() -> None:
    apart = WorkerView(0, 1, None, time_of(MS, US), NOW + MS, elements_time=BUSY)
    assert told(behind(apart, 4, 5, 4)) == [(0, [0, 2])], "the other one goes on collecting"
    assert told(behind(apart, 4, 4)) == [], "these may get company until then"
    later = WorkerView(0, 1, None, time_of(MS, US), NOW + MS + 1, elements_time=BUSY)
    o = behind(later, 4, 5)
    assert (told(o), o.decision.wake_at_ns) == ([], NOW + 1)
    unmeasured = WorkerView(0, 1, None, time_of(MS, US), NOW)
    assert told(behind(unmeasured, 4, 5)) == []
    full = WorkerView(0, 2, None, time_of(MS, US), NOW, elements_time=BUSY)
    assert told(behind(full, 4, 5)) == [], "one behind another"
    single = Limits(64, 0, depth=1, bucketed=True, row_elements=ROW_ELEMENTS)
    assert told(behind(apart, 4, 5, limits=single)) == []


def test_rows_of_an_idle_worker_share_its_batch() -> None:
    assert told(behind(idle(), 4, 5, 6)) == [(0, [0, 1, 2])]
    assert told(behind(idle(measured=False), 4, 5, 6)) == [(0, [0])]


def test_callers_of_many_lengths_are_answered_sooner() -> None:
    """24 callers send again once they are answered; a batch takes 1 ms and 0.2 us an element."""

    def latency_ms(limits: Limits) -> float:
        lengths, names = [4, 4, 5, 6], list[int]()

        def again(pool: VirtualPool, rows: I64) -> None:
            for bucket in rows[QueueColumn.BUCKET].tolist():
                names.extend(pool.send(MS // 10, 1, bucket=bucket))

        pool = VirtualPool(limits, lambda n: MS, 1, again, element_ns=US // 5)
        for number in range(24):
            names.extend(pool.send(number * US, 1, bucket=lengths[number % 4]))
        pool.run(200 * MS)
        waited = pool.waited_ms([name for name in names if name in pool.done_ns])
        return float(np.quantile(waited, 0.99))

    apart = Limits(64, 10 * MS, adaptive=True, bucketed=True)
    assert latency_ms(apart) > 1.5 * latency_ms(replace(apart, row_elements=ROW_ELEMENTS))
