"""The queue's block against a plain list."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batchpool.core.queue import FIELDS, I64, Field, Queue


def block(first: int, n: int) -> I64:
    """n rows whose every word is different."""
    return np.arange(first, first + n, dtype=np.int64) + 10**6 * np.arange(FIELDS)[:, np.newaxis]


def test_fields_are_the_rows_of_the_block() -> None:
    fields = [value for name, value in vars(Field).items() if name.isupper()]
    assert fields == list(range(FIELDS))


def test_a_view_follows_no_change_of_its_own() -> None:
    queue = Queue(4)
    queue.append(block(0, 3))
    taken = queue.take(slice(0, 2))
    queue.append(block(9, 2))
    assert taken[0].tolist() == [0, 1], "what was taken is a copy"
    assert queue.view()[0].tolist() == [2, 9, 10]
    assert queue.view().base is not None


def test_an_empty_queue() -> None:
    queue = Queue(4)
    assert len(queue) == 0
    assert queue.view().shape == (FIELDS, 0)
    queue.append(block(0, 0))
    assert queue.take(slice(0, 0)).shape == (FIELDS, 0)
    queue.append(block(0, 4))
    queue.take(slice(0, 4))
    assert len(queue) == 0


class AgainstAList(RuleBasedStateMachine):
    @initialize(capacity=st.integers(1, 8))
    def start(self, capacity: int) -> None:
        self.queue = Queue(capacity)
        self.rows: list[int] = []
        self.next = 0

    def fresh(self, n: int) -> I64:
        rows = block(self.next, n)
        self.next += n
        return rows

    @rule(n=st.integers(0, 12))
    def append(self, n: int) -> None:
        rows = self.fresh(n)
        self.queue.append(rows)
        self.rows += rows[0].tolist()

    @rule(n=st.integers(0, 12))
    def prepend(self, n: int) -> None:
        rows = self.fresh(n)
        self.queue.prepend(rows)
        self.rows = rows[0].tolist() + self.rows

    @rule(draw=st.data())
    def take_from_the_front(self, draw: st.DataObject) -> None:
        n = draw.draw(st.integers(0, len(self.rows)))
        taken = self.queue.take(slice(0, n))
        assert taken[0].tolist() == self.rows[:n]
        self.rows = self.rows[n:]

    @precondition(lambda self: self.rows)
    @rule(draw=st.data())
    def take_a_slice(self, draw: st.DataObject) -> None:
        start = draw.draw(st.integers(0, len(self.rows)))
        stop = draw.draw(st.integers(start, len(self.rows)))
        taken = self.queue.take(slice(start, stop))
        assert taken[0].tolist() == self.rows[start:stop]
        self.rows = self.rows[:start] + self.rows[stop:]

    @rule(draw=st.data())
    def take_some(self, draw: st.DataObject) -> None:
        everywhere = st.sets(st.integers(0, max(0, len(self.rows) - 1)))
        positions = sorted(draw.draw(everywhere)) if self.rows else []
        taken = self.queue.take(np.array(positions, dtype=np.int64))
        assert taken[0].tolist() == [self.rows[p] for p in positions]
        self.rows = [row for p, row in enumerate(self.rows) if p not in set(positions)]

    @invariant()
    def same_rows_with_all_their_words(self) -> None:
        if hasattr(self, "queue"):
            assert len(self.queue) == len(self.rows)
            want = np.array(self.rows, dtype=np.int64) + 10**6 * np.arange(FIELDS)[:, np.newaxis]
            np.testing.assert_array_equal(self.queue.view(), want.reshape(FIELDS, -1))


AgainstAList.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAgainstAList = AgainstAList.TestCase
