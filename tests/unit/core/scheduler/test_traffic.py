"""Estimates of arrivals, and the rules that weigh whether to wait for more rows."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import mean

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from batchpool.core.scheduler.estimators import (
    _GAPS,
    _SLACK,
    ArrivalEstimator,
    ServiceTime,
    patience_ns,
)
from tests.unit.core.scheduler.decisions import time_of, traffic_of, worth_until_ns
from tests.unit.core.scheduler.queued import MS

often = settings(max_examples=200, deadline=None)


def steady(
    gap_ns: int, rows: int, times: int, traffic: ArrivalEstimator | None = None
) -> ArrivalEstimator:
    traffic = traffic or ArrivalEstimator()
    start = (traffic.last_ns or 10**15) + gap_ns
    for at in range(start, start + times * gap_ns, gap_ns):
        traffic.arrived(rows, at)
    return traffic


def test_before_anybody_came_nobody_is_expected() -> None:
    assert ArrivalEstimator().gap_ns >= 1e9
    assert patience_ns(1, time_of(100 * MS, 0), ArrivalEstimator()) == 0


@pytest.mark.parametrize(("gap_ns", "rows"), [(MS, 1), (20 * MS, 7), (10_000, 64)])
def test_constant_gaps(gap_ns: int, rows: int) -> None:
    traffic = steady(gap_ns, rows, 200)
    assert gap_ns <= traffic.gap_ns <= 2 * gap_ns
    assert traffic.rows == pytest.approx(rows, rel=1e-6)
    assert traffic.rows_per_s == pytest.approx(1e9 * rows / gap_ns, rel=1e-4)


def test_gaps_of_random_arrivals() -> None:
    """Of a Poisson stream the gap is its mean."""
    rng = random.Random(5)
    traffic, now, gaps, rates = ArrivalEstimator(), 10**15, [], []
    for at in range(6000):
        now += round(rng.expovariate(1) * MS)
        traffic.arrived(2, now)
        if at > 200:
            gaps.append(traffic.gap_ns)
            rates.append(1e9 / traffic.rows_per_s)
    assert mean(gaps) == pytest.approx(MS, rel=0.15)
    assert mean(rates) == pytest.approx(MS / 2, rel=0.1)


def test_a_burst_after_a_long_silence_shows_after_a_few_arrivals() -> None:
    traffic = steady(MS, 1, 100)
    traffic.arrived(1, traffic.last_ns + 3600 * 10**9)
    assert steady(MS, 1, 16, traffic).gap_ns < 5 * MS


def test_one_silence_says_nothing_about_the_gaps_in_a_burst() -> None:
    traffic = steady(MS, 1, 100)
    before = traffic.gap_ns
    traffic.arrived(1, traffic.last_ns + 10**9)
    assert steady(MS, 1, 4, traffic).gap_ns < 3 * before


def test_after_a_silence_only_what_came_since_is_expected_again() -> None:
    """Nine silent gaps are too many for chance; the next arrival shows that it was a burst."""
    traffic = steady(MS, 16, 100)
    before = traffic.gap_ns
    for usual, silence_ns in ((True, 7 * MS), (False, 20 * MS), (False, 20 * 10**9)):
        traffic.arrived(2, traffic.last_ns + silence_ns)
        if usual:
            assert traffic.gap_ns < 3 * before
            continue
        assert (traffic.gap_ns, traffic.rows) == (silence_ns, 2)
        assert traffic.rows_per_s == pytest.approx(2e9 / silence_ns)
        traffic.arrived(16, traffic.last_ns + MS)
        assert traffic.gap_ns < 5 * before
        assert traffic.rows > 8


EVENTS = st.tuples(st.sampled_from([0, 1, 1, 3, 64]), st.integers(0, 9), st.integers(1, 40))


@settings(max_examples=300, deadline=None)
@given(
    history=st.lists(EVENTS, max_size=12),
    base_us=st.integers(0, 4_000_000),
    row_us=st.integers(0, 1_000),
    workers=st.integers(1, 5),
    quiet_us=st.one_of(st.integers(0, 60_000), st.integers(0, 40_000_000)),
)
def test_a_lone_row_waits_for_no_more_than_the_silence_before_it_justifies(
    history: list[tuple[int, int, int]], base_us: int, row_us: int, workers: int, quiet_us: int
) -> None:
    """Whatever came before (rows so often, 10^k ns apart; 0 rows: a batch was answered): never
    longer than the fixed cost of a batch, and not at all after a silence of eight times that."""
    time, traffic, now = time_of(1000 * base_us, 1000 * row_us), ArrivalEstimator(), 10**15
    for n, decade, times in history:
        for _ in range(times):
            now += 10**decade
            if n:
                traffic.arrived(n, now)
            else:
                traffic.finished(now)
    now += 1000 * quiet_us
    traffic.arrived(1, now)
    waits_ns = max(0, worth_until_ns(traffic, 1, time, workers) - now)
    assert waits_ns <= time.base_ns
    if quiet_us >= 8 * base_us:
        assert waits_ns == 0


def test_more_rows_per_arrival_show_after_a_few() -> None:
    traffic = steady(MS, 1, 100)
    assert steady(MS, 9, 8, traffic).rows > 5
    assert steady(MS, 9, 40, traffic).rows == pytest.approx(9, rel=0.01)


@often
@given(st.lists(st.tuples(st.integers(1, 100), st.integers(-MS, 10**12)), max_size=30))
def test_averages_are_finite_and_positive_whatever_the_clock_does(
    arrivals: list[tuple[int, int]],
) -> None:
    traffic, now = ArrivalEstimator(), 10**15
    for n, gap_ns in arrivals:
        now += gap_ns
        traffic.arrived(n, now)
        assert 0 < traffic.gap_ns <= 2 * 10**15, "the first one came after all the time before it"
        assert 1 <= traffic.rows <= 100
        assert 0 < traffic.rows_per_s < 1e12
        assert traffic.last_ns == now


# -- the rule -------------------------------------------------------------------------------


def waiting_ns(n: int, k: int, gap_ns: float, time: ServiceTime, *, together: bool) -> float:
    """The sum of all rows' times to their answer, from now: n are here, k come after the gap."""
    if together:
        return (n + k) * (gap_ns + time.mean_ns(n + k)) - k * gap_ns
    first_ns = time.mean_ns(n)
    second_ns = max(first_ns, gap_ns) + time.mean_ns(k)
    return n * first_ns + k * (second_ns - gap_ns)


@settings(max_examples=200, deadline=None)
@given(
    n=st.integers(1, 64),
    k=st.integers(1, 64),
    gap_us=st.integers(1, 20_000),
    base_us=st.integers(0, 40_000),
    row_us=st.integers(0, 1_000),
)
def test_waiting_is_chosen_where_all_wait_less_in_sum(
    n: int, k: int, gap_us: int, base_us: int, row_us: int
) -> None:
    time = time_of(1000 * base_us, 1000 * row_us)
    traffic = traffic_of(1000 * gap_us, k)
    apart = waiting_ns(n, k, traffic.gap_ns, time, together=False)
    together = waiting_ns(n, k, traffic.gap_ns, time, together=True)
    assume(abs(apart - together) > 1e-4 * apart)
    patience = patience_ns(n, time, traffic)
    assert (patience > 0) == (together < apart)
    if patience > 0:
        assert patience > traffic.gap_ns


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 40_000), st.integers(0, 1_000))
def test_patience_is_the_gap_at_which_both_are_the_same(
    n: int, k: int, base_us: int, row_us: int
) -> None:
    time = time_of(1000 * base_us, 1000 * row_us)
    traffic = traffic_of(1, k)
    patience = patience_ns(n, time, traffic)
    if patience > 0:
        k_rows = round(traffic.rows)
        apart = waiting_ns(n, k_rows, patience, time, together=False)
        together = waiting_ns(n, k_rows, patience, time, together=True)
        assert together == pytest.approx(apart, rel=1e-3)
    else:
        assert base_us <= n * row_us + 1


def test_patience_in_figures() -> None:
    """1 (10 - 4 x 0.5) / (4 + 1) ms."""
    assert patience_ns(4, time_of(10 * MS, MS / 2), traffic_of(MS // 10)) == pytest.approx(1.6 * MS)


# -- several workers ------------------------------------------------------------------------


@often
@given(
    gap_us=st.integers(10, 10_000),
    rows=st.integers(1, 16),
    base_us=st.integers(0, 40_000),
    row_us=st.integers(0, 1_000),
    workers=st.integers(2, 8),
)
def test_batches_that_keep_up_are_the_smallest_that_do(
    gap_us: int, rows: int, base_us: int, row_us: int, workers: int
) -> None:
    """As many rows a second as come in, and a bit more; none are enough where every row takes
    longer than the workers have for it."""
    time, traffic = time_of(1000 * base_us, 1000 * row_us), traffic_of(1000 * gap_us, rows)
    enough = traffic.rows_to_keep_up(time, workers)
    wanted_per_s = _SLACK * traffic.rows_per_s
    most_per_s = workers * 1e9 / time.row_ns if row_us else math.inf
    if math.isinf(enough):
        assert most_per_s <= wanted_per_s * 1.0001
        return
    assert most_per_s >= wanted_per_s * 0.9999
    assume(enough > 1e-6)
    for n, keeps in ((enough * 1.001, True), (enough * 0.999, False)):
        took_ns = time.base_ns + n * time.row_ns  # n is no whole number here
        assert (workers * n * 1e9 / took_ns >= wanted_per_s) == keeps


def test_with_several_workers_enough_rows_do_not_wait_and_fewer_while_rows_come() -> None:
    """A row every ms, with batches of 10 ms and the slack to have time left: 6.5 rows each."""
    time, traffic = time_of(10 * MS, 0), traffic_of(MS)
    assert traffic.rows_to_keep_up(time, 2) == pytest.approx(10 * _SLACK / 2, rel=0.01)
    until_ns = traffic.last_ns + int(_GAPS * traffic.gap_ns)
    assert worth_until_ns(traffic, 7, time, 2) == 0
    assert worth_until_ns(traffic, 6, time, 2) == until_ns
    assert worth_until_ns(traffic, 6, time, 20) == 0
    assert worth_until_ns(traffic, 2, time, 2, most=4) == until_ns
    assert worth_until_ns(traffic, 4, time, 2, most=4) == 0, "full"


def test_with_several_workers_nobody_waits_longer_than_company_can_save() -> None:
    """A batch more costs 3 ms: no more than three rows can come in that."""
    traffic = traffic_of(MS)
    slow = time_of(3 * MS, 6 * MS / 10)
    assert traffic.rows_to_keep_up(slow, 2) == pytest.approx(3.2, rel=0.01)
    assert worth_until_ns(traffic, 1, slow, 2) > traffic.last_ns
    steep = time_of(3 * MS, 9 * MS / 10)
    assert traffic.rows_to_keep_up(steep, 2) == pytest.approx(4.7, rel=0.01)
    assert worth_until_ns(traffic, 1, steep, 2) == 0
    assert worth_until_ns(traffic, 2, steep, 2) > traffic.last_ns
    assert worth_until_ns(traffic, 1, steep, 2, most=3) > traffic.last_ns


def test_with_several_workers_a_silence_is_no_longer_than_company_can_save() -> None:
    """Rows come by the 64: the missing ones would, but not within the 10 ms of a batch."""
    time = time_of(10 * MS, 0)
    many = traffic_of(9 * MS, 64)
    assert many.gap_ns > 10 * MS
    assert worth_until_ns(many, 1, time, 2) == 0
    many = traffic_of(5 * MS, 64)
    assert worth_until_ns(many, 1, time, 2) == many.last_ns + 10 * MS


# -- callers that send again ----------------------------------------------------------------


def cycles(
    traffic: ArrivalEstimator, offsets_ns: Sequence[int], times: int, cycle_ns: int = 20 * MS
) -> int:
    """So many batches, each answered and followed by these; returns when the last one was."""
    done_ns = (traffic.last_ns or 10**15) + cycle_ns
    for _ in range(times):
        traffic.finished(done_ns)
        for offset_ns in offsets_ns:
            traffic.arrived(1, done_ns + offset_ns)
        done_ns += cycle_ns
    traffic.finished(done_ns)
    return done_ns


SAVES = time_of(MS, MS)  # something for an echo, nothing for a lone row


def test_the_rest_of_those_who_send_again_is_waited_for() -> None:
    """Up to four times as long as they take on average; where all have come, no more."""
    traffic = ArrivalEstimator()
    done_ns = cycles(traffic, [MS // 10, MS // 5, MS * 3 // 10], 30, cycle_ns=1000 * MS)
    assert worth_until_ns(traffic, 1, SAVES) > done_ns + MS * 3 // 10
    traffic.arrived(1, done_ns + MS // 10)
    traffic.arrived(1, done_ns + MS // 5)
    until_ns = worth_until_ns(traffic, 2, SAVES)
    assert until_ns - done_ns == pytest.approx(4 * MS / 5, rel=0.01)
    traffic.arrived(1, done_ns + MS * 3 // 10)
    assert worth_until_ns(traffic, 3, SAVES) == 0


def test_an_echo_is_not_waited_for_longer_than_that_saves() -> None:
    traffic = ArrivalEstimator()
    done_ns = cycles(traffic, [4 * MS, 8 * MS], 60, cycle_ns=1000 * MS)
    traffic.arrived(1, done_ns + 4 * MS)
    assert worth_until_ns(traffic, 1, time_of(30 * MS, 0)) > done_ns + 8 * MS
    assert worth_until_ns(traffic, 1, time_of(15 * MS, 0)) == 0


@pytest.mark.parametrize(("base_ms", "workers"), [(13, 1), (25, 2), (49, 4)])
def test_who_is_left_behind_waits_for_the_first_of_several_workers(
    base_ms: int, workers: int
) -> None:
    """At most 12 ms are waited, by one row that misses another: worth it where the next worker
    is free later than that."""
    traffic = ArrivalEstimator()
    done_ns = cycles(traffic, [2 * MS, 4 * MS], 60, cycle_ns=1000 * MS)
    traffic.arrived(1, done_ns + 2 * MS)
    until_ns = worth_until_ns(traffic, 1, time_of(base_ms * MS, 0), workers)
    assert until_ns - done_ns == pytest.approx(12 * MS, rel=0.05)
    assert worth_until_ns(traffic, 1, time_of((base_ms - 2 * workers) * MS, 0), workers) == 0
    traffic.arrived(1, done_ns + 4 * MS)
    assert worth_until_ns(traffic, 2, time_of(base_ms * MS, 0), workers) == 0


def test_rows_that_come_all_the_time_are_no_closed_loop() -> None:
    traffic = ArrivalEstimator()
    done_ns = cycles(traffic, [i * MS for i in range(1, 20)], 60)
    traffic.arrived(1, done_ns + MS)
    assert worth_until_ns(traffic, 1, time_of(900 * MS, 900 * MS)) == 0


def test_an_echo_is_as_late_as_its_rows_are() -> None:
    """Ten after 0.1 ms and two after 0.2 ms: 0.117 ms on average."""
    traffic, done_ns = ArrivalEstimator(), 10**15
    for _ in range(30):
        traffic.finished(done_ns)
        traffic.arrived(10, done_ns + MS // 10)
        traffic.arrived(2, done_ns + MS // 5)
        done_ns += 1000 * MS
    traffic.finished(done_ns)
    traffic.arrived(10, done_ns + MS // 10)
    until_ns = worth_until_ns(traffic, 10, SAVES)
    assert until_ns - done_ns == pytest.approx(4 * MS * 1.4 / 12, rel=0.01)


def test_who_came_late_once_is_not_left_behind() -> None:
    """Nor are those who come in greater numbers; who stays away is forgotten."""
    traffic = ArrivalEstimator()
    for usual, now in ((2, 1), (1, 4)):
        cycles(traffic, [MS // 10] * usual, 30, cycle_ns=1000 * MS)
        done_ns = cycles(traffic, [MS // 10] * now, 1, cycle_ns=1000 * MS)
        for _ in range(max(usual, now) - 1):
            traffic.arrived(1, done_ns + MS // 10)
        assert worth_until_ns(traffic, 1, SAVES) > done_ns
        traffic.arrived(1, done_ns + MS // 10)
        assert worth_until_ns(traffic, 1, SAVES) == 0
    done_ns = cycles(traffic, [MS // 10], 30, cycle_ns=1000 * MS)
    traffic.arrived(1, done_ns + MS // 10)
    assert worth_until_ns(traffic, 1, SAVES) == 0
