"""The order in which bodies are read: the loop, its time and the transports are the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.frontend.http.read_flow import ReadFlow
from batchpool.frontend.http.read_turns import (
    DROP_S,
    READ_BYTES,
    SHORT_BYTES,
    TURN_BYTES,
    TURN_READS,
    ReadTurns,
)

MANY = 3 * TURN_READS + 1


class Transport:
    """A transport of which a test sees whether it is read."""

    def __init__(self) -> None:
        self.reading = True
        self.closing = False

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.closing
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing


class Loop:
    """A loop that runs what is due when it is told."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.later: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[..., None], *arguments: Any) -> None:
        self.soon.append(lambda: call(*arguments))

    def call_later(self, after_s: float, call: Callable[..., None], *arguments: Any) -> None:
        assert after_s == DROP_S
        self.later.append(lambda: call(*arguments))

    def turn(self) -> None:
        """Run what was due before."""
        due, self.soon = self.soon, []
        for call in due:
            call()

    def pass_time(self) -> None:
        due, self.later = self.later, []
        for call in due:
            call()


class Scene:
    """A front end with n connections that have bodies to read."""

    def __init__(self, n: int) -> None:
        self.turns, self.loop = ReadTurns(), Loop()
        self.transports = [Transport() for _ in range(n)]
        self.flows = [ReadFlow(cast(asyncio.Transport, found)) for found in self.transports]

    def read(self, which: int, size: int = READ_BYTES, *, is_dropped: bool = False) -> None:
        assert self.transports[which].reading
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        self.turns.took(loop, self.flows[which], size, is_dropped=is_dropped)

    def reading(self) -> list[int]:
        return [number for number, found in enumerate(self.transports) if found.reading]

    def turn(self) -> list[int]:
        """Go on with the next turn, in which those who may read once; who they were."""
        self.loop.turn()
        found = self.reading()
        for number in found:
            self.read(number)
        return found


def test_what_fits_in_a_turn_is_read_without_a_pause() -> None:
    scene = Scene(1)
    for _ in range(3):
        for _ in range(TURN_READS - 1):
            scene.read(0)
        scene.loop.turn()
    assert scene.reading() == [0]
    assert not scene.loop.soon  # the loop may sleep


def test_one_that_sends_alone_goes_on_in_the_next_turn() -> None:
    scene = Scene(1)
    scene.read(0, TURN_BYTES)
    assert scene.reading() == []
    scene.loop.turn()
    assert scene.reading() == [0]
    assert not scene.loop.soon


def test_a_turn_reads_the_first_of_the_queue_once_each_and_all_in_order() -> None:
    scene = Scene(MANY)
    for number in range(MANY):
        scene.read(number)
    # Those of the first turn below its bound were not paused, and are read again.
    seen = [scene.turn() for _ in range(4 * MANY)]
    assert max(map(len, seen[1:])) <= TURN_READS
    in_order = [number for turn in seen[1:] for number in turn]
    for number in range(MANY):
        times = [at for at, found in enumerate(in_order) if found == number]
        assert all(b - a <= MANY + TURN_READS for a, b in pairwise(times))
        assert len(times) >= 3


def test_a_long_queue_is_read_to_its_end_though_nobody_else_comes() -> None:
    scene = Scene(MANY)
    for number in range(MANY):
        scene.read(number, TURN_BYTES)
    seen = []
    while scene.loop.soon:
        scene.loop.turn()
        seen.append(len(scene.reading()))
    assert seen == [TURN_READS, 2 * TURN_READS, 3 * TURN_READS, MANY]


def test_a_short_read_neither_pauses_nor_counts() -> None:
    scene = Scene(2)
    scene.read(0, TURN_BYTES)
    scene.read(1, SHORT_BYTES - 1)
    assert scene.reading() == [1]
    scene.read(1, SHORT_BYTES)
    assert scene.reading() == []


def test_one_that_comes_while_others_wait_stands_behind_them() -> None:
    scene = Scene(TURN_READS + 2)
    scene.read(0, TURN_BYTES)
    for number in range(1, TURN_READS + 1):
        scene.read(number)
    scene.loop.turn()
    assert scene.reading() == [*range(TURN_READS), TURN_READS + 1]
    scene.read(TURN_READS + 1)  # the bound is new, the queue is not empty
    assert TURN_READS + 1 not in scene.reading()
    scene.loop.turn()
    assert scene.reading() == [*range(TURN_READS + 2)]


def test_a_body_that_is_dropped_is_read_once_in_a_while() -> None:
    scene = Scene(3)
    scene.read(0, is_dropped=True)
    scene.read(1, is_dropped=True)
    scene.loop.turn()
    assert scene.reading() == [2]
    assert len(scene.loop.later) == 1
    scene.loop.pass_time()
    assert scene.reading() == [0, 2]
    scene.read(0, is_dropped=True)
    scene.loop.pass_time()
    assert scene.reading() == [1, 2]
    scene.loop.pass_time()
    assert scene.reading() == [0, 1, 2]
    assert not scene.loop.later


def test_dropped_bodies_take_nothing_from_others() -> None:
    scene = Scene(2)
    scene.read(0, TURN_BYTES, is_dropped=True)
    scene.read(1)
    assert scene.reading() == [1]


def test_whoever_leaves_is_not_waited_for() -> None:
    scene = Scene(4)
    for number in range(2):
        scene.read(number, TURN_BYTES)
    for number in range(2, 4):
        scene.read(number, is_dropped=True)
    for number in (0, 2):
        scene.turns.leave(scene.flows[number])
    scene.loop.turn()
    scene.loop.pass_time()
    assert scene.reading() == [1, 3]
    assert not scene.loop.soon
    assert not scene.loop.later


def test_the_pace_of_dropping_stays_when_the_queue_empties_in_between() -> None:
    scene = Scene(3)
    scene.read(0, is_dropped=True)
    scene.turns.leave(scene.flows[0])
    scene.read(1, is_dropped=True)
    scene.read(2, is_dropped=True)
    assert len(scene.loop.later) == 1


def test_a_connection_that_is_closing_is_not_resumed() -> None:
    scene = Scene(1)
    scene.read(0, TURN_BYTES)
    scene.transports[0].closing = True
    scene.loop.turn()
    assert scene.reading() == []


@pytest.mark.parametrize("turn_first", [True, False])
def test_reading_goes_on_when_no_reason_against_it_is_left(turn_first: bool) -> None:
    scene = Scene(1)
    flow = scene.flows[0]
    scene.read(0, TURN_BYTES)
    flow.pause_reading()  # uvicorn's
    steps = [scene.loop.turn, flow.resume_reading]
    for step in steps if turn_first else reversed(steps):
        assert scene.reading() == []
        step()
    assert scene.reading() == [0]


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.booleans()), max_size=60))
def test_nothing_stays_paused_for_ever(steps: Sequence[tuple[int, bool, bool]]) -> None:
    scene = Scene(6)
    for which, is_dropped, ends_turn in steps:
        if scene.transports[which].reading:
            scene.read(which, is_dropped=is_dropped)
        if ends_turn:
            scene.loop.turn()
            scene.loop.pass_time()
    for _ in range(6):
        scene.loop.turn()
        scene.loop.pass_time()
    assert scene.reading() == [*range(6)]
    assert not scene.loop.soon
    assert not scene.loop.later
