"""The free runs of an arena: nothing is given twice, and what is freed comes together again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.core.layout.free_runs import FreeRuns

SIZE = 64


def test_the_first_run_that_is_long_enough_is_taken() -> None:
    free = FreeRuns(SIZE)
    assert [free.take(8), free.take(16), free.take(8)] == [0, 8, 24]
    free.give_back(8, 16)
    assert free.take(17) == 32, "the gap is too short"
    assert [free.take(8), free.take(8)] == [8, 16], "the gap goes first"
    assert free.take(SIZE) == -1


def test_neighbours_are_joined_on_both_sides() -> None:
    free = FreeRuns(SIZE)
    places = [free.take(16) for _ in range(4)]
    assert free.largest == 0
    for place in (places[0], places[2]):
        free.give_back(place, 16)
    assert free.largest == 16
    free.give_back(places[1], 16)
    assert free.largest == 48
    free.give_back(places[3], 16)
    assert free.take(SIZE) == 0


def test_the_last_long_run_is_left_where_that_is_asked() -> None:
    free = FreeRuns(SIZE)
    wall = [free.take(20), free.take(4)]
    free.give_back(wall[0], 20)  # runs of 20 and 40
    assert free.take(8, keep=36) == 0, "40 is not touched"
    assert free.take(16, keep=36) == -1, "it would leave 24 of 40"
    assert free.take(4, keep=36) == 8
    assert free.take(16, keep=24) == 24
    assert free.largest == 24
    assert free.take(20, keep=30) == 40, "there is none to leave"


@pytest.mark.parametrize("place", [0, 8])
def test_a_run_that_comes_back_twice_is_noticed(place: int) -> None:
    free = FreeRuns(SIZE)
    taken = free.take(8), free.take(8), free.take(8)
    free.give_back(place, 8)
    with pytest.raises(AssertionError, match="given back twice"):
        free.give_back(place, 8)
    assert len(taken) == 3


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 24), st.booleans()), max_size=60))
def test_no_byte_is_had_twice_and_none_is_lost(steps: list[tuple[int, int, bool]]) -> None:
    free = FreeRuns(SIZE)
    taken: dict[int, int] = {}
    for size, keep, gives_back in steps:
        if gives_back and taken:
            place = sorted(taken)[keep % len(taken)]
            free.give_back(place, taken.pop(place))
            continue
        before = free.largest
        place = free.take(size, keep)
        if place < 0:
            continue
        had = [range(at, at + n) for at, n in taken.items()]
        assert not any(byte in run for run in had for byte in range(place, place + size))
        assert place + size <= SIZE
        assert free.largest >= min(keep, before) or before < keep
        taken[place] = size
    for place, size in taken.items():
        free.give_back(place, size)
    assert free.take(SIZE) == 0
