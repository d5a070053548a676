"""Claims: next-fit, the bound, the hysteresis, and nothing given back twice."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batchpool.core.slots import SlotMap, bound_of


@pytest.mark.parametrize(
    ("slots", "watermark", "bound"),
    [
        (1, 0.90, 1),
        (2, 0.90, 1),
        (9, 0.90, 8),
        (10, 0.90, 9),
        (11, 0.90, 9),
        (100, 0.90, 90),
        (1024, 0.90, 921),
        (1024, 1.0, 1024),
        (10, 0.7, 7),
        (100, 0.29, 29),  # 100 * 0.29 is 28.999999999999996 as floats go
        (4096, 0.9, 3686),
    ],
)
def test_the_bound_is_the_floor_of_watermark_times_slots(
    slots: int, watermark: float, bound: int
) -> None:
    assert bound_of(slots, watermark) == bound
    assert SlotMap(slots, watermark).bound == bound


def test_exactly_the_bound_is_admitted_and_one_more_is_not() -> None:
    slots = SlotMap(100)
    for _ in range(90):
        assert slots.admits(1)
        slots.take_one()
    assert not slots.admits(1)
    assert slots.claimed == 90
    many = SlotMap(100)
    assert many.admits(90)
    assert not SlotMap(100).admits(91)


def test_after_a_refusal_the_lane_reopens_below_eighty_percent() -> None:
    slots = SlotMap(100)
    taken = list(slots.take(90))
    assert not slots.admits(1)
    while slots.claimed > 80:
        slots.give_back(taken.pop())
        assert not slots.would_admit(1)
        assert not slots.admits(1), f"{slots.claimed} of 100 are claimed"
    slots.give_back(taken.pop())
    assert slots.claimed == 79
    assert slots.would_admit(1)
    assert slots.admits(1)
    # Open again: up to the bound, without a second wait.
    assert slots.admits(11)
    assert not slots.admits(12)


def test_without_a_refusal_there_is_no_hysteresis() -> None:
    slots = SlotMap(100)
    taken = list(slots.take(90))
    assert not slots.would_admit(1), "asking so shuts nothing"
    slots.give_back(taken.pop())
    assert slots.admits(1)


def test_rows_that_come_one_after_another_lie_side_by_side() -> None:
    slots = SlotMap(16, watermark=1.0)
    assert [slots.take_one() for _ in range(4)] == [0, 1, 2, 3]
    assert slots.take(3) == range(4, 7)
    slots.give_back_many([0, 1, 2, 3])
    # The search goes on where it ended and comes round at the end.
    assert slots.take(4) == range(7, 11)
    assert slots.take(5) == range(11, 16)
    assert slots.take(2) == range(2)
    assert [slots.take_one(), slots.take_one()] == [2, 3]


def test_a_run_further_back_is_better_than_scattered_slots() -> None:
    slots = SlotMap(8, watermark=1.0)
    assert slots.take(8) == range(8)
    for slot in (1, 2, 3, 6):
        slots.give_back(slot)
    assert slots.take(3) == range(1, 4)
    slots.give_back(3)
    slots.give_back(1)
    assert list(slots.take(3)) == [6, 1, 3], "no run of three: scattered, in next-fit order"


def test_a_slot_is_not_given_back_twice() -> None:
    slots = SlotMap(8)
    slots.take(4)
    slots.give_back(2)
    for twice in (2, 5):
        with pytest.raises(AssertionError):
            slots.give_back(twice)
    for among in ([1, 2], range(1, 3), np.array([1, 2], dtype=np.uint32)):
        with pytest.raises(AssertionError):
            slots.give_back_many(among)
    assert slots.claimed == 3
    assert [slots.is_claimed(slot) for slot in range(5)] == [True, True, False, True, False]


def test_more_than_there_is_cannot_be_taken() -> None:
    slots = SlotMap(2)
    slots.take(2)
    with pytest.raises(AssertionError):
        slots.take_one()


class Claims(RuleBasedStateMachine):
    """Against a plain model: a list of flags, a cursor, and the two rules in words."""

    @initialize(slots=st.integers(1, 24), watermark=st.sampled_from([0.9, 0.5, 1.0]))
    def start(self, slots: int, watermark: float) -> None:
        self.map = SlotMap(slots, watermark)
        self.used = [False] * slots
        self.cursor = 0
        self.shut = False
        self.bound = max(1, math.floor(slots * watermark + 1e-9))
        self.reopen_below = slots * min(0.8, watermark)

    def next_free(self) -> int:
        order = [*range(self.cursor, len(self.used)), *range(self.cursor)]
        return next(slot for slot in order if not self.used[slot])

    def expected_run(self, n: int) -> list[int] | None:
        last = len(self.used) - n
        for first in [*range(self.cursor, last + 1), *range(last + 1)]:
            if not any(self.used[first : first + n]):
                return list(range(first, first + n))
        return None

    @rule(n=st.integers(1, 8))
    def claim(self, n: int) -> None:
        claimed = sum(self.used)
        if self.shut and claimed < max(1, math.ceil(self.reopen_below - 1e-9)):
            self.shut = False
        fits = claimed + n <= self.bound
        may = not self.shut and fits
        assert self.map.would_admit(n) == may
        assert self.map.admits(n) == may
        if not may:
            self.shut = True
            return
        run = self.expected_run(n)
        taken = [self.map.take_one()] if n == 1 else list(self.map.take(n))
        if run is not None:
            assert taken == run
            self.cursor = run[-1] + 1
            for slot in run:
                self.used[slot] = True
        else:
            for slot in taken:
                assert slot == self.next_free()
                self.used[slot] = True
                self.cursor = slot + 1

    @precondition(lambda self: any(self.used))
    @rule(draw=st.data())
    def give_back(self, draw: st.DataObject) -> None:
        claimed = [slot for slot, used in enumerate(self.used) if used]
        back = draw.draw(st.lists(st.sampled_from(claimed), unique=True, min_size=1))
        if len(back) == 1:
            self.map.give_back(back[0])
        else:
            self.map.give_back_many(back)
        for slot in back:
            self.used[slot] = False

    @precondition(lambda self: not all(self.used))
    @rule(draw=st.data())
    def give_back_twice(self, draw: st.DataObject) -> None:
        free = [slot for slot, used in enumerate(self.used) if not used]
        with pytest.raises(AssertionError):
            self.map.give_back(draw.draw(st.sampled_from(free)))

    @invariant()
    def the_counts_agree(self) -> None:
        if hasattr(self, "map"):
            assert self.map.claimed == sum(self.used) <= self.bound
            assert [self.map.is_claimed(s) for s in range(len(self.used))] == self.used


Claims.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestClaims = Claims.TestCase
