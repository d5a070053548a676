"""A short batch of another bucket goes between two batches of the bucket that is first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from batchpool.core.layout.states import DispatchReason
from batchpool.core.scheduler.decide import Limits, WorkerView
from batchpool.core.scheduler.estimators import ServiceTime
from batchpool.core.scheduler.queue import I64, QueueColumn
from tests.unit.core.scheduler.decisions import (
    NOW,
    ROW_ELEMENTS,
    Case,
    Outcome,
    bucket_rows_of,
    mask,
    time_of,
    waiting,
)
from tests.unit.core.scheduler.queued import MS
from tests.unit.core.scheduler.virtual import VirtualPool

SHORT, MIDDLE, LONG = 4, 5, 6  # rows of up to 16, 32 and 64 elements
# Batches of four long rows; a call takes 1 ms, and an element as long.
LIMITS = Limits(
    16, 0, bucketed=True, row_elements=ROW_ELEMENTS, bucket_rows=bucket_rows_of(256, 16)
)
TIME = time_of(MS, MS)


def told(
    *buckets: int,
    last: int = LONG,
    limits: Limits = LIMITS,
    time: ServiceTime | None = TIME,
    priority: list[int] | None = None,
    in_flight: int = 0,
    left_ms: int = 0,
    lanes: list[int] | None = None,
    deadline: int | None = None,
) -> list[tuple[str, list[int]]]:
    """The batches of an idle worker whose last one was of this bucket."""
    rows = waiting([NOW] * len(buckets), bucket=list(buckets))
    rows[QueueColumn.PRIORITY] = priority or 128
    rows[QueueColumn.LANE] = lanes or 0
    if deadline is not None:
        rows[QueueColumn.DEADLINE_NS] = deadline
    worker = WorkerView(
        0, in_flight, None if lanes is None else mask(0), time_of(100 * MS, MS),
        NOW + left_ms * MS, elements_time=time, last_bucket=last,
    )  # fmt: skip
    o = Outcome(Case(rows, [worker], limits))
    return [(dispatch.reason.name, sent) for dispatch, sent in o.batches]


def test_after_a_batch_of_the_first_bucket_others_have_a_quarter_of_its_time() -> None:
    # The long batch takes 257 ms, so the others have 64: three short rows of 16 ms and their call.
    long = [LONG] * 8
    assert told(*long, SHORT) == [("IDLE", [8])]
    assert told(*long, *[SHORT] * 4) == [("IDLE", [8, 9, 10])]
    assert told(*long, MIDDLE, SHORT) == [("IDLE", [8])], "in the order of service"
    assert told(*[LONG] * 3, SHORT, SHORT, SHORT) == [("IDLE", [3, 4])], "of 193 ms"


def test_a_bucket_whose_row_takes_too_long_is_left_out() -> None:
    assert told(*[SHORT] * 16, LONG, last=SHORT) == [("FULL", [*range(16)])]
    assert told(*[SHORT] * 16, LONG, MIDDLE, last=SHORT) == [("IDLE", [17])]


@pytest.mark.parametrize("last", [-1, 0, SHORT, MIDDLE])
def test_the_first_bucket_has_its_turn_after_another_one(last: int) -> None:
    assert told(*[LONG] * 8, SHORT, last=last) == [("FULL", [0, 1, 2, 3])]


@pytest.mark.parametrize("time", [None, ServiceTime(), time_of(MS, 0), time_of(100 * MS, MS)])
def test_nothing_goes_in_between_where_times_do_not_tell_that_it_is_short(
    time: ServiceTime | None,
) -> None:
    assert told(*[LONG] * 8, SHORT, time=time) == [("FULL", [0, 1, 2, 3])]


def test_where_the_order_is_more_than_fairness_it_is_kept() -> None:
    full = [("FULL", [0, 1, 2, 3])]
    long, behind = [LONG] * 8, [128] * 8
    assert told(*long, SHORT, priority=[*behind, 129]) == full
    assert told(*long, SHORT, limits=replace(LIMITS, target_ns=10_000 * MS)) == full
    assert told(*long, SHORT, limits=replace(LIMITS, row_elements=None)) == full
    assert told(*long, SHORT, lanes=[0] * 8 + [1]) == full, "the worker cannot run it"
    waits = replace(LIMITS, max_wait_ns=10 * MS)
    urgent = told(LONG, LONG, SHORT, limits=waits, deadline=NOW + 120 * MS)
    assert urgent == [("DEADLINE", [0, 1])]


def test_it_is_queued_in_the_place_of_the_batch_that_it_goes_before() -> None:
    assert told(*[LONG] * 8, SHORT, in_flight=1, left_ms=25) == [("IDLE", [8])]
    assert told(*[LONG] * 8, SHORT, in_flight=1, left_ms=26) == []


def test_accepted_sizes_are_kept() -> None:
    sized = replace(LIMITS, sizes=(2, 4, 16), bucket_rows=bucket_rows_of(256, 16, (2, 4, 16)))
    assert told(*[LONG] * 8, *[SHORT] * 4, limits=sized) == [("IDLE", [8, 9])]
    assert told(*[LONG] * 8, *[SHORT] * 4, limits=replace(sized, sizes=(4, 16)))[0][0] == "FULL"


# -- in virtual time ---------------------------------------------------------------------------

FLOOD = Limits(
    64, 10 * MS, adaptive=True, bucketed=True, row_elements=ROW_ELEMENTS,
    bucket_rows=bucket_rows_of(512, 64),
)  # fmt: skip
CALLER, OTHER = 7, 8
LATER_NS = 10**13  # deadlines of all, which are in the order of submission


def flooded(short_flow: int, limits: Limits) -> list[float]:
    """The waits of lone short rows, one in a second, beside 900 long rows of a caller who sends
    again once he is answered. A batch of 8 long rows takes 515 ms."""
    sent = list[int]()

    def again(pool: VirtualPool, rows: I64) -> None:
        longs = int(np.count_nonzero(rows[QueueColumn.BUCKET] == LONG))
        if longs:
            pool.send(1, longs, bucket=LONG, flow=CALLER, timeout_ns=LATER_NS)

    pool = VirtualPool(limits, lambda n: 3 * MS, 1, again, element_ns=MS)
    pool.send(0, 1, bucket=SHORT, flow=OTHER)  # the pool has seen batches of both kinds before
    pool.run(1000 * MS)
    pool.send(0, 900, bucket=LONG, flow=CALLER, timeout_ns=LATER_NS)
    for second in range(1, 21):
        after_ns = second * 1000 * MS
        sent += pool.send(after_ns, 1, bucket=SHORT, flow=short_flow, timeout_ns=LATER_NS)
    pool.run(40_000 * MS)
    return pool.waited_ms([name for name in sent if name in pool.done_ns])


@pytest.mark.parametrize("flow", [OTHER, CALLER], ids=["of another caller", "of the same caller"])
def test_a_lone_short_row_waits_for_one_long_batch_and_not_for_the_flood(flow: int) -> None:
    waits = flooded(flow, FLOOD)
    assert len(waits) == 20
    assert max(waits) < 515 + 25 + 20 + 515 / 4


def test_rows_of_the_first_bucket_keep_four_fifths_of_the_time() -> None:
    """Beside a flood of short rows of the same caller, which alone would take all."""

    def again(pool: VirtualPool, rows: I64) -> None:
        for bucket in rows[QueueColumn.BUCKET].tolist():
            pool.send(1, 1, bucket=bucket, flow=CALLER, timeout_ns=LATER_NS)

    pool = VirtualPool(FLOOD, lambda n: 3 * MS, 1, again, element_ns=MS)
    pool.send(0, 200, bucket=LONG, flow=CALLER, timeout_ns=LATER_NS)
    pool.send(1, 200, bucket=SHORT, flow=CALLER, timeout_ns=LATER_NS)
    pool.run(60_000 * MS)
    spent = {LONG: 0, SHORT: 0}
    for run in pool.runs[4:]:
        spent[run.rows.item(QueueColumn.BUCKET, 0)] += run.done_ns - run.began_ns
    share = spent[LONG] / sum(spent.values())
    assert 0.5 < share < 0.9, "neither kind has all of it"
    assert DispatchReason.FULL in {run.reason for run in pool.runs}
