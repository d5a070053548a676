"""Shares of origins: no number of names gives a caller more than one share of a lane."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.core.flows import named_flow
from batchpool.core.layout.admission import ACTIVE_NS, Cause, Refusal, SlotAllocator
from batchpool.core.layout.arena_admission import ArenaAllocator
from tests.unit.core.layout.test_admission import NOW, claim

MANY, OTHER = 7, 8  # origins
SLOTS, SHARE = 20, 9  # of a bound of 18


def named(number: int, origin: int = MANY) -> int:
    return named_flow(origin, number)


def test_alone_an_origin_may_have_all_and_its_names_a_share_each() -> None:
    slots = SlotAllocator(SLOTS)
    assert claim(slots, SHARE, named(1))
    assert claim(slots, SHARE, named(2))
    assert slots.refusal(1, named(1), NOW) == Refusal(Cause.SHARE, SHARE, 1)
    assert slots.held_of(MANY) == 2 * SHARE


def test_beside_another_all_names_together_have_one_share() -> None:
    slots = SlotAllocator(SLOTS)
    assert claim(slots, 1, OTHER)
    for number in range(SHARE):
        assert claim(slots, 1, named(number))
    for number in (0, 99):
        assert slots.refusal(1, named(number), NOW) == Refusal(Cause.SHARE, SHARE, 1)
    assert slots.refusal(1, MANY, NOW) is not None, "nor may it have more without a name"
    assert claim(slots, SHARE - 1, OTHER), "which the other is not refused for"
    assert not slots.shut


def test_an_origin_is_alone_again_a_second_after_the_other_has_asked() -> None:
    slots = SlotAllocator(SLOTS)
    assert claim(slots, 1, OTHER)
    slots.give_back(0, OTHER)
    for number in range(SHARE):
        assert claim(slots, 1, named(number))
    assert not claim(slots, 1, named(99), NOW + ACTIVE_NS)
    assert claim(slots, 1, named(99), NOW + ACTIVE_NS + 1)


def test_one_request_of_any_size_of_an_origin_that_holds_nothing() -> None:
    slots = SlotAllocator(SLOTS)
    assert claim(slots, 1, OTHER)
    assert claim(slots, SHARE + 3, named(1))
    assert not claim(slots, 1, named(2))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), max_size=30))
def test_what_is_given_back_counts_for_no_origin_any_more(claims: list[tuple[int, int]]) -> None:
    slots = SlotAllocator(SLOTS)
    taken = []
    for number, n in claims:
        flow = number if number < 3 else named(number, 1 + number % 2)
        if slots.refusal(n, flow, NOW) is None:
            taken.append((slots.take(n, flow), flow))
            theirs = [len(s) for s, f in taken if f >= 1 << 32 and f >> 32 == 2]
            assert slots.named.get(2, 0) == sum(theirs)
    for several, flow in taken:
        slots.give_back_many(list(several), flow)
    assert (slots.claimed, slots.held, slots.named) == (0, {}, {})


def test_bytes_of_an_arena_are_shared_alike() -> None:
    arena = ArenaAllocator(1000, 300)
    share = arena.share

    def claimed(number: int, size: int) -> list[int] | Refusal:
        flow = named(number)
        return arena.claim([size], NOW, flow=flow, contested=False, origin_contested=True)

    for number, size in ((1, 200), (2, 200)):
        assert isinstance(claimed(number, size), list)
    assert claimed(3, 100) == Refusal(Cause.ARENA_SHARE, 400, 500 - share)
    assert isinstance(arena.claim([100], NOW, flow=OTHER, origin_contested=True), list)
    arena.give_back(0, 200, named(1))
    assert arena.named == {MANY: 200}
    assert isinstance(claimed(3, 100), list)
    for place, size, number in ((200, 200, 2), (0, 100, 3)):
        arena.give_back(place, size, named(number))
    assert arena.named == {}
