"""A drain ends by the batcher's reports and the lanes; a slow client does not hold it up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from batchpool.supervisor.drain import Drain

MS = 1_000_000


class Lanes:
    """Lanes with so many rows to fetch; one of them is closing."""

    def __init__(self, *rows: int) -> None:
        self.rows = list(rows)

    def __iter__(self) -> Any:
        lanes = [SimpleNamespace(rows=lambda n=n: n, closing=False) for n in self.rows]
        return iter([*lanes, SimpleNamespace(rows=lambda: 99, closing=True)])


def drain(lanes: Lanes) -> Drain:
    return Drain(cast(Any, lanes))


def test_it_is_over_when_the_batcher_is_done_and_the_lanes_stay_empty_for_a_while() -> None:
    lanes = Lanes(0, 2)
    one = drain(lanes)
    assert not one.is_over(1000 * MS), "the batcher has rows"
    one.batcher_done = True
    assert (one.rows(), one.is_over(1100 * MS)) == (2, False), "a client has yet to take them"
    lanes.rows = [0, 0]
    assert not one.is_over(1200 * MS), "a claim may be about to show"
    lanes.rows = [1, 0]
    assert not one.is_over(1250 * MS)
    lanes.rows = [0, 0]
    assert not one.is_over(1300 * MS)
    assert not one.is_over(1399 * MS)
    assert one.is_over(1400 * MS)


def test_rows_that_nobody_fetches_hold_it_up_for_a_second() -> None:
    one = drain(Lanes(3))
    one.batcher_done = True
    assert not one.is_over(5000 * MS)
    assert not one.is_over(5999 * MS)
    assert one.is_over(6000 * MS)
    assert one.rows() == 3


def test_each_drain_begins_anew() -> None:
    one = drain(Lanes(0))
    number = one.begin()
    one.batcher_reported(number, True)
    one.is_over(1000 * MS)
    assert one.is_over(2000 * MS)
    assert one.begin() == number + 1
    one.batcher_reported(number, True)
    assert not one.is_over(9000 * MS), "that was of the drain before"
    one.batcher_reported(number + 1, True)
    assert not one.is_over(9000 * MS)
    assert one.is_over(9100 * MS)


def test_the_last_drain_waits_for_the_batcher_only() -> None:
    one = drain(Lanes(1))
    number = one.begin(last=True)
    assert not one.is_over(1000 * MS)
    one.batcher_reported(number, True)
    assert one.is_over(1000 * MS), "whoever claims now knows that it is not admitted"


def test_a_row_that_came_late_is_waited_for_however_long_it_takes() -> None:
    lanes = Lanes(1)
    one = drain(lanes)
    number = one.begin()
    one.batcher_reported(number, True)
    assert not one.is_over(1000 * MS)
    one.batcher_reported(number, False)
    assert not one.is_over(9000 * MS)
    one.batcher_reported(number, True)
    assert not one.is_over(9100 * MS), "its client has yet to take it"
    lanes.rows = [0]
    assert not one.is_over(9200 * MS)
    assert one.is_over(9300 * MS)
