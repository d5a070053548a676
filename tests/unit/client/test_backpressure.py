"""Sources of Retry-After: the drain rate, stalls left out, and how long an outage lasts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.client.backpressure import DrainRate, OutageBackoff

S = 1_000_000_000
MS = 1_000_000
START = 77 * S


def at_rate(drain_rate: DrainRate, rows_per_s: int, seconds: int, start: int = START) -> int:
    """Completions in groups of a tenth of a second; returns the time of the last."""
    for tenth in range(10 * seconds + 1):
        drain_rate.count(rows_per_s // 10, start + tenth * S // 10)
    return start + seconds * S


def test_before_any_measurement_it_is_a_second() -> None:
    drain_rate = DrainRate()
    assert drain_rate.wait_ms(1) == drain_rate.wait_ms(10_000) == 1000
    drain_rate.count(50, START)  # one completion says nothing about the time between two
    assert drain_rate.wait_ms(100) == 1000
    assert drain_rate.rows_per_s() == 0


@pytest.mark.parametrize("rows_per_s", [10, 1000, 500_000])
def test_a_steady_rate_is_measured(rows_per_s: int) -> None:
    drain_rate = DrainRate()
    at_rate(drain_rate, rows_per_s, 3)
    assert drain_rate.rows_per_s() == pytest.approx(rows_per_s)
    assert drain_rate.wait_ms(rows_per_s) == 1000
    assert drain_rate.wait_ms(3 * rows_per_s) == 3000


def test_the_wait_is_at_least_a_millisecond_and_at_most_half_a_minute() -> None:
    drain_rate = DrainRate()
    at_rate(drain_rate, 1000, 2)
    assert drain_rate.wait_ms(0) == drain_rate.wait_ms(-7) == drain_rate.wait_ms(1) == 1
    assert drain_rate.wait_ms(29_000) == 29_000
    assert drain_rate.wait_ms(10**9) == 30_000
    fast = DrainRate()
    at_rate(fast, 1_000_000, 1)
    assert fast.wait_ms(1) == 1


def test_small_steps_add_up_to_a_window() -> None:
    drain_rate = DrainRate()
    for ms in range(101):
        drain_rate.count(1, START + ms * S // 1000)
    assert drain_rate.rows_per_s() == pytest.approx(1000)


def test_it_follows_a_change_of_rate() -> None:
    drain_rate = DrainRate()
    end = at_rate(drain_rate, 1000, 2)
    at_rate(drain_rate, 100, 5, start=end)
    assert drain_rate.rows_per_s() == pytest.approx(100, rel=0.05)


def test_a_pause_without_work_is_no_slow_drain() -> None:
    drain_rate = DrainRate()
    end = at_rate(drain_rate, 1000, 2)
    drain_rate.pause()
    at_rate(drain_rate, 1000, 1, start=end + 3600 * S)
    assert drain_rate.rows_per_s() == pytest.approx(1000)


def test_a_slow_batch_counts_over_its_whole_time() -> None:
    drain_rate = DrainRate()
    drain_rate.count(64, START)
    drain_rate.count(64, START + 4 * S)
    assert drain_rate.rows_per_s() == pytest.approx(16)


def test_windows_of_unequal_length_count_by_their_length() -> None:
    """Workers that finish together: a burst of 512 rows each second, over a tenth of it."""
    drain_rate = DrainRate()
    for second in range(20):
        for batch in range(8):
            drain_rate.count(64, START + second * S + batch * 15 * MS)
    assert drain_rate.rows_per_s() == pytest.approx(512, rel=0.25)


# -- stalls -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stall_s", [5, 60, 3600])
def test_a_stall_is_no_drain(stall_s: int) -> None:
    drain_rate = DrainRate()
    end = at_rate(drain_rate, 1000, 5)
    drain_rate.count(100, end + stall_s * S)  # the workers are back
    assert drain_rate.rows_per_s() == pytest.approx(1000)
    assert drain_rate.wait_ms(500) == 500
    at_rate(drain_rate, 1000, 1, start=end + stall_s * S + S // 10)
    assert drain_rate.rows_per_s() == pytest.approx(1000)


def test_stalls_one_after_another_with_some_work_between() -> None:
    """As when a row kills its worker several times."""
    drain_rate = DrainRate()
    end = at_rate(drain_rate, 1000, 5)
    for _ in range(3):
        end = at_rate(drain_rate, 1000, 3, start=end + 10 * S)
    assert drain_rate.rows_per_s() == pytest.approx(1000)


def test_a_stall_before_anything_was_measured() -> None:
    drain_rate = DrainRate()
    drain_rate.count(64, START)
    drain_rate.count(64, START + 300 * S)
    assert drain_rate.wait_ms(64) == 1000, "nothing is known"
    at_rate(drain_rate, 640, 1, start=START + 300 * S + S // 10)
    assert drain_rate.wait_ms(64) == 100


@pytest.mark.parametrize("batch_s", [1, 4, 10, 60])
def test_batches_that_take_long_are_no_stalls(batch_s: int) -> None:
    drain_rate = DrainRate()
    for batch in range(6):
        drain_rate.count(64, START + batch * batch_s * S)
    assert drain_rate.rows_per_s() == pytest.approx(64 / batch_s)


@pytest.mark.parametrize("slower", [2, 5, 20, 50])
def test_a_model_that_gets_slower_is_believed_after_a_few_batches(slower: int) -> None:
    drain_rate = DrainRate()
    end = START
    for batch_s in [0.2] * 50 + [0.2 * slower] * 14:
        end += int(batch_s * S)
        drain_rate.count(64, end)
    assert drain_rate.rows_per_s() == pytest.approx(320 / slower, rel=0.1)


@given(
    # What came before, and then a steady pace: rows, and milliseconds to the next completion.
    st.lists(st.tuples(st.integers(1, 4096), st.integers(0, 100_000)), max_size=60),
    st.integers(1, 1024),
    st.sampled_from([1, 30, 100, 700, 5000, 20_000]),
)
def test_whatever_came_before_a_steady_rate_is_found_again(
    before: list[tuple[int, int]], rows: int, gap_ms: int
) -> None:
    drain_rate = DrainRate()
    now_ns = START
    for some, later_ms in before:
        drain_rate.count(some, now_ns)
        now_ns += later_ms * MS
        assert 1 <= drain_rate.wait_ms(some) <= 30_000
    window_ms = gap_ms * -(-100 // gap_ms)
    for _ in range(60 * window_ms // gap_ms):
        drain_rate.count(rows, now_ns)
        now_ns += gap_ms * MS
    assert drain_rate.rows_per_s() == pytest.approx(rows * 1000 / gap_ms, rel=0.1)


# -- outages ----------------------------------------------------------------------------------


def test_an_outage_is_expected_to_last_as_long_again() -> None:
    backoff = OutageBackoff(START)
    waits = [backoff.wait_ms(START + ms * MS) for ms in (0, 10, 1000, 1001, 2500, 29_999, 60_000)]
    assert waits == [1000, 1000, 1000, 1001, 2500, 29_999, 30_000]


def test_a_caller_who_keeps_to_it_asks_a_few_times_and_is_not_twice_as_late() -> None:
    for lasts_ms in (10, 900, 1500, 7000, 29_000, 100_000):
        backoff = OutageBackoff(START)
        at_ms = asked = 0
        while at_ms < lasts_ms:
            at_ms += backoff.wait_ms(START + at_ms * MS)
            asked += 1
        assert at_ms <= max(1000, 2 * lasts_ms)
        assert at_ms <= lasts_ms + 30_000
        assert asked <= 9


def test_an_outage_that_nobody_met_for_a_minute_is_another() -> None:
    backoff = OutageBackoff(START)
    assert backoff.wait_ms(START + 20 * S) == 20_000
    assert backoff.wait_ms(START + 80 * S) == 30_000, "who was told half a minute may be late"
    assert backoff.wait_ms(START + 80 * S + 60 * S + 1) == 1000
    assert backoff.wait_ms(START + 80 * S + 65 * S + 1) == 5000
