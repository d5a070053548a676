"""A target for the 99th percentile: how large batches may be, and how long they may wait."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.core.scheduler.decide import Limits, WorkerView
from batchpool.core.scheduler.estimators import ServiceTime
from batchpool.core.scheduler.latency_target import cap_of
from tests.unit.core.scheduler.decisions import NOW, Case, Outcome, time_of, traffic_of, waiting
from tests.unit.core.scheduler.queued import MS
from tests.unit.core.scheduler.targets import TARGET, TIME, WITHIN, target_of, two_ns

often = settings(max_examples=100, deadline=None)


# -- the size of batches --------------------------------------------------------------------

times = st.builds(
    time_of,
    st.sampled_from([0, 1, 5, 20, 60]).map(lambda ms: ms * MS),
    st.sampled_from([0.01, 0.1, 1, 3]).map(lambda ms: ms * MS),
    st.sampled_from([1.02, 1.25, 2, 4]),
)


def needed_ns(time: ServiceTime, n: int) -> float:
    """The least target that two of n rows keep: usual ones with time for the way besides, or one
    of them a slow one."""
    return max(2 * time.mean_ns(n) / WITHIN, two_ns(time, n))


def worth_running(time: ServiceTime, most: int) -> int:
    """So many rows take a quarter of the fixed cost."""
    return min(most, max(1, int(time.base_ns / time.row_ns / 4)))


@often
@given(times, st.integers(1, 200), st.integers(1, 300))
def test_two_batches_one_after_the_other_keep_the_target(
    time: ServiceTime, most: int, target_ms: int
) -> None:
    """As large as that allows; where lone rows do not keep it, as large as is worth running."""
    limits = Limits(most, 0, target_ns=target_ms * MS)
    cap, worth = cap_of(time, limits), worth_running(time, most)
    assert 1 <= cap <= most
    just = 1e-9  # of rounding
    if needed_ns(time, 1) > limits.target_ns * (1 + just):
        assert cap == worth
    elif needed_ns(time, 1) < limits.target_ns * (1 - just):
        assert two_ns(time, cap) <= limits.target_ns * (1 + just)
        if cap > worth:
            assert needed_ns(time, cap) <= limits.target_ns * (1 + just), "with time for the way"
        if cap < most:
            assert needed_ns(time, cap + 1) > limits.target_ns * (1 - just)
        if cap < worth:
            assert two_ns(time, cap + 1) > limits.target_ns * (1 - just)


@often
@given(times, st.sets(st.integers(1, 100), min_size=1, max_size=5), st.integers(1, 300))
def test_where_sizes_are_given_it_is_one_of_them(
    time: ServiceTime, given_sizes: set[int], target_ms: int
) -> None:
    sizes = tuple(sorted(given_sizes))
    limits = Limits(sizes[-1], 0, target_ns=target_ms * MS, sizes=sizes)
    worth = limits.padded(worth_running(time, sizes[-1]))
    if needed_ns(time, sizes[0]) > limits.target_ns:
        assert cap_of(time, limits) == worth
        return
    keep = max(size for size in sizes if needed_ns(time, size) <= limits.target_ns)
    just_keep = max(size for size in sizes if two_ns(time, size) <= limits.target_ns)
    assert cap_of(time, limits) == max(keep, min(worth, just_keep))


@pytest.mark.parametrize(
    ("target_ms", "cap"),
    [(10, 5), (49, 5), (50, 2), (52, 3), (55, 4), (57, 5), (61, 5), (62, 6), (64, 7), (66, 8)],
)
def test_the_smallest_batches_in_figures(target_ms: int, cap: int) -> None:
    """Five rows take a quarter of the fixed cost. Two usual lone rows take 42 ms, which is what the
    pool may use of 49.4; two batches of n, one of them slow, 2.25 x (20 + n): two 49.5, three
    51.75, four 54, five 56.25. From six on two usual ones: 52 ms are what it may use of 61.2."""
    assert cap_of(TIME, replace(TARGET, target_ns=target_ms * MS)) == cap


@pytest.mark.parametrize("sizes", [(64,), (1, 8, 64)])
@pytest.mark.parametrize("target_ms", [1, 11, 13, 100])
def test_of_an_engine_of_which_one_time_is_known_the_largest_size_is_taken(
    sizes: tuple[int, ...], target_ms: int
) -> None:
    """As far as anybody knows smaller ones are not faster."""
    limits = Limits(64, 0, target_ns=target_ms * MS, sizes=sizes)
    assert cap_of(time_of(5 * MS, 0, sizes=sizes), limits) == 64


@pytest.mark.parametrize("time", [None, ServiceTime()])
def test_unknown_times_bound_nothing(time: ServiceTime | None) -> None:
    assert cap_of(time, TARGET) == 8


def test_without_a_target_nothing_is_bounded() -> None:
    assert cap_of(time_of(10**12, 10**12), Limits(8, 0)) == 8


def test_where_smaller_batches_are_not_faster_they_stay_large() -> None:
    assert cap_of(time_of(60 * MS, 0), TARGET) == 8


def test_a_batch_of_the_cap_is_full() -> None:
    """(90 / 2 - 20) / 4 = 6.25 rows."""
    worker = WorkerView(0, 0, None, time_of(20 * MS, 4 * MS), NOW)
    o = Outcome(Case(waiting([NOW] * 6), [worker], replace(TARGET, max_wait_ns=50 * MS)))
    assert [(d.reason.name, rows) for d, rows in o.batches] == [("FULL", [0, 1, 2, 3, 4, 5])]


def test_a_wait_leaves_time_for_the_batch() -> None:
    """Three rows and one that may come take (20 + 4) x 1.25 = 30 ms of the 90 ms."""
    limits = Limits(64, 80 * MS, adaptive=True, max_wait_peak_ns=80 * MS, target_ns=target_of(90))
    traffic = traffic_of(MS, came_ns=NOW + 59 * MS)
    worker = WorkerView(0, 0, None, TIME, NOW)
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
    worker = WorkerView(0, 0, None, time_of(20 * MS, 1 * MS, sizes=(2, 30)), NOW)
    case = Case(waiting([NOW] * 3), [worker], limits, traffic, now=NOW + 72 * MS)
    leaves_ns = NOW + 72 * MS + MS // 2
    assert Outcome(case).decision.wake_at_ns == leaves_ns
    assert Outcome(replace(case, now=leaves_ns)).sent == [0, 1, 2]
