"""Gaps of the supervisor's loop: time without a look does not count, by a measure of each limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from batchpool.supervisor.children.watchdog import LoopGaps

LOOK = 250
gaps = st.lists(st.integers(0, 20_000), min_size=1, max_size=30)
limits = st.integers(1, 30_000)


@given(gaps, limits, st.integers(0, 5000))
def test_what_is_counted_was_watched(gaps: list[int], limit: int, since: int) -> None:
    """Never more than the time that passed, nothing from before the last gap."""
    loop_gaps = LoopGaps(LOOK, [limit], now_ns=0)
    now = fresh = 0
    for gap in gaps:
        now += gap
        loop_gaps.look(now)
        if gap > max(limit // 2, 2 * LOOK):
            fresh = now
        assert loop_gaps.watched_ns(since, limit) == now - max(since, fresh)


@given(limits, st.lists(st.integers(0, LOOK), min_size=1, max_size=200))
def test_one_who_looks_as_often_as_it_said_misses_nothing(limit: int, gaps: list[int]) -> None:
    loop_gaps = LoopGaps(LOOK, [limit], now_ns=0)
    now = 0
    for gap in gaps:
        now += gap
        loop_gaps.look(now)
    assert loop_gaps.watched_ns(0, limit) == now


@given(gaps, st.lists(limits, min_size=1, max_size=5, unique=True))
def test_no_limit_can_pass_within_a_gap_of_its_own(gaps: list[int], limits: list[int]) -> None:
    """One look after a gap of any length, nobody has been quiet for long."""
    loop_gaps = LoopGaps(LOOK, limits, now_ns=0)
    now = 0
    for gap in gaps:
        now += gap
        loop_gaps.look(now)
        now += 2 * LOOK + max(limits)
        loop_gaps.look(now)
        assert all(loop_gaps.watched_ns(0, limit) == 0 for limit in limits)


def test_a_gap_for_a_short_limit_is_none_for_a_long_one() -> None:
    loop_gaps = LoopGaps(LOOK, [4_000, 30_000], now_ns=0)
    loop_gaps.look(2_000)
    assert loop_gaps.watched_ns(0, 4_000) == 2_000
    loop_gaps.look(4_001)
    assert loop_gaps.watched_ns(0, 4_000) == 0
    assert loop_gaps.watched_ns(0, 30_000) == 4_001
