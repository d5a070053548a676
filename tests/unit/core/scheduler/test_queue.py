"""The queue against a plain list of rows with explicit turns, and examples of its order."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batchpool.core.flows import ORIGIN_MASK, named_flow, origin_of
from batchpool.core.priority import DEFAULT, HIGHEST, LOWEST
from batchpool.core.scheduler.fair_order import AGE_NS, priority_of
from batchpool.core.scheduler.queue import (
    I64,
    QUEUE_COLUMNS,
    Queue,
    QueueColumn,
    every,
    largest,
    least,
)
from tests.unit.core.scheduler.queued import MS, NEVER, front, names, positions, queue_of, rows_of

# -- the model ------------------------------------------------------------------------------


@dataclass
class Row:
    """level: the priority it waits at, better than its own once it has aged."""

    name: int
    flow: int
    priority: int
    deadline: int
    submit: int
    level: int = 0
    turn: int = 0
    back: tuple[int, int] | None = None  # (dispatch, place in it) of its first return

    @property
    def whose(self) -> tuple[int, int]:
        return self.level, origin_of(self.flow)


def in_turns(rows: Sequence[Row]) -> list[Row]:
    """Rows of one origin: each flow's by deadline in the places that it has; then the first of each
    flow, the second of each, and so on, in the order of these places."""
    rows = list(rows)
    numbers = [0] * len(rows)
    for flow in {row.flow for row in rows}:
        places = [i for i, row in enumerate(rows) if row.flow == flow]
        theirs = sorted((rows[i] for i in places), key=lambda r: r.deadline)
        for number, (place, row) in enumerate(zip(places, theirs, strict=True)):
            rows[place], numbers[place] = row, number
    return [rows[i] for i in sorted(range(len(rows)), key=lambda i: numbers[i])]


class Turntable:
    """The specification in plain words: rows in the order of service."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.served: dict[int, int] = {}
        self.last: dict[tuple[int, int], int] = {}

    def append(self, rows: Sequence[Row]) -> None:
        if not self.rows:
            self.served, self.last = {}, {}
        for row in rows:
            row.priority = min(max(row.priority or DEFAULT, HIGHEST), LOWEST)
            row.level = row.priority
        self._enter(rows)

    def _enter(self, rows: Sequence[Row]) -> None:
        """Each gets the turn after its origin's last or after the one being served; then the
        origin's turns go round its flows, and a flow's to its rows by deadline, but for those that
        came back."""
        for row in rows:
            last, served = self.last.get(row.whose, 0), self.served.get(row.level, 0)
            row.turn = self.last[row.whose] = max(last, served) + 1
        self.rows = sorted([*self.rows, *rows], key=lambda r: (r.level, r.turn))
        for whose in {row.whose for row in rows}:
            places = [i for i, r in enumerate(self.rows) if r.whose == whose and r.turn]
            theirs = [self.rows[i] for i in places]
            turns = [r.turn for r in theirs]
            theirs = in_turns(theirs)
            for place, turn, row in zip(places, turns, theirs, strict=True):
                row.turn, self.rows[place] = turn, row

    def prepend(self, rows: Sequence[Row], dispatch: int) -> None:
        """Rows that came back precede the others of their level, in the order of dispatch."""
        for i, row in enumerate(rows):
            row.turn, row.back = 0, row.back or (dispatch, i)
        self.rows = [*rows, *self.rows]
        self.rows.sort(
            key=lambda r: (r.level, r.turn, (r.back or (0, 0)) if not r.turn else (0, 0))
        )

    def age(self, now: int) -> None:
        best = min((r.level for r in self.rows), default=0)
        aged = [
            r
            for r in self.rows
            if r.level > best and now - r.submit >= (r.priority - best) * AGE_NS
        ]
        self._leave_unserved(aged)
        for row in aged:
            row.level = best
        self._enter(aged)

    def take(self, at: Sequence[int]) -> list[Row]:
        taken = [self.rows[i] for i in at]
        self.rows = [r for i, r in enumerate(self.rows) if i not in set(at)]
        for row in taken:
            self.served[row.level] = max(self.served.get(row.level, 0), row.turn)
        return taken

    def drop(self, at: Sequence[int]) -> list[Row]:
        dropped = [self.rows[i] for i in at]
        self._leave_unserved(dropped)
        return dropped

    def _leave_unserved(self, gone: Sequence[Row]) -> None:
        """The remaining rows of a flow take its first places: it never used the others."""
        turns: dict[tuple[int, int], list[int]] = {r.whose: [] for r in gone}
        for row in self.rows:
            if row.whose in turns and row.turn:
                turns[row.whose].append(row.turn)
        self.rows = [r for r in self.rows if all(r is not g for g in gone)]
        self.last.update(dict.fromkeys(turns, 0))
        for row in self.rows:
            if row.whose in turns and row.turn:
                row.turn = self.last[row.whose] = turns[row.whose].pop(0)
        self.rows.sort(key=lambda r: (r.level, r.turn))


def block_of(rows: Sequence[Row]) -> I64:
    """The rows as the queue takes them, with words of their own in all that it only carries."""
    block = rows_of(
        len(rows),
        name=[r.name for r in rows],
        flow=[r.flow for r in rows],
        priority=[r.priority for r in rows],
        deadline=[r.deadline for r in rows],
        submit=[r.submit for r in rows],
    )
    for field in CARRIED:
        block[field] = block[QueueColumn.SEQUENCE] * 16 + field
    return block


CARRIED = (QueueColumn.LANE, QueueColumn.SLOT, QueueColumn.ATTEMPT, QueueColumn.BUCKET)
NAMED = named_flow(2, 1), named_flow(2, 2), named_flow(ORIGIN_MASK, 2**32 - 1)
FLOWS = st.sampled_from([1, 2, -7, *NAMED])
PRIORITIES = st.sampled_from([0, DEFAULT, 127, 130, HIGHEST, LOWEST, 2, 256, 10**6, -5])
DEADLINES = st.sampled_from([NEVER, 300, 200, 100])


class AgainstTheTurntable(RuleBasedStateMachine):
    @initialize(capacity=st.integers(1, 8))
    def start(self, capacity: int) -> None:
        self.queue = Queue(capacity)
        self.model = Turntable()
        self.now = 10**15
        self.next = 0
        self.away: list[tuple[Row, I64]] = []
        self.lost = itertools.count()

    def fresh(self, kinds: Sequence[tuple[int, int, int]]) -> list[Row]:
        rows = [
            Row(self.next + i, flow, priority, deadline, self.now)
            for i, (flow, priority, deadline) in enumerate(kinds)
        ]
        self.next += len(rows)
        return rows

    def append(self, rows: list[Row]) -> None:
        self.queue.append(block_of(rows))
        self.model.append(rows)

    @rule(kinds=st.lists(st.tuples(FLOWS, PRIORITIES, DEADLINES), max_size=8))
    def mixed_rows_come(self, kinds: list[tuple[int, int, int]]) -> None:
        self.append(self.fresh(kinds))

    @rule(flow=FLOWS, priority=PRIORITIES, deadlines=st.lists(DEADLINES, max_size=12))
    def a_flow_sends(self, flow: int, priority: int, deadlines: list[int]) -> None:
        self.append(self.fresh([(flow, priority, deadline) for deadline in deadlines]))

    @rule(flow=FLOWS, priority=PRIORITIES, n=st.integers(1, 12))
    def a_flow_sends_without_deadlines(self, flow: int, priority: int, n: int) -> None:
        self.append(self.fresh([(flow, priority, NEVER)] * n))

    def gone(self, block: I64, rows: list[Row]) -> None:
        assert names(block) == [r.name for r in rows]
        for field in CARRIED:
            assert block[field].tolist() == [r.name * 16 + field for r in rows]
        self.away += [(row, block[:, [i]]) for i, row in enumerate(rows)]

    @rule(share=st.floats(0, 1))
    def the_front_runs(self, share: float) -> None:
        n = round(share * len(self.model.rows))
        self.gone(self.queue.take(front(n)), self.model.take(range(n)))

    @precondition(lambda self: self.model.rows)
    @rule(share=st.floats(0, 1))
    def the_front_runs_at_once(self, share: float) -> None:
        n = max(1, round(share * len(self.model.rows)))
        self.gone(self.queue.take_front(n), self.model.take(range(n)))

    @precondition(lambda self: self.model.rows)
    @rule(ends=st.tuples(st.floats(0, 1), st.floats(0, 1)))
    def a_slice_runs(self, ends: tuple[float, float]) -> None:
        start, stop = sorted(round(share * len(self.model.rows)) for share in ends)
        self.gone(self.queue.take(slice(start, stop)), self.model.take(range(start, stop)))

    def some(self, draw: st.DataObject) -> list[int]:
        return sorted(draw.draw(st.sets(st.integers(0, len(self.model.rows) - 1), max_size=5)))

    @precondition(lambda self: self.model.rows)
    @rule(draw=st.data())
    def some_run(self, draw: st.DataObject) -> None:
        at = self.some(draw)
        self.gone(self.queue.take(positions(*at)), self.model.take(at))

    @precondition(lambda self: self.model.rows)
    @rule(draw=st.data())
    def some_are_cancelled(self, draw: st.DataObject) -> None:
        at = self.some(draw)
        dropped = self.queue.drop(positions(*at))
        assert names(dropped) == [r.name for r in self.model.drop(at)]

    @precondition(lambda self: self.away)
    @rule(n=st.integers(1, 6), dispatch=st.integers(-9, 9))
    def a_worker_was_lost(self, n: int, dispatch: int) -> None:
        dispatch = 1000 * (10 + dispatch) + next(self.lost)  # no two have the same number
        back, self.away = self.away[-n:], []
        block = np.concatenate([column for _, column in back], axis=1)
        before = block.copy()
        self.queue.prepend(block, dispatch)
        assert (block == before).all(), "the caller still holds them"
        self.model.prepend([replace(row) for row, _ in back], dispatch)

    @invariant()
    def the_order_is_the_same(self) -> None:
        if hasattr(self, "queue"):
            view = self.queue.view()
            rows = self.model.rows
            assert view.shape == (QUEUE_COLUMNS, len(self.queue))
            assert names(view) == [r.name for r in rows]
            for field, word in ((QueueColumn.FLOW, "flow"), (QueueColumn.DEADLINE_NS, "deadline")):
                assert view[field].tolist() == [getattr(r, word) for r in rows]
            for field in CARRIED:
                assert view[field].tolist() == [r.name * 16 + field for r in rows]
            assert [priority_of(key) for key in view[QueueColumn.KEY].tolist()] == [
                r.level for r in rows
            ]
            assert bool((np.diff(view[QueueColumn.KEY]) >= 0).all())


class WithAgeing(AgainstTheTurntable):
    @rule(steps=st.sampled_from([0, 1, 2, 3, 126, 127, 128, 253, 254]), less=st.booleans())
    def time_goes_by(self, steps: int, less: bool) -> None:
        self.now += steps * AGE_NS - less
        self.queue.age(self.now)
        self.model.age(self.now)


# Few steps instead of shrinking, which takes minutes here.
phases = (Phase.explicit, Phase.reuse, Phase.generate)
play = settings(max_examples=60, stateful_step_count=20, deadline=None, phases=phases)
AgainstTheTurntable.TestCase.settings = play
WithAgeing.TestCase.settings = play
TestAgainstTheTurntable = AgainstTheTurntable.TestCase
TestWithAgeing = WithAgeing.TestCase


# -- examples -------------------------------------------------------------------------------


def test_columns_are_the_rows_of_the_block() -> None:
    fields = [value for name, value in vars(QueueColumn).items() if name.isupper()]
    assert fields == list(range(QUEUE_COLUMNS))


def test_least_and_largest() -> None:
    for values in ([7], [3, 9, 4], [9, 3], [-1, -2, -3]):
        assert (least(np.array(values)), largest(np.array(values))) == (min(values), max(values))


def test_every() -> None:
    for mask in ([True, True], [False, True], [True, False], [], [False]):
        assert every(np.array(mask, dtype=bool)) == all(mask)


def test_what_was_taken_is_a_copy() -> None:
    queue = Queue(4)
    queue.append(rows_of(3))
    taken = queue.take(front(2))
    queue.append(rows_of(2, name=[9, 10]))
    assert names(taken) == [0, 1]
    assert names(queue.view()) == [2, 9, 10]
    assert queue.view().base is not None, "and what is seen is none"


def test_an_empty_queue() -> None:
    queue = Queue(4)
    assert len(queue) == 0
    assert queue.view().shape == (QUEUE_COLUMNS, 0)
    queue.append(rows_of(0))
    queue.prepend(rows_of(0), 1)
    queue.age(10**18)
    assert queue.take(front(0)).shape == (QUEUE_COLUMNS, 0)
    assert queue.drop(positions()).shape == (QUEUE_COLUMNS, 0)
    queue.append(rows_of(4))
    assert names(queue.take(front(4))) == [0, 1, 2, 3]
    assert len(queue) == 0


@pytest.mark.parametrize("capacity", [1, 3, 1024])
def test_one_flow_with_one_time_limit_is_first_in_first_out(capacity: int) -> None:
    """C66: however it comes and goes: in groups, rising deadlines, growth and wrap-around."""
    queue, came, left = Queue(capacity), 0, []
    for turn in range(60):
        n = (7 * turn) % 11
        submit = range(came * MS, (came + n) * MS, MS)
        queue.append(
            rows_of(n, name=range(came, came + n), submit=submit, deadline=[s + 99 for s in submit])
        )
        came += n
        left += names(queue.take(front(min(len(queue), (5 * turn) % 13))))
    left += names(queue.take(front(len(queue))))
    assert left == list(range(came))


def test_priorities_are_said_by_the_client_and_kept_in_range() -> None:
    """0 is what a client that says nothing has: the default."""
    asked = [300, 0, 1, -4, 255, 128, 127, 129]
    queue = queue_of(rows_of(8, priority=asked, flow=range(8)))
    assert names(queue.view()) == [2, 3, 6, 1, 5, 7, 0, 4]
    assert queue.view()[QueueColumn.PRIORITY].tolist() == [1, 1, 127, 128, 128, 129, 255, 255]


@pytest.mark.parametrize("asked", [0, 300, -4])
def test_a_lone_row_and_a_group_alike_have_their_priority_written_too(asked: int) -> None:
    right = {0: DEFAULT, 300: LOWEST, -4: HIGHEST}[asked]
    for n in (1, 2, 5):
        queue = queue_of(rows_of(n, priority=asked))
        assert queue.view()[QueueColumn.PRIORITY].tolist() == [right] * n
        assert [priority_of(key) for key in queue.view()[QueueColumn.KEY].tolist()] == [right] * n


def test_the_earliest_deadline_is_first_within_a_flow_and_priority_only() -> None:
    queue = queue_of(
        rows_of(2, name=[0, 1], flow=1, deadline=[900, 500]),
        rows_of(2, name=[2, 3], flow=2, deadline=[50, 40]),
        rows_of(1, name=4, flow=1, deadline=100),
        rows_of(1, name=5, flow=1, deadline=10, priority=129),
    )
    # Turns of flow 1 and flow 2 by turns; whose row has one is settled within the flow.
    assert names(queue.view()) == [4, 3, 1, 2, 0, 5]


@pytest.mark.parametrize("cancelled", [0, 2])
def test_the_earliest_deadline_is_first_after_others_were_cancelled(cancelled: int) -> None:
    queue = queue_of(rows_of(3, deadline=[100, 200, 300]))
    queue.drop(positions(cancelled))
    queue.append(rows_of(1, name=9, deadline=150))
    assert names(queue.view()) == {0: [9, 1, 2], 2: [0, 9, 1]}[cancelled]


def test_rows_of_equal_deadline_keep_the_order_they_came_in() -> None:
    queue = queue_of(
        rows_of(3, name=[0, 1, 2], deadline=[50, 50, 40]),
        rows_of(3, name=[3, 4, 5], deadline=[50, 40, 50]),
    )
    assert names(queue.view()) == [2, 4, 0, 1, 3, 5]


def test_a_prefix_moves_no_memory() -> None:
    queue = queue_of(rows_of(100))
    before = queue.view()
    queue.take(front(40))
    queue.take_front(30)
    assert names(queue.view()) == [*range(70, 100)]
    assert queue.view().__array_interface__["data"] == before[:, 70:].__array_interface__["data"]
