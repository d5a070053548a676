"""The drain rate that Retry-After is told from."""

from __future__ import annotations

import pytest

from batchpool.client.pace import Pace

S = 1_000_000_000
START = 77 * S


def at_rate(pace: Pace, rows_per_s: int, seconds: int, start: int = START) -> int:
    """Completions in groups of a tenth of a second; returns the time of the last."""
    for tenth in range(10 * seconds + 1):
        pace.count(rows_per_s // 10, start + tenth * S // 10)
    return start + seconds * S


def test_before_any_measurement_it_is_a_second() -> None:
    pace = Pace()
    assert pace.wait_ms(1) == pace.wait_ms(10_000) == 1000
    pace.count(50, START)  # one completion says nothing about the time between two
    assert pace.wait_ms(100) == 1000
    assert pace.rows_per_s() == 0


@pytest.mark.parametrize("rows_per_s", [10, 1000, 500_000])
def test_a_steady_rate_is_measured(rows_per_s: int) -> None:
    pace = Pace()
    at_rate(pace, rows_per_s, 3)
    assert pace.rows_per_s() == pytest.approx(rows_per_s)
    assert pace.wait_ms(rows_per_s) == 1000
    assert pace.wait_ms(3 * rows_per_s) == 3000


def test_the_wait_is_at_least_a_millisecond_and_at_most_a_minute() -> None:
    pace = Pace()
    at_rate(pace, 1000, 2)
    assert pace.wait_ms(0) == pace.wait_ms(-7) == pace.wait_ms(1) == 1
    assert pace.wait_ms(59_000) == 59_000
    assert pace.wait_ms(10**9) == 60_000
    fast = Pace()
    at_rate(fast, 1_000_000, 1)
    assert fast.wait_ms(1) == 1


def test_small_steps_add_up_to_a_window() -> None:
    pace = Pace()
    for ms in range(101):
        pace.count(1, START + ms * S // 1000)
    assert pace.rows_per_s() == pytest.approx(1000)


def test_it_follows_a_change_of_rate() -> None:
    pace = Pace()
    end = at_rate(pace, 1000, 2)
    at_rate(pace, 100, 5, start=end)
    assert pace.rows_per_s() == pytest.approx(100, rel=0.05)


def test_a_pause_without_work_is_no_slow_drain() -> None:
    pace = Pace()
    end = at_rate(pace, 1000, 2)
    pace.pause()
    at_rate(pace, 1000, 1, start=end + 3600 * S)
    assert pace.rows_per_s() == pytest.approx(1000)


def test_a_slow_batch_counts_over_its_whole_time() -> None:
    pace = Pace()
    pace.count(64, START)
    pace.count(64, START + 4 * S)
    assert pace.rows_per_s() == pytest.approx(16)
