"""A target for the 99th percentile: how large batches may be, and who is refused."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.core.adaptive import BatchTime
from batchpool.core.batching import NEVER_NS, Limits, Worker, cap_of
from batchpool.core.queue import Field
from batchpool.core.target import cycle_ns, least_cap
from tests.unit.core.decisions import (
    FAR,
    NOW,
    Case,
    Outcome,
    outcomes,
    time_of,
    traffic_of,
    waiting,
)
from tests.unit.core.queued import MS, names
from tests.unit.core.virtual import VirtualPool

often = settings(max_examples=100, deadline=None)


def target_of(within_ms: float) -> int:
    """The target of which the pool may use so much; the rest is for the way to the caller."""
    return math.ceil(within_ms * MS * 10**12 / Limits(1, 0, target_ns=10**12).within_ns)


TARGET = Limits(8, 0, target_ns=target_of(90))
TIME = time_of(20 * MS, 1 * MS, spread=1.25)  # eight rows: 28 ms, 35 ms at most


def refused(
    submit: Sequence[int],
    workers: Sequence[Worker] = (Worker(0, 0, None, TIME, NOW),),
    limits: Limits = TARGET,
    deadline: Sequence[int] | int = FAR,
) -> list[int]:
    return Outcome(Case(waiting(submit, deadline), list(workers), limits)).refused


# -- the size of batches --------------------------------------------------------------------

times = st.builds(
    time_of,
    st.sampled_from([0, 1, 5, 20, 60]).map(lambda ms: ms * MS),
    st.sampled_from([0.01, 0.1, 1, 3]).map(lambda ms: ms * MS),
    st.sampled_from([1.02, 1.25, 2, 4]),
)


def two_ns(time: BatchTime, n: int) -> float:
    """Two batches, one of them a slow one."""
    return time.mean_ns(n) + time.high_ns(n)


def worth_running(time: BatchTime, most: int) -> int:
    """So many rows take a quarter of the fixed cost."""
    return min(most, max(1, int(time.base_ns / time.row_ns / 4)))


@often
@given(times, st.integers(1, 200), st.integers(1, 300))
def test_two_batches_one_after_the_other_keep_the_target(
    time: BatchTime, most: int, target_ms: int
) -> None:
    """As large as that allows; where lone rows do not keep it, as large as is worth running."""
    limits = Limits(most, 0, target_ns=target_ms * MS)
    cap, worth = cap_of(time, limits), worth_running(time, most)
    assert 1 <= cap <= most
    just = 1e-9  # of rounding
    if two_ns(time, 1) > limits.within_ns * (1 + just):
        assert cap == worth
    elif two_ns(time, 1) < limits.within_ns * (1 - just):
        assert two_ns(time, cap) <= limits.target_ns * (1 + just)
        if cap > worth:
            assert two_ns(time, cap) <= limits.within_ns * (1 + just), "with time for the way"
        if cap < most:
            assert two_ns(time, cap + 1) > limits.within_ns * (1 - just)
        if cap < worth:
            assert two_ns(time, cap + 1) > limits.target_ns * (1 - just)


@often
@given(times, st.sets(st.integers(1, 100), min_size=1, max_size=5), st.integers(1, 300))
def test_where_sizes_are_given_it_is_one_of_them(
    time: BatchTime, given_sizes: set[int], target_ms: int
) -> None:
    sizes = tuple(sorted(given_sizes))
    limits = Limits(sizes[-1], 0, target_ns=target_ms * MS, sizes=sizes)
    worth = limits.padded(worth_running(time, sizes[-1]))
    if two_ns(time, sizes[0]) > limits.within_ns:
        assert cap_of(time, limits) == worth
        return
    keep = max(size for size in sizes if two_ns(time, size) <= limits.within_ns)
    just_keep = max(size for size in sizes if two_ns(time, size) <= limits.target_ns)
    assert cap_of(time, limits) == max(keep, min(worth, just_keep))


@pytest.mark.parametrize(
    ("target_ms", "cap"),
    [(10, 5), (55, 5), (56, 4), (57, 5), (67, 5), (69, 6), (72, 7), (75, 8)],
)
def test_the_smallest_batches_in_figures(target_ms: int, cap: int) -> None:
    """Five rows take a quarter of the fixed cost. Two batches of n take 2.25 x (20 + n) ms: lone
    rows 47.25, which is what the pool may use of 55.6; four 54, five 56.25."""
    assert cap_of(TIME, replace(TARGET, target_ns=target_ms * MS)) == cap


@pytest.mark.parametrize("sizes", [(64,), (1, 8, 64)])
@pytest.mark.parametrize("target_ms", [1, 11, 13, 100])
def test_of_an_engine_of_which_one_time_is_known_the_largest_size_is_taken(
    sizes: tuple[int, ...], target_ms: int
) -> None:
    """As far as anybody knows smaller ones are not faster."""
    limits = Limits(64, 0, target_ns=target_ms * MS, sizes=sizes)
    assert cap_of(time_of(5 * MS, 0, sizes=sizes), limits) == 64


@pytest.mark.parametrize("time", [None, BatchTime()])
def test_unknown_times_bound_nothing(time: BatchTime | None) -> None:
    assert cap_of(time, TARGET) == 8
    assert refused([NOW - 95 * MS] * 99, [Worker(0, 0, None, time, NOW)]) == []


def test_without_a_target_nothing_is_bounded() -> None:
    assert cap_of(time_of(10**12, 10**12), Limits(8, 0)) == 8


def test_where_smaller_batches_are_not_faster_they_stay_large() -> None:
    assert cap_of(time_of(60 * MS, 0), TARGET) == 8


def test_a_batch_of_the_cap_is_full() -> None:
    """(90 / (1 + 1.25) - 20) / 4 = 5 rows."""
    worker = Worker(0, 0, None, time_of(20 * MS, 4 * MS), NOW)
    o = Outcome(Case(waiting([NOW] * 5), [worker], replace(TARGET, max_wait_ns=50 * MS)))
    assert [(d.reason.name, rows) for d, rows in o.batches] == [("FULL", [0, 1, 2, 3, 4])]


def test_a_wait_leaves_time_for_the_batch() -> None:
    """Three rows and one that may come take (20 + 4) x 1.25 = 30 ms of the 90 ms."""
    limits = Limits(64, 80 * MS, adaptive=True, max_wait_peak_ns=80 * MS, target_ns=target_of(90))
    traffic = traffic_of(MS, came_ns=NOW + 59 * MS)
    worker = Worker(0, 0, None, TIME, NOW)
    case = Case(waiting([NOW] * 3), [worker], limits, traffic)
    early = Outcome(replace(case, now=NOW + 60 * MS - 1))
    assert (early.batches, early.decision.wake_at_ns) == ([], NOW + 60 * MS)
    assert Outcome(replace(case, now=NOW + 60 * MS)).sent == [0, 1, 2]


def test_a_wait_leaves_time_for_the_batch_as_it_is_padded() -> None:
    """Three rows run as thirty: (20 + 30) x 1.25 = 62.5 ms of the 135 ms."""
    limits = Limits(
        30, 130 * MS, adaptive=True, target_ns=target_of(135), sizes=(2, 30), max_wait_peak_ns=0
    )
    traffic = traffic_of(MS, came_ns=NOW + 72 * MS)
    worker = Worker(0, 0, None, time_of(20 * MS, 1 * MS, sizes=(2, 30)), NOW)
    case = Case(waiting([NOW] * 3), [worker], limits, traffic, now=NOW + 72 * MS)
    leaves_ns = NOW + 72 * MS + MS // 2
    assert Outcome(case).decision.wake_at_ns == leaves_ns
    assert Outcome(replace(case, now=leaves_ns)).sent == [0, 1, 2]


# -- who is refused -------------------------------------------------------------------------


def really_late(case: Case) -> set[int]:
    """The live rows that no worker answers in time, by the times given: each batch begins when
    the first worker is free, with the first rows that it answers in time; who was passed over
    is late."""
    known = [w for w in case.workers if w.time is not None and w.time.known]
    time = known[0].time
    assert time is not None
    least = cycle_ns(least_cap(time, case.limits), time, case.limits)
    within_ns = int(max(case.limits.within_ns, least))
    queue = case.queue
    rest = [p for p in range(queue.shape[1]) if queue[Field.DEADLINE_NS, p] > case.now]
    due_ns = {
        p: min(queue[Field.SUBMIT_NS, p] + within_ns, queue[Field.DEADLINE_NS, p]) for p in rest
    }
    free_ns = sorted(float(max(case.now, w.free_at_ns)) for w in known)
    late: set[int] = set()
    while rest:
        n = min(cap_of(time, case.limits), len(rest))
        begins_ns = heapq.heapreplace(free_ns, free_ns[0] + time.mean_ns(n))
        batch = [p for p in rest if due_ns[p] >= begins_ns + time.high_ns(n)][:n]
        late |= {p for p in rest if p not in batch and p < max(batch, default=len(queue[0]))}
        rest = [p for p in rest if p not in batch and p not in late]
    return late


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
        limits=replace(o.limits, bucketed=False),
        workers=[replace(w, lanes=None) for w in o.case.workers],
    )
    assert Outcome(Outcome(case).rest()).refused == []


@given(st.integers(0, 3), st.integers(1, 3))
def test_an_idle_pool_refuses_nobody_for_the_target(slow: int, workers: int) -> None:
    """Even where it cannot keep it."""
    time = time_of([20, 44, 60, 400][slow] * MS, 1 * MS)
    crew = [Worker(number, 0, None, time, NOW) for number in range(workers)]
    n = cap_of(time, TARGET) * workers
    assert refused([NOW] * n, crew) == []


def test_who_stands_behind_too_many_is_refused_and_no_one_before() -> None:
    """Batches of eight end at 35, 63 and 91 ms at the latest; they have 90."""
    assert refused([NOW] * 30) == list(range(16, 30))
    two = [Worker(number, 0, None, TIME, NOW) for number in range(2)]
    assert refused([NOW] * 40, two) == list(range(32, 40))


@pytest.mark.parametrize(("later_ns", "late"), [(0, []), (1, [0])])
def test_to_the_nanosecond(later_ns: int, late: list[int]) -> None:
    """Eight rows that a worker begins with in 55 ms are answered in 90 ms."""
    worker = Worker(0, 1, None, TIME, NOW + 55 * MS)
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
    crew = [Worker(0, 0, None, TIME, NOW), Worker(1, 1, None, TIME, NOW + 100 * MS)]
    limits = replace(TARGET, target_ns=target_of(108))
    assert refused([NOW] * 24, crew, limits) == []


def test_an_idle_worker_of_unknown_times_is_worth_a_try() -> None:
    crew = [Worker(0, 1, None, TIME, NOW + 100 * MS), Worker(1, 0)]
    o = Outcome(Case(waiting([NOW] * 2), crew, TARGET))
    assert (o.refused, [(d.worker, rows) for d, rows in o.batches]) == ([], [(1, [0, 1])])


def test_a_worker_of_unknown_times_is_taken_for_as_fast_as_another() -> None:
    """It answers eight rows in 35 ms and eight more in 63 ms."""
    crew = [Worker(0, 1, None, TIME, NOW + 100 * MS), Worker(1, 0)]
    assert refused([NOW] * 40, crew) == list(range(16, 40))


def test_a_worker_that_should_be_free_already_is_so_now_at_the_earliest() -> None:
    worker = Worker(0, 1, None, TIME, NOW - 50 * MS)
    assert refused([NOW - 60 * MS] * 8, [worker]) == list(range(8))


def test_those_who_are_refused_hold_no_place() -> None:
    """Eight in the middle cannot make it; those behind them move up."""
    deadlines = [*[FAR] * 8, *[NOW + 62 * MS] * 8, *[FAR] * 8]
    assert refused([NOW] * 24, deadline=deadlines) == list(range(8, 16))


def test_the_late_are_not_refused_but_expire() -> None:
    o = Outcome(Case(waiting([NOW - 95 * MS] * 2, [NOW, FAR]), [], TARGET))
    assert (o.expired, o.refused) == ([0], [])
    worker = Worker(0, 0, None, TIME, NOW)
    o = Outcome(Case(waiting([NOW - 95 * MS] * 2, [NOW, FAR]), [worker], TARGET))
    assert (o.expired, o.refused) == ([0], [1])


@often
@given(outcomes(target=True))
def test_nobody_becomes_late_before_it_wakes(o: Outcome) -> None:
    """By the time alone, while nothing is sent: where all rows may ride together."""
    case = replace(
        o.case,
        limits=replace(o.limits, bucketed=False),
        workers=[replace(w, lanes=None) for w in o.case.workers],
    )
    o = Outcome(case)
    wake = o.decision.wake_at_ns
    if not o.batches and wake < NEVER_NS:
        rest = o.rest()
        assert Outcome(replace(rest, now=wake - 1)).refused == []


def refusals(case: Case) -> list[tuple[int, list[int]]]:
    """What is refused by the time alone: ns since NOW, names."""
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
    worker = Worker(0, 1, None, TIME, NOW + 10 * MS)
    case = Case(waiting([NOW, NOW, *[NOW + MS] * 5]), [worker], TARGET)
    assert Outcome(case).decision.wake_at_ns == NOW + 5625 * MS // 100 + 1
    assert refusals(case) == [
        (5625 * MS // 100 + 1, [0, 1]),
        (5975 * MS // 100 + 1, [2, 3, 4, 5, 6]),
    ]


def test_rows_of_several_workers_are_refused_each_in_time() -> None:
    """One of the two should be free now, the other in 20 ms; neither ever is."""
    crew = [Worker(0, 2, None, TIME, NOW), Worker(1, 2, None, TIME, NOW + 20 * MS)]
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
