"""Rows refused because of a target for the 99th percentile, and the time of it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.core.scheduler.decide import NEVER_NS, Limits, WorkerView
from batchpool.core.scheduler.estimators import ServiceTime
from batchpool.core.scheduler.latency_target import allowed_ns, cap_of
from batchpool.core.scheduler.queue import QueueColumn
from tests.unit.core.scheduler.decisions import (
    FAR,
    NOW,
    Case,
    Outcome,
    outcomes,
    time_of,
    waiting,
)
from tests.unit.core.scheduler.queued import MS, names
from tests.unit.core.scheduler.targets import TARGET, TIME, target_of, two_ns
from tests.unit.core.scheduler.virtual import VirtualPool

often = settings(max_examples=100, deadline=None)


def refused(
    submit: Sequence[int],
    workers: Sequence[WorkerView] = (WorkerView(0, 0, None, TIME, NOW),),
    limits: Limits = TARGET,
    deadline: Sequence[int] | int = FAR,
) -> list[int]:
    return Outcome(Case(waiting(submit, deadline), list(workers), limits)).refused


def free_at_ns(worker: WorkerView, now_ns: int) -> int:
    """An overdue one takes as long again as it has taken."""
    since_ns = worker.overdue_since_ns
    again_ns = now_ns + (now_ns - since_ns) if since_ns else 0
    return max(now_ns, worker.free_at_ns, again_ns)


def really_late(case: Case) -> set[int]:
    """The live rows that no worker answers in time, by the times given: each batch begins when
    the first worker is free, with the first rows that it answers in time; who was passed over
    is late."""
    known = [w for w in case.workers if w.time is not None and w.time.known]
    time = known[0].time
    assert time is not None
    cycle_ns = two_ns(time, case.limits.padded(cap_of(time, case.limits)))
    within_ns = int(max(case.limits.within_ns, cycle_ns))
    queue = case.queue
    rest = [p for p in range(queue.shape[1]) if queue[QueueColumn.DEADLINE_NS, p] > case.now]
    due_ns = {
        p: min(queue[QueueColumn.SUBMIT_NS, p] + within_ns, queue[QueueColumn.DEADLINE_NS, p])
        for p in rest
    }
    free_ns = sorted(float(free_at_ns(w, case.now)) for w in known)
    late: set[int] = set()
    while rest:
        n = min(cap_of(time, case.limits), len(rest))
        begins_ns = heapq.heapreplace(free_ns, free_ns[0] + time.mean_ns(n))
        batch = [p for p in rest if due_ns[p] >= begins_ns + time.high_ns(n)][:n]
        late |= {p for p in rest if p not in batch and p < max(batch, default=len(queue[0]))}
        rest = [p for p in rest if p not in batch and p not in late]
    return late


@pytest.mark.parametrize("time", [None, ServiceTime()])
def test_unknown_times_refuse_nobody(time: ServiceTime | None) -> None:
    assert refused([NOW - 95 * MS] * 99, [WorkerView(0, 0, None, time, NOW)]) == []


def is_known(o: Outcome) -> bool:
    return any(o.known(w) is not None for w in o.case.workers)


@often
@given(outcomes(target=False))
def test_nobody_is_refused_without_a_target(o: Outcome) -> None:
    assert o.refused == []


@often
@given(outcomes(target=True))
def test_nobody_is_refused_where_nothing_is_known_or_the_pool_drains(o: Outcome) -> None:
    unknown = [replace(w, time=None) for w in o.case.workers]
    assert Outcome(replace(o.case, workers=unknown)).refused == []
    assert Outcome(replace(o.case, limits=replace(o.limits, draining=True))).refused == []


@often
@given(outcomes(target=True))
def test_only_those_are_refused_that_would_really_be_late(o: Outcome) -> None:
    if not o.limits.draining and is_known(o):
        assert set(o.refused) <= really_late(o.case)
    else:
        assert o.refused == []


@often
@given(outcomes(target=True))
def test_all_are_refused_that_would_be_late(o: Outcome) -> None:
    """At once, and not after they have waited."""
    if not o.limits.draining and is_known(o):
        assert really_late(o.case) - {*o.sent} <= set(o.refused)


@often
@given(outcomes(target=True))
def test_refusing_again_at_once_refuses_nobody_else(o: Outcome) -> None:
    """Where all rows may ride together: buckets and lanes are not foreseen."""
    case = replace(
        o.case,
        limits=replace(o.limits, bucketed=False, bucket_rows=None),
        workers=[replace(w, lanes=None) for w in o.case.workers],
    )
    assert Outcome(Outcome(case).rest()).refused == []


@given(st.integers(0, 3), st.integers(1, 3))
def test_an_idle_pool_refuses_nobody_for_the_target(slow: int, workers: int) -> None:
    """Even where it cannot keep it."""
    time = time_of([20, 44, 60, 400][slow] * MS, 1 * MS)
    crew = [WorkerView(number, 0, None, time, NOW) for number in range(workers)]
    n = cap_of(time, TARGET) * workers
    assert refused([NOW] * n, crew) == []


def test_who_stands_behind_too_many_is_refused_and_no_one_before() -> None:
    """Batches of eight end at 35, 63 and 91 ms at the latest; they have 90."""
    assert refused([NOW] * 30) == list(range(16, 30))
    two = [WorkerView(number, 0, None, TIME, NOW) for number in range(2)]
    assert refused([NOW] * 40, two) == list(range(32, 40))


def test_room_is_left_for_the_rare_slow_batch_but_two_batches_may_always_be_stood_in_for() -> None:
    """One in 200 takes three times the usual 28 ms of eight rows, 49 ms more than is foreseen for
    99 of 100: of 200 ms 151 are left, of 110 the 63 of two batches."""
    assert allowed_ns(TIME, replace(TARGET, target_ns=200 * MS)) == pytest.approx(170 * MS)
    time = time_of(20 * MS, 1 * MS, spread=1.25)
    time.tail = 3.0
    assert allowed_ns(time, replace(TARGET, target_ns=200 * MS)) == pytest.approx(151 * MS)
    assert allowed_ns(time, replace(TARGET, target_ns=110 * MS)) == pytest.approx(63 * MS)
    assert allowed_ns(time, replace(TARGET, target_ns=1000 * MS)) == pytest.approx(850 * MS)
    worker = WorkerView(0, 0, None, time, NOW)
    limits = replace(TARGET, target_ns=110 * MS)
    assert refused([NOW] * 40, [worker], limits) == list(range(16, 40))
    late = WorkerView(0, 1, None, time, NOW + 29 * MS)
    assert refused([NOW] * 8, [late], limits) == list(range(8))
    assert refused([NOW] * 8, [WorkerView(0, 1, None, TIME, NOW + 29 * MS)], limits) == []


def test_a_worker_that_cannot_keep_the_target_gives_nobody_more_time() -> None:
    """Beside one that can; if none can, the faster one's two batches count."""
    lame, lamer = time_of(400 * MS, 1 * MS), time_of(900 * MS, 1 * MS)
    crew = [WorkerView(0, 0, None, TIME, NOW), WorkerView(1, 1, None, lame, NOW + 100 * MS)]
    assert refused([NOW - 60 * MS] * 8, crew) == list(range(8))
    crew = [WorkerView(0, 1, None, lamer, NOW + 4000 * MS), WorkerView(1, 0, None, lame, NOW)]
    assert refused([NOW - 500 * MS] * 8, crew) == list(range(8))
    assert refused([NOW - 400 * MS] * 8, crew) == []


@pytest.mark.parametrize(("later_ns", "late"), [(0, []), (1, [0])])
def test_to_the_nanosecond(later_ns: int, late: list[int]) -> None:
    """Eight rows that a worker begins with in 55 ms are answered in 90 ms."""
    worker = WorkerView(0, 1, None, TIME, NOW + 55 * MS)
    submit = [NOW - later_ns, *[NOW] * 7]
    assert refused(submit, [worker]) == late
    deadlines = [NOW + 90 * MS - later_ns, *[FAR] * 7]
    assert refused([NOW] * 8, [worker], deadline=deadlines) == late


def test_a_short_deadline_is_measured_by_the_batch_it_gets() -> None:
    """A lone row takes (20 + 1) x 1.25 = 26.25 ms, whatever eight take."""
    assert refused([NOW], deadline=NOW + 30 * MS) == []
    assert refused([NOW], deadline=NOW + 26 * MS) == [0]


def test_a_worker_that_is_free_early_takes_more_batches() -> None:
    """The second one is busy for long: the first runs three batches meanwhile."""
    crew = [WorkerView(0, 0, None, TIME, NOW), WorkerView(1, 1, None, TIME, NOW + 100 * MS)]
    limits = replace(TARGET, target_ns=target_of(108))
    assert refused([NOW] * 24, crew, limits) == []


def test_an_idle_worker_of_unknown_times_is_worth_a_try() -> None:
    crew = [WorkerView(0, 1, None, TIME, NOW + 100 * MS), WorkerView(1, 0)]
    o = Outcome(Case(waiting([NOW] * 2), crew, TARGET))
    assert (o.refused, [(d.worker, rows) for d, rows in o.batches]) == ([], [(1, [0, 1])])


def test_a_worker_of_unknown_times_is_taken_for_as_fast_as_another() -> None:
    """It answers eight rows in 35 ms and eight more in 63 ms."""
    crew = [WorkerView(0, 1, None, TIME, NOW + 100 * MS), WorkerView(1, 0)]
    assert refused([NOW] * 40, crew) == list(range(16, 40))


def test_a_worker_that_should_be_free_already_is_so_now_at_the_earliest() -> None:
    worker = WorkerView(0, 1, None, TIME, NOW - 50 * MS)
    assert refused([NOW - 60 * MS] * 8, [worker]) == list(range(8))


@pytest.mark.parametrize("overdue_ms", [40, 300, 60_000])
def test_behind_the_only_worker_that_is_overdue_nobody_is_let_in_who_would_be_late(
    overdue_ms: int,
) -> None:
    """It is expected to take as long again: of that, and 35 ms for eight rows, they have 90."""
    worker = WorkerView(0, 1, None, TIME, NOW, closed=True, overdue_since_ns=NOW - overdue_ms * MS)
    assert refused([NOW] * 8, [worker]) == ([] if overdue_ms == 40 else [*range(8)])
    other = WorkerView(1, 0, None, TIME, NOW)
    assert refused([NOW] * 16, [worker, other]) == []
    assert refused([NOW] * 40, [worker, other]) == [*range(16 + 8 * (overdue_ms == 40), 40)]


def test_behind_a_worker_that_is_overdue_each_row_is_refused_as_soon_as_it_is_known() -> None:
    """50 ms late, so 100 from its begin; a lone row has 3.75 ms to spare then in 153.75. That
    passes twice as fast as time."""
    worker = WorkerView(0, 1, None, TIME, NOW, closed=True, overdue_since_ns=NOW - 50 * MS)
    limits = replace(TARGET, target_ns=target_of(80))
    told = refusals(Case(waiting([NOW]), [worker], limits))
    assert told == [(3750 * MS // 2000 + 1, [0])]


def test_a_worker_that_gets_nothing_now_counts_for_what_it_will_do() -> None:
    """As one that runs suspects: free in 20 ms, it answers one batch in time and no two."""
    worker = WorkerView(0, 1, None, TIME, NOW + 20 * MS, closed=True)
    o = Outcome(Case(waiting([NOW] * 20), [worker], TARGET))
    assert (o.sent, o.refused) == ([], [*range(16, 20)])


def test_those_who_are_refused_hold_no_place() -> None:
    """Eight in the middle cannot make it; those behind them move up."""
    deadlines = [*[FAR] * 8, *[NOW + 62 * MS] * 8, *[FAR] * 8]
    assert refused([NOW] * 24, deadline=deadlines) == list(range(8, 16))


def test_the_late_are_not_refused_but_expire() -> None:
    o = Outcome(Case(waiting([NOW - 95 * MS] * 2, [NOW, FAR]), [], TARGET))
    assert (o.expired, o.refused) == ([0], [])
    worker = WorkerView(0, 0, None, TIME, NOW)
    o = Outcome(Case(waiting([NOW - 95 * MS] * 2, [NOW, FAR]), [worker], TARGET))
    assert (o.expired, o.refused) == ([0], [1])


@often
@given(outcomes(target=True))
def test_nobody_becomes_late_before_it_wakes(o: Outcome) -> None:
    """By the time alone, while nothing is sent: where all rows may ride together. With several
    workers it may do so within the last millisecond."""
    case = replace(
        o.case,
        limits=replace(o.limits, bucketed=False, bucket_rows=None),
        workers=[replace(w, lanes=None) for w in o.case.workers],
    )
    o = Outcome(case)
    wake = o.decision.wake_at_ns
    if not o.batches and wake < NEVER_NS:
        looks_often = len(case.workers) > 1 and wake - case.now <= MS
        last = case.now if looks_often else wake - 1
        assert Outcome(replace(o.rest(), now=last)).refused == []


def refusals(case: Case) -> list[tuple[int, list[int]]]:
    """The rows refused by the time alone: ns since NOW, names."""
    told = []
    while True:
        o = Outcome(case)
        assert o.batches == []
        if o.refused:
            told.append((case.now - NOW, names(case.queue[:, o.refused])))
        if not o.left:
            return told
        case = replace(o.rest(), now=o.decision.wake_at_ns)


def test_who_is_late_by_the_time_alone_is_refused_at_that_moment() -> None:
    """A worker that should be free in 10 ms is not. Two of seven rows should have begun by
    90 - 27 x 1.25 ms, the other five one ms later by 25 x 1.25 ms before 91."""
    worker = WorkerView(0, 1, None, TIME, NOW + 10 * MS)
    case = Case(waiting([NOW, NOW, *[NOW + MS] * 5]), [worker], TARGET)
    assert Outcome(case).decision.wake_at_ns == NOW + 5625 * MS // 100 + 1
    assert refusals(case) == [
        (5625 * MS // 100 + 1, [0, 1]),
        (5975 * MS // 100 + 1, [2, 3, 4, 5, 6]),
    ]


def test_rows_of_several_workers_are_refused_each_in_time() -> None:
    """One of the two should be free now, the other in 20 ms; neither ever is."""
    crew = [WorkerView(0, 2, None, TIME, NOW), WorkerView(1, 2, None, TIME, NOW + 20 * MS)]
    case = Case(waiting([*[NOW - 30 * MS] * 8, *[NOW - 20 * MS] * 8]), crew, TARGET)
    assert refusals(case) == [
        (25 * MS + 1, [*range(8)]),
        (35 * MS + 1, [*range(8, 16)]),
    ]


def test_an_overloaded_pool_keeps_its_target() -> None:
    """Twice what it can do comes in: half is refused, what is answered is so in time."""
    limits = Limits(16, 10 * MS, adaptive=True, max_wait_peak_ns=50 * MS, target_ns=100 * MS)
    pool = VirtualPool(limits, lambda n: 20 * MS + n * MS // 2)
    for i in range(2000):
        pool.send(i * MS, 1)
    pool.run(3000 * MS)
    answered = [name for name in pool.done_ns if name >= 200]
    assert len(pool.done_ns) + len(pool.refused) == 2000
    assert max(pool.waited_ms(answered)) <= 100
    assert 16 / 28 * 1800 * 0.9 <= len(answered) <= 1300


@pytest.mark.parametrize("nth", [100, 50])
def test_of_batches_that_take_twice_as_long_only_the_first_makes_anybody_late(nth: int) -> None:
    """Twice what it can do comes in, so that a full batch always stands behind the one that runs:
    the rows of both would be late. Half a batch time less to wait costs no throughput."""
    limits = Limits(64, 10 * MS, adaptive=True, max_wait_peak_ns=50 * MS, target_ns=25 * MS)
    ran = known_ns = 0

    def batch_ns(n: int) -> int:
        nonlocal ran, known_ns
        ran += 1
        if ran == nth // 2 + 8:
            known_ns = pool.now_ns
        return (5 * MS + n * MS // 20) * (2 if ran % nth == nth // 2 else 1)

    pool = VirtualPool(limits, batch_ns)
    for i in range(4000):
        pool.send(i * MS // 2, 8)
    pool.run(3000 * MS)
    later = [name for name in pool.done_ns if pool.submit_ns[name] > known_ns > 0]
    assert max(pool.waited_ms(later)) <= 25
    assert len(pool.done_ns) + len(pool.refused) == 8 * 4000
    assert len(pool.done_ns) >= 0.95 * 2000 / (8.2 * (1 + 1 / nth)) * 64, "nearly all it can do"


def test_a_batch_that_another_worker_takes_instead_is_refused_in_time_too() -> None:
    """Rows of 1 ms in batches of 4. The third batch is foreseen on the worker that should be free
    in 7 ms; when neither is free by then, it stands behind a batch of either. Of it, the oldest
    row is due first: alone on the other worker, 4 + 1.02 ms later."""
    time = time_of(0, MS, 1.02)
    crew = [WorkerView(0, 2, None, time, NOW + 7 * MS), WorkerView(1, 2, None, time, NOW)]
    limits = replace(TARGET, max_batch=4, depth=1, target_ns=40 * MS)
    case = Case(waiting([*[NOW] * 10, NOW - 4 * MS]), crew, limits)
    told, exact_ns = refusals(case), [2498 * MS // 100, 2796 * MS // 100, 2992 * MS // 100]
    assert [rows for _, rows in told] == [[10], [8, 9], [*range(8)]]
    assert all(0 < told_ns - ns <= MS for (told_ns, _), ns in zip(told, exact_ns, strict=True))
