"""Claims: next-fit, the bound, the hysteresis, the shares, and nothing given back twice."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batchpool.core.layout.admission import ACTIVE_NS, Cause, Refusal, SlotAllocator, bound_of

NOW = 77_000_000_000
A, B, C = 7, 2**32 - 1, 1  # flows


def claim(
    slots: SlotAllocator, n: int, flow: int = 0, now_ns: int = NOW, priority: int = 0
) -> bool:
    """Claim n rows if they may be claimed."""
    if slots.refusal(n, flow, now_ns, priority) is not None:
        return False
    if n == 1:
        slots.take_one(flow)
    else:
        slots.take(n, flow)
    return True


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
    assert SlotAllocator(slots, watermark).bound == bound


def test_exactly_the_bound_is_admitted_and_one_more_is_not() -> None:
    """C29: 90 of 100, whether one by one or together, and not 91."""
    slots = SlotAllocator(100)
    for _ in range(90):
        assert claim(slots, 1)
    assert slots.refusal(1) == Refusal(Cause.LANE, held=90, over=11)
    assert slots.claimed == 90
    assert SlotAllocator(100).refusal(90) is None
    assert SlotAllocator(100).refusal(91) == Refusal(Cause.LANE, held=0, over=1)


def test_after_a_refusal_the_lane_reopens_below_eighty_percent() -> None:
    slots = SlotAllocator(100)
    taken = list(slots.take(90))
    assert slots.refusal(1) is not None
    while slots.claimed > 80:
        slots.give_back(taken.pop())
        assert not slots.has_room(1)
        over = slots.claimed - 79
        assert slots.refusal(1) == Refusal(Cause.LANE, slots.claimed, over)
    slots.give_back(taken.pop())
    assert slots.claimed == 79
    assert slots.has_room(1)
    assert slots.refusal(1) is None
    # Open again: up to the bound, without a second wait.
    assert slots.refusal(11) is None
    assert slots.refusal(12) == Refusal(Cause.LANE, 79, 1)


def test_without_a_refusal_there_is_no_hysteresis() -> None:
    slots = SlotAllocator(100)
    taken = list(slots.take(90))
    assert not slots.has_room(1), "asking so shuts nothing"
    slots.give_back(taken.pop())
    assert slots.refusal(1) is None


def test_how_many_rows_must_end_before_a_claim_fits() -> None:
    slots = SlotAllocator(100)
    slots.take(90)
    assert slots.refusal(50) == Refusal(Cause.LANE, 90, 50)  # down to 40
    assert slots.refusal(5) == Refusal(Cause.LANE, 90, 11)  # below 80
    assert slots.refusal(15, priority=1) == Refusal(Cause.LANE, 90, 5)


# -- raised priority ------------------------------------------------------------------------


@pytest.mark.parametrize("priority", [1, 127])
def test_a_raised_priority_may_use_the_last_tenth(priority: int) -> None:
    slots = SlotAllocator(100)
    assert claim(slots, 90)
    assert not claim(slots, 1)
    assert slots.shut
    assert slots.has_room(10, priority)
    assert not slots.has_room(11, priority)
    for _ in range(10):
        assert claim(slots, 1, priority=priority), "shut, but not for a raised priority"
    assert slots.claimed == 100
    assert not slots.has_room(1, priority)
    assert slots.refusal(1, priority=priority) == Refusal(Cause.LANE, 100, 1)


@pytest.mark.parametrize("priority", [0, 128, 255])
def test_every_other_priority_stays_below_the_watermark(priority: int) -> None:
    slots = SlotAllocator(100)
    assert claim(slots, 90, priority=priority)
    assert not slots.has_room(1, priority)
    assert not claim(slots, 1, priority=priority)


def test_a_raised_priority_has_no_more_than_its_share() -> None:
    slots = SlotAllocator(20)
    assert claim(slots, 1, B)
    for _ in range(9):
        assert claim(slots, 1, A, priority=1)
    assert slots.refusal(1, A, NOW, 1) == Refusal(Cause.SHARE, 9, 1)


# -- shares ---------------------------------------------------------------------------------


def test_alone_a_flow_may_have_all_up_to_the_watermark() -> None:
    slots = SlotAllocator(20)
    for _ in range(18):
        assert claim(slots, 1, A)
    assert slots.refusal(1, A, NOW) == Refusal(Cause.LANE, 18, 3)


def test_half_is_a_flows_share_while_another_holds_slots() -> None:
    slots = SlotAllocator(20)
    assert claim(slots, 1, B)
    for _ in range(9):
        assert claim(slots, 1, A)
    late = NOW + 3600 * ACTIVE_NS  # however long ago B claimed: it still holds its slot
    assert slots.refusal(1, A, late) == Refusal(Cause.SHARE, held=9, over=1)
    assert not slots.shut, "for the others the lane is open"
    assert claim(slots, 8, B, late)
    assert slots.held == {A: 9, B: 9}
    assert slots.refusal(1, B, late) == Refusal(Cause.SHARE, 9, 1)
    assert not slots.shut, "both at their shares fill the lane, and shut it for nobody"


def test_a_flow_stays_active_for_a_second_after_it_asked() -> None:
    slots = SlotAllocator(20)
    taken = slots.take_one(B)
    assert slots.refusal(1, B, NOW) is None
    slots.give_back(taken, B)
    assert claim(slots, 9, A)
    assert slots.refusal(1, A, NOW + ACTIVE_NS) == Refusal(Cause.SHARE, 9, 1)
    assert claim(slots, 1, A, NOW + ACTIVE_NS + 1)


def test_a_newcomer_to_a_full_lane_gets_its_part() -> None:
    """Its refusal makes it active, so that what drains is not taken by the one who had it."""
    slots = SlotAllocator(20)
    for _ in range(18):
        assert claim(slots, 1, A)
    assert not claim(slots, 1, A)
    assert slots.refusal(1, B, NOW) == Refusal(Cause.LANE, 18, 3)
    for slot in (0, 1, 2):
        assert slots.refusal(1, A, NOW) == Refusal(Cause.SHARE, 18 - slot, 10 - slot)
        slots.give_back(slot, A)
    assert claim(slots, 1, B)
    assert slots.held == {A: 15, B: 1}


def test_a_flow_that_holds_nothing_may_claim_one_request_of_any_size() -> None:
    slots = SlotAllocator(20)
    assert claim(slots, 2, B)
    assert claim(slots, 16, A)
    assert slots.refusal(1, A, NOW) == Refusal(Cause.SHARE, 16, 8)
    # A second one of that size fits when the first is done, and no sooner.
    assert slots.refusal(16, A, NOW) == Refusal(Cause.SHARE, 16, 16)
    assert slots.refusal(17, C, NOW) == Refusal(Cause.LANE, 18, 17)


def test_the_smallest_lanes_have_shares_too() -> None:
    for size in (1, 2, 3):
        slots = SlotAllocator(size)
        assert slots.share == 1
        assert claim(slots, 1, A)
        slots.give_back(0, A)
        assert claim(slots, 1, B)


def test_a_client_without_flows_has_no_share() -> None:
    slots = SlotAllocator(20)
    assert claim(slots, 1, A)
    for _ in range(17):
        assert claim(slots, 1)
    assert slots.held == {A: 1}
    assert slots.refusal(1) == Refusal(Cause.LANE, 18, 3)


def test_a_flow_gives_back_what_is_its_own() -> None:
    slots = SlotAllocator(20)
    slots.take(3, A)
    slots.take(2, B)
    slots.give_back_many(range(2), A)
    assert slots.held == {A: 1, B: 2}
    slots.give_back(2, A)
    assert slots.held == {B: 2}
    with pytest.raises(AssertionError, match="flow 7 gives back 1 slots and holds 0"):
        slots.give_back(3, A)
    slots.take(1, A)
    with pytest.raises(AssertionError, match="flow 7 gives back 2 slots and holds 1"):
        slots.give_back_many([3, 4], A)
    assert (slots.held, slots.claimed) == ({A: 1, B: 2}, 3), "refused whole"


# -- which slots ----------------------------------------------------------------------------


def test_rows_that_come_one_after_another_lie_side_by_side() -> None:
    slots = SlotAllocator(16, watermark=1.0)
    assert [slots.take_one() for _ in range(4)] == [0, 1, 2, 3]
    assert slots.take(3) == range(4, 7)
    slots.give_back_many([0, 1, 2, 3])
    # The search goes on where it ended and comes round at the end.
    assert slots.take(4) == range(7, 11)
    assert slots.take(5) == range(11, 16)
    assert slots.take(2) == range(2)
    assert [slots.take_one(), slots.take_one()] == [2, 3]


def test_a_run_further_back_is_better_than_scattered_slots() -> None:
    slots = SlotAllocator(8, watermark=1.0)
    assert slots.take(8) == range(8)
    for slot in (1, 2, 3, 6):
        slots.give_back(slot)
    assert slots.take(3) == range(1, 4)
    slots.give_back(3)
    slots.give_back(1)
    assert list(slots.take(3)) == [6, 1, 3], "no run of three: scattered, in next-fit order"


def test_a_slot_is_not_given_back_twice() -> None:
    slots = SlotAllocator(8)
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
    slots = SlotAllocator(2)
    slots.take(2)
    with pytest.raises(AssertionError):
        slots.take_one()


class Claims(RuleBasedStateMachine):
    """Against a plain model: a list of who has each slot, a cursor, and the rules in words."""

    @initialize(slots=st.integers(1, 24), watermark=st.sampled_from([0.9, 0.5, 1.0]))
    def start(self, slots: int, watermark: float) -> None:
        self.map = SlotAllocator(slots, watermark)
        self.used: list[int | None] = [None] * slots  # by which flow
        self.asks: list[tuple[int, int]] = []  # (flow, when)
        self.now_ns = NOW
        self.cursor = 0
        self.shut = False
        self.bound = max(1, math.floor(slots * watermark + 1e-9))
        self.reopen_below = slots * min(0.8, watermark)

    def next_free(self) -> int:
        order = [*range(self.cursor, len(self.used)), *range(self.cursor)]
        return next(slot for slot in order if self.used[slot] is None)

    def expected_run(self, n: int) -> list[int] | None:
        last = len(self.used) - n
        for first in [*range(self.cursor, last + 1), *range(last + 1)]:
            if all(owner is None for owner in self.used[first : first + n]):
                return list(range(first, first + n))
        return None

    def claimed(self) -> int:
        return sum(owner is not None for owner in self.used)

    def others_are_active(self, flow: int) -> bool:
        holds = any(owner not in (None, flow) for owner in self.used)
        asked = any(
            other != flow and self.now_ns - when_ns <= 1_000_000_000 for other, when_ns in self.asks
        )
        return holds or asked

    def expected_cause(self, n: int, flow: int, raised: bool) -> Cause | None:
        """Why a claim is refused, in the words of the docstring; and what that shuts."""
        own = self.used.count(flow)
        half = max(1, self.bound // 2)
        if flow and own > 0 and own + n > half and self.others_are_active(flow):
            return Cause.SHARE
        claimed = self.claimed()
        if self.shut and claimed < max(1, math.ceil(self.reopen_below - 1e-9)):
            self.shut = False
        most = len(self.used) if raised else self.bound
        if claimed + n > most or (self.shut and not raised):
            self.shut = True
            return Cause.LANE
        return None

    @rule(
        n=st.integers(1, 8),
        flow=st.sampled_from([0, 1, 2, 3]),
        priority=st.sampled_from([0, 0, 1, 127, 128, 255]),
        later_ns=st.sampled_from([0, 1, 400_000_000, 1_000_000_000, 1_000_000_001]),
    )
    def claim(self, n: int, flow: int, priority: int, later_ns: int) -> None:
        self.now_ns += later_ns
        raised = priority in (1, 127)
        had_room = self.map.has_room(n, priority)
        own = self.used.count(flow)
        alone = not self.others_are_active(flow)
        cause = self.expected_cause(n, flow, raised)
        refusal = self.map.refusal(n, flow, self.now_ns, priority)
        if flow:
            self.asks.append((flow, self.now_ns))
        assert (None if refusal is None else refusal.cause) == cause
        if cause is not Cause.SHARE:
            assert had_room == (cause is None)
        if refusal is not None:
            against = own if cause is Cause.SHARE else self.claimed()
            assert refusal.held == against
            assert refusal.over >= 1
            return
        run = self.expected_run(n)
        taken = [self.map.take_one(flow)] if n == 1 else list(self.map.take(n, flow))
        if run is not None:
            assert taken == run
            self.cursor = run[-1] + 1
            for slot in run:
                self.used[slot] = flow
        else:
            for slot in taken:
                assert slot == self.next_free()
                self.used[slot] = flow
                self.cursor = slot + 1
        if flow:
            first = own == 0
            assert first or alone or self.map.held[flow] <= max(1, self.map.bound // 2)

    @precondition(lambda self: any(owner is not None for owner in self.used))
    @rule(draw=st.data())
    def give_back(self, draw: st.DataObject) -> None:
        flow = draw.draw(st.sampled_from(sorted({f for f in self.used if f is not None})))
        claimed = [slot for slot, owner in enumerate(self.used) if owner == flow]
        back = draw.draw(st.lists(st.sampled_from(claimed), unique=True, min_size=1))
        if len(back) == 1:
            self.map.give_back(back[0], flow)
        else:
            self.map.give_back_many(back, flow)
        for slot in back:
            self.used[slot] = None

    @precondition(lambda self: None in self.used)
    @rule(draw=st.data())
    def give_back_twice(self, draw: st.DataObject) -> None:
        free = [slot for slot, owner in enumerate(self.used) if owner is None]
        with pytest.raises(AssertionError):
            self.map.give_back(draw.draw(st.sampled_from(free)))

    @invariant()
    def the_counts_agree(self) -> None:
        if hasattr(self, "map"):
            held = {flow: self.used.count(flow) for flow in (1, 2, 3)}
            assert self.map.held == {flow: count for flow, count in held.items() if count}
            assert self.map.claimed == self.claimed() <= self.map.slots
            assert sum(self.map.held.values()) + self.used.count(0) == self.map.claimed
            assert [self.map.is_claimed(s) for s in range(len(self.used))] == [
                owner is not None for owner in self.used
            ]


Claims.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestClaims = Claims.TestCase
