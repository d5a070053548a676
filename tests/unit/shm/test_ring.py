"""Rings in one process: wrap-around, bounds, and what a wrong counter looks like.

That two processes see each other's stores in order is shown in tests/litmus.
"""

from __future__ import annotations

import itertools
import platform
import sys
import threading
from collections import deque
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batchpool.core.errors import StartError
from batchpool.shm.ring import Consumer, Producer, fence, pack, require_memory_order, unpack

TAIL, HEAD = 0, 1


def ends(capacity: int, start: int = 0) -> tuple[list[int], Producer, Consumer]:
    cells = [start, start]
    entries = np.zeros(capacity, dtype=np.uint64)
    return cells, Producer(cells, entries, TAIL, HEAD), Consumer(cells, entries, TAIL, HEAD)


def entries_of(*values: int) -> Any:
    return np.array(values, dtype=np.uint64)


class AgainstADeque(RuleBasedStateMachine):
    @initialize(
        capacity=st.sampled_from([1, 2, 4, 8]),
        start=st.sampled_from([0, 5, 2**32 - 3, 2**63 - 2]),
    )
    def start(self, capacity: int, start: int) -> None:
        self.capacity = capacity
        self.cells, self.producer, self.consumer = ends(capacity, start)
        self.waiting: deque[int] = deque()
        self.next = 2**64 - 1 - 10**6

    def fresh(self, n: int) -> list[int]:
        self.next += n
        return list(range(self.next - n, self.next))

    @rule(draw=st.data(), few=st.booleans())
    def push(self, draw: st.DataObject, few: bool) -> None:
        values = self.fresh(draw.draw(st.integers(0, self.capacity - len(self.waiting))))
        if few:
            self.producer.push_few(values)
        else:
            self.producer.push(entries_of(*values))
        self.waiting.extend(values)

    @rule(few=st.booleans())
    def push_too_many(self, few: bool) -> None:
        values = self.fresh(self.capacity - len(self.waiting) + 1)
        with pytest.raises(AssertionError, match="ring overflow"):
            if few:
                self.producer.push_few(values)
            else:
                self.producer.push(entries_of(*values))

    @precondition(lambda self: self.waiting)
    @rule(draw=st.data())
    def handle(self, draw: st.DataObject) -> None:
        n = draw.draw(st.integers(1, len(self.waiting)))
        self.consumer.advance(n)
        for _ in range(n):
            self.waiting.popleft()

    @rule()
    def reopen(self) -> None:
        """Both ends find their place in shared memory again, as after a restart."""
        entries = self.producer._entries
        self.producer = Producer(self.cells, entries, TAIL, HEAD)
        self.consumer = Consumer(self.cells, entries, TAIL, HEAD)

    @invariant()
    def the_same_entries_wait(self) -> None:
        if hasattr(self, "waiting"):
            assert self.consumer.peek().tolist() == list(self.waiting)
            assert self.consumer.pending() == len(self.waiting)
            assert self.producer.room() == self.capacity - len(self.waiting)
            assert self.cells[TAIL] - self.cells[HEAD] == len(self.waiting)


AgainstADeque.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAgainstADeque = AgainstADeque.TestCase


def test_what_was_peeked_is_a_copy() -> None:
    _, producer, consumer = ends(4)
    producer.push_few([1, 2])
    seen = consumer.peek()
    consumer.advance(2)
    producer.push_few([3, 4, 5, 6])
    assert seen.tolist() == [1, 2]


def test_an_entry_is_seen_again_until_the_head_moves() -> None:
    cells, producer, consumer = ends(4)
    producer.push_few([1, 2])
    assert consumer.peek().tolist() == [1, 2]
    after_a_crash = Consumer(cells, producer._entries, TAIL, HEAD)
    assert after_a_crash.peek().tolist() == [1, 2]


@pytest.mark.parametrize("tail", [-1, 2, 9, 2**64 - 1])
def test_a_nonsense_counter_is_an_error_and_not_a_wild_read(tail: int) -> None:
    cells, _, consumer = ends(4, start=3)
    cells[TAIL] = tail
    assert consumer.pending() == tail - 3
    with pytest.raises(ValueError, match=f"ring counters disagree: {tail - 3} entries .* of 4"):
        consumer.peek()


def test_one_fence_a_group_between_the_last_entry_and_the_tail() -> None:
    order: list[str] = []

    class Cells(list[int]):
        def __setitem__(self, at: Any, value: Any) -> None:
            order.append(f"cell {at} = {value}")
            super().__setitem__(at, value)

    class Entries:
        def __init__(self, n: int) -> None:
            self.n = n

        def __len__(self) -> int:
            return self.n

        def __setitem__(self, at: Any, value: Any) -> None:
            order.append("entry")

    producer = Producer(Cells([0, 0]), Entries(4), TAIL, HEAD, lambda: order.append("fence"))  # type: ignore[arg-type]
    producer.push_few([7, 8, 9])
    assert order == ["entry", "entry", "entry", "fence", "cell 0 = 3"]
    order.clear()
    producer._cells[HEAD] = 3
    order.clear()
    producer.push(entries_of(1, 2, 3))  # wraps: two stores of entries
    assert order == ["entry", "entry", "fence", "cell 0 = 6"]


class Struck(BaseException):
    """Raised between two instructions, as a signal handler may."""


def test_an_exception_within_a_fence_holds_up_no_later_one() -> None:
    for place in itertools.count():
        if not raised_in_fence(place):
            break
        thread = threading.Thread(target=fence, daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive(), f"struck before instruction {place}"
    assert place > 2, "the fence has instructions"


def raised_in_fence(place: int) -> bool:
    """Call fence, and raise before its instruction of this number; False if it has fewer."""
    left = place

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if frame.f_code is not fence.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            if not left:
                raise Struck
            left -= 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        fence()
    except Struck:
        return True
    finally:
        sys.settrace(before)
    return False


def test_tickets_as_entries() -> None:
    slots = np.array([0, 1, 2**32 - 1, 7], dtype=np.uint32)
    sequences = np.array([1, 2**32 - 1, 5, 0], dtype=np.uint32)
    entries = pack(slots, sequences)
    assert entries.dtype == np.uint64
    assert entries.tolist() == [1 << 32, (2**32 - 1) << 32 | 1, 5 << 32 | 2**32 - 1, 7]
    back_slots, back_sequences = unpack(entries)
    assert back_slots.tolist() == slots.tolist()
    assert back_sequences.tolist() == sequences.tolist()


def test_other_processors_and_no_gil_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    require_memory_order()
    with monkeypatch.context() as patch:
        patch.setattr(platform, "machine", lambda: "aarch64")
        with pytest.raises(StartError, match=r"x86-64.*this is cpython with GIL on aarch64"):
            require_memory_order()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
        with pytest.raises(StartError, match="this is cpython without GIL on"):
            require_memory_order()
