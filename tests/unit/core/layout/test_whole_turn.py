"""Large calls and small rows in one arena, as flows that ask again and again, by a clock of steps.

The large calls take 600 of the 900 bytes that may be claimed, in rows of 200; small rows are 50.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise

import pytest

from batchpool.core.layout.arena_admission import ArenaAllocator
from batchpool.core.layout.whole_turn import TURN_NS

MS = 1_000_000
STEP_NS = 10 * MS
SMALL, LARGE = (50,), (200, 200, 200)


class Flow:
    """Callers that each ask for room for rows of these sizes, in every step or every `asks_ns`.

    Of those that are admitted each stays for `stays_ns`. waits: keeps room as a caller does that
    asks again; else as one that is told to come again much later. at_ns: when each was admitted.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        stays_ns: int,
        asks_ns: int = STEP_NS,
        *,
        most: int = 1000,
        again_ns: int = TURN_NS,
    ) -> None:
        self.sizes = sizes
        self.at_ns: list[int] = []
        self._stays_ns = stays_ns
        self._asks_ns = asks_ns
        self._next_ns = 0
        self._most = most
        self._again_ns = again_ns
        self._under_way: deque[tuple[int, list[int]]] = deque()

    def leave(self, arena: ArenaAllocator, now_ns: int) -> None:
        while self._under_way and self._under_way[0][0] <= now_ns:
            for place, size in zip(self._under_way.popleft()[1], self.sizes, strict=True):
                arena.give_back(place, size)

    def ask(self, arena: ArenaAllocator, now_ns: int) -> None:
        if now_ns < self._next_ns:
            return
        while len(self._under_way) < self._most and arena.has_room(self.sizes, now_ns):
            found = arena.claim(self.sizes, now_ns)
            assert isinstance(found, list)
            self.at_ns.append(now_ns)
            self._under_way.append((now_ns + self._stays_ns, found))
        if len(self._under_way) < self._most:
            arena.keep(self.sizes, now_ns, now_ns + self._again_ns)
            self._next_ns = now_ns + self._asks_ns


def run(arena: ArenaAllocator, flows: Sequence[Flow], seconds: float) -> None:
    order = deque(flows)
    for now_ns in range(0, int(seconds * 1e9), STEP_NS):
        for flow in flows:
            flow.leave(arena, now_ns)
        for flow in order:
            flow.ask(arena, now_ns)
        order.rotate()


def in_seconds(at_ns: Sequence[int], seconds: int) -> list[int]:
    """The number of those that were admitted in each second."""
    found = [0] * seconds
    for at in at_ns:
        found[at // 10**9] += 1
    return found


@pytest.mark.parametrize("small", [SMALL, (200,)], ids=["smaller rows", "rows of the same size"])
def test_a_call_of_more_than_half_comes_in_behind_small_rows_without_end(
    small: Sequence[int],
) -> None:
    arena = ArenaAllocator(1000, 250)
    flow, large = Flow(small, 100 * MS), Flow(LARGE, 200 * MS, 500 * MS, most=1)
    run(arena, [flow, large], 4)
    assert len(large.at_ns) >= 1
    assert large.at_ns[0] <= TURN_NS + 100 * MS + 500 * MS
    assert all(in_seconds(flow.at_ns, 4)[::2]), "small rows have the time before and after"


@pytest.mark.parametrize("stays_ms", [200, 3000])
def test_small_rows_come_in_between_large_calls_without_end(stays_ms: int) -> None:
    """Also where the large ones fill all that may be claimed, for longer than a turn waits."""
    arena = ArenaAllocator(1000, 300)
    flow = Flow(SMALL, 100 * MS)
    large = Flow((300, 300, 300), stays_ms * MS, 100 * MS, most=1)
    run(arena, [flow, large], 30)
    calls = large.at_ns
    assert len(calls) >= 5
    for one, other in pairwise(calls):
        between = [at for at in flow.at_ns if one + stays_ms * MS <= at < other]
        assert len(between) >= 50, "as many as there is room for, ten times a second"


def test_a_large_call_comes_in_between_larger_ones_without_end() -> None:
    arena = ArenaAllocator(1000, 250)
    small, larger = Flow(SMALL, 100 * MS), Flow((250, 250, 250), 500 * MS, 100 * MS, most=1)
    large = Flow(LARGE, 500 * MS, 100 * MS, most=1)
    run(arena, [larger, large, small], 30)
    assert min(len(large.at_ns), len(larger.at_ns)) >= 5
    assert all(n + m for n, m in pairwise(in_seconds(small.at_ns, 30)))


def test_a_turn_begins_a_while_after_the_call_that_had_the_last_one_has_ended() -> None:
    arena = ArenaAllocator(1000, 250)
    small = [arena.claim(SMALL, 0) for _ in range(12)]
    arena.keep(LARGE, 0, 100 * TURN_NS)
    assert not arena.has_room(SMALL, TURN_NS), "its turn"
    for (place,) in small:  # type: ignore[misc]
        arena.give_back(place, 50)
    places = arena.claim(LARGE, TURN_NS)
    assert isinstance(places, list)
    arena.keep(LARGE, 2 * TURN_NS, 100 * TURN_NS)
    assert arena.has_room(SMALL, 9 * TURN_NS), "it is under way"
    for place in places:
        arena.give_back(place, 200)
    assert arena.has_room(SMALL, 10 * TURN_NS - 1)
    assert not arena.has_room(SMALL, 10 * TURN_NS)


def test_whoever_never_comes_back_gets_fewer_turns_each_time() -> None:
    """A caller over HTTP, refused once a second, that never looks whether there is room."""
    arena = ArenaAllocator(1000, 250)
    flow = Flow(SMALL, 100 * MS)
    for now_ns in range(0, 100 * 10**9, STEP_NS):
        flow.leave(arena, now_ns)
        flow.ask(arena, now_ns)
        if now_ns % 10**9 == 0 and arena.used > 300:
            arena.keep(LARGE, now_ns, now_ns + 60 * 10**9)
    seconds = in_seconds(flow.at_ns, 100)
    assert 1 <= sum(n == 0 for n in seconds) + sum(0 < n < 40 for n in seconds) <= 16


def test_a_call_that_is_given_up_has_no_turn() -> None:
    arena = ArenaAllocator(1000, 250)
    places = [arena.claim(SMALL, 0) for _ in range(8)]
    arena.keep(LARGE, 0, 10 * TURN_NS)
    assert not arena.has_room(SMALL, 2 * TURN_NS)
    arena.forget(LARGE)
    assert arena.has_room(SMALL, 2 * TURN_NS)
    assert all(isinstance(found, list) for found in places)
