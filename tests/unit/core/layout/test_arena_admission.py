"""Room in an arena: the watermark, shares, and the large row that small ones must not starve."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.core.layout.admission import Cause, Refusal
from batchpool.core.layout.arena_admission import ArenaAllocator

NOW = 10**9
SIZE, LARGEST = 1000, 250


def arena() -> ArenaAllocator:
    return ArenaAllocator(SIZE, LARGEST)


def claimed(it: ArenaAllocator, *sizes: int, now_ns: int = NOW, **options: int) -> list[int]:
    found = it.claim(sizes, now_ns, **options)  # type: ignore[arg-type]
    assert isinstance(found, list), found
    return found


def refused(it: ArenaAllocator, *sizes: int, now_ns: int = NOW, **options: int) -> Refusal:
    found = it.claim(sizes, now_ns, **options)  # type: ignore[arg-type]
    assert isinstance(found, Refusal)
    return found


def test_a_claim_takes_a_run_for_each_row_or_none() -> None:
    it = arena()
    assert claimed(it, 100, 0, 200) == [0, 0, 100]
    assert it.used == 300
    assert refused(it, 250, 250, 250) == Refusal(Cause.ARENA, 300, 150)
    assert it.used == 300
    assert claimed(it, 250) == [300]


def test_from_a_refusal_until_eighty_percent() -> None:
    it = arena()
    places = claimed(it, *[100] * 9)
    refusal = refused(it, 1)
    assert (refusal.cause, refusal.held, refusal.over) == (Cause.ARENA, 900, 101)
    it.give_back(places[0], 100)
    assert refused(it, 50).over == 1, "800 are not below 80 %"
    assert it.full() is not None
    it.give_back(places[1], 100)
    assert it.full() is None
    assert claimed(it, 50) == [0]


def test_a_raised_priority_may_use_it_all() -> None:
    it = arena()
    claimed(it, *[100] * 9)
    refused(it, 100)
    assert it.full(1) is None
    assert not it.has_room((100,), NOW)
    assert it.has_room((100,), NOW, 1)
    assert claimed(it, 100, priority=1) == [900]
    assert it.full(1) is not None
    assert refused(it, 1, priority=1).over == 1


def test_the_largest_row_always_fits_an_empty_arena() -> None:
    it = ArenaAllocator(SIZE, SIZE, 0.2)
    assert claimed(it, SIZE) == [0]
    it.set_watermark(0.5)
    assert it.bound == SIZE


def test_a_share_of_the_bytes_while_others_are_active() -> None:
    it = arena()
    claimed(it, 250, flow=1, contested=True)
    assert refused(it, 250, flow=1, contested=True) == Refusal(Cause.ARENA_SHARE, 250, 50)
    assert not it.shut, "that is no matter of others"
    claimed(it, 200, flow=1, contested=True)
    claimed(it, 250, flow=2, contested=True)
    assert it.held == {1: 450, 2: 250}
    it.give_back(0, 250, 1)
    assert it.held == {1: 200, 2: 250}
    it.give_back(250, 200, 1)
    assert it.held == {2: 250}


def test_small_rows_leave_room_for_a_large_one_that_was_refused() -> None:
    it = arena()
    places = claimed(it, *[50] * 17)
    refused(it, 250)
    it.keep((250,), NOW, NOW + 100)
    for place in places[::2]:  # 9 gaps of 50 between 8 rows
        it.give_back(place, 50)
    assert it.used == 400
    assert not it.has_room((250,), NOW), "there is no run of so many"
    assert claimed(it, 50) == [0], "450 + 250 are below the watermark, and no run is broken"
    for place in places[1:7:2]:
        it.give_back(place, 50)
    assert it.used == 300
    assert claimed(it, 60) == [800], "60 of the 300 from 50 on would leave too few"
    assert claimed(it, 250) == [50]


def test_a_second_large_row_does_not_keep_small_ones_out() -> None:
    it = arena()
    claimed(it, 250, 250, 250)
    refused(it, 250)
    it.keep((250,), NOW, NOW + 100)
    assert claimed(it, 100) == [750], "three large ones are under way"
    it = arena()
    it.keep((250,), NOW, NOW + 100)
    claimed(it, *[100] * 6)
    assert refused(it, 100).cause is Cause.ARENA, "700 + 250 are above the watermark"
    claimed(it, 250)
    assert it.used == 850


def test_what_is_kept_ends_with_its_time() -> None:
    it = arena()
    it.keep((250,), NOW, NOW + 100)
    claimed(it, *[100] * 6)
    assert not it.has_room((100,), NOW + 99)
    assert it.has_room((100,), NOW + 100)
    it.keep((100,), NOW, NOW + 300)
    it.keep((), NOW, NOW + 900)
    assert claimed(it, 50, now_ns=NOW + 200) == [600]


def test_more_than_half_is_not_kept() -> None:
    it = ArenaAllocator(SIZE, 800)
    it.keep((501,), NOW, NOW + 100)
    claimed(it, *[100] * 9)


def test_half_of_the_arena_is_kept_which_is_what_the_smallest_one_has_for_the_largest_row() -> None:
    it = ArenaAllocator(SIZE, 500)
    it.keep((500,), NOW, NOW + 100)
    claimed(it, *[100] * 4)
    refused(it, 100)
    assert claimed(it, 500) == [400]


def test_rows_that_come_together_find_room_together() -> None:
    """As much is kept as all of them need, up to half of what may be claimed."""
    it = arena()
    it.keep((200, 200), NOW, NOW + 100)
    claimed(it, *[100] * 5)
    refused(it, 100)
    assert claimed(it, 200, 200) == [500, 700]
    other = arena()
    other.keep((200, 200, 200, 200, 100), NOW, NOW + 100)
    claimed(other, *[90] * 5)
    assert not other.has_room((90,), NOW)


def test_asking_for_room_changes_nothing() -> None:
    it = arena()
    assert it.has_room((250, 250, 250), NOW)
    assert not it.has_room((250, 250, 250, 250), NOW)
    assert (it.used, it.shut) == (0, False)
    assert claimed(it, 250) == [0]


def test_a_run_of_another_size_is_not_taken_back() -> None:
    it = arena()
    claimed(it, 100)
    with pytest.raises(AssertionError, match="has 100 bytes, not 50"):
        it.give_back(0, 50)


@given(st.lists(st.tuples(st.integers(0, 250), st.integers(0, 8), st.booleans()), max_size=80))
def test_every_byte_comes_back(steps: list[tuple[int, int, bool]]) -> None:
    it = arena()
    had: list[tuple[int, int, int]] = []
    for number, (size, pick, gives_back) in enumerate(steps):
        if gives_back and had:
            it.give_back(*had.pop(pick % len(had)))
            continue
        now_ns = NOW + number
        has_room = it.has_room((size,), now_ns)
        found = it.claim((size,), now_ns, flow=pick)
        assert has_room == isinstance(found, list)
        if isinstance(found, list):
            had.append((found[0], size, pick))
        else:
            it.keep((size,), now_ns, now_ns + 5)
        assert it.used == sum(size for _, size, _ in had) <= it.bound
    for one in had:
        it.give_back(*one)
    assert (it.used, it.held) == (0, {})
    later = NOW + 1000
    assert it.claim((250, 250, 250), later) == [0, 250, 500]
