"""The admitted rows of one model in the order they are to be served, in the batcher's arrays.

By KEY (core/scheduler/fair_order.py), so that the next batch is the front of the block; rows of one flow and
priority have their turns in the order of their deadlines, those of equal deadline in the
order they came. With one flow, one priority and one time limit that is first in, first out,
and appending is a copy to the end.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from batchpool.core.priority import DEFAULT, HIGHEST, LOWEST, effective
from batchpool.core.scheduler.fair_order import AGE_NS, FairOrder, first_key, priority_of

I64 = npt.NDArray[np.int64]


class QueueColumn:
    """The rows of a queue block [fields, n]. Plain ints: numpy indexes twice as fast by them.

    BUCKET: rows of different buckets never share a batch. The queue's own are KEY, the order,
    and SINCE_NS, from when the waiting counts that makes a row rise.
    """

    LANE: Final = 0
    SLOT: Final = 1
    SEQUENCE: Final = 2
    SUBMIT_NS: Final = 3
    DEADLINE_NS: Final = 4
    PRIORITY: Final = 5
    FLOW: Final = 6
    ATTEMPT: Final = 7
    BUCKET: Final = 8
    KEY: Final = 9
    SINCE_NS: Final = 10


QUEUE_COLUMNS = 11


def least(values: npt.NDArray[Any]) -> int:
    """The least of at least one value; a reduction costs ten times as much as one look."""
    return values.item(0) if len(values) == 1 else int(np.minimum.reduce(values))


def largest(values: npt.NDArray[Any]) -> int:
    """The largest of at least one value."""
    return values.item(0) if len(values) == 1 else int(np.maximum.reduce(values))


def every(mask: npt.NDArray[np.bool_]) -> bool:
    """Whether all are True, in a third of the time that `all` takes."""
    return bool(np.count_nonzero(mask) == len(mask))


def _alike(values: I64) -> bool:
    """Whether all are the same: as bytes, shifted by one value, for a fifth of numpy's time."""
    raw = values.tobytes()
    return raw[8:] == raw[:-8]


def _are_of_one(rows: I64) -> bool:
    """Make every PRIORITY one that there is; whether the rows are of one flow and priority."""
    if rows.shape[1] == 1:
        rows[QueueColumn.PRIORITY, 0] = effective(rows.item(QueueColumn.PRIORITY, 0))
        return True
    priorities = rows[QueueColumn.PRIORITY]
    if _alike(priorities):
        priorities[:] = effective(priorities.item(0))
    else:
        priorities[priorities == 0] = DEFAULT
        np.minimum(np.maximum(priorities, HIGHEST), LOWEST, out=priorities)
    return _alike(priorities) and _alike(rows[QueueColumn.FLOW])


class Queue:
    """A block of int64 columns; taking from the front moves no memory."""

    def __init__(self, capacity: int = 1024) -> None:
        self._block: I64 = np.empty((QUEUE_COLUMNS, capacity), dtype=np.int64)
        self._head = 0
        self._tail = 0
        self._turns = FairOrder()

    def __len__(self) -> int:
        return self._tail - self._head

    def view(self) -> I64:
        """The live rows [QUEUE_COLUMNS, n] in the order of service; valid until the next change."""
        return self._block[:, self._head : self._tail]

    # -- coming in ----------------------------------------------------------------------

    def append(self, rows: I64) -> None:
        """Rows [QUEUE_COLUMNS, n] that came in, in the order they came. Writes their PRIORITY (0 is
        the default), KEY and SINCE_NS."""
        if rows.shape[1] == 0:
            return
        if self._head == self._tail:
            self._turns.forget()
        rows[QueueColumn.SINCE_NS] = rows[QueueColumn.SUBMIT_NS]
        self._line_up(rows)

    def _line_up(self, rows: I64) -> None:
        """Give turns to at least one row, in this order, and put them into their places."""
        n = rows.shape[1]
        if _are_of_one(rows):
            untidy = self._give_turns(rows)
        else:
            order = np.lexsort((rows[QueueColumn.FLOW], rows[QueueColumn.PRIORITY]))
            ranked = rows.take(order, axis=1)
            change = (ranked[QueueColumn.PRIORITY, 1:] != ranked[QueueColumn.PRIORITY, :-1]) | (
                ranked[QueueColumn.FLOW, 1:] != ranked[QueueColumn.FLOW, :-1]
            )
            cuts = [0, *(change.nonzero()[0] + 1).tolist(), n]
            untidy = [f for a, b in pairwise(cuts) for f in self._give_turns(ranked[:, a:b])]
            # Back in the order they came: that is the order among equal keys.
            rows[QueueColumn.KEY, order] = ranked[QueueColumn.KEY]
            rows = rows.take(rows[QueueColumn.KEY].argsort(kind="stable"), axis=1)
        self._merge(rows)
        for priority, flow in untidy:
            self._deal_by_deadline(priority, flow)
        self._turns.prune(len(self))

    def prepend(self, rows: I64) -> None:
        """Rows [QUEUE_COLUMNS, n] that were here before, back to the front of their priority."""
        if rows.shape[1]:
            rows = rows.copy()
            rows[QueueColumn.KEY] = first_key(rows[QueueColumn.PRIORITY])
            order = np.argsort(rows[QueueColumn.KEY], kind="stable")
            self._merge(rows[:, order], side="left")

    def _give_turns(self, rows: I64) -> list[tuple[int, int]]:
        """Write the KEYs of rows of one flow and priority; returns the two, in a list, if their
        turns must be dealt out anew."""
        n = rows.shape[1]
        priority, flow = rows.item(QueueColumn.PRIORITY, 0), rows.item(QueueColumn.FLOW, 0)
        if n == 1:
            start, in_order = self._turns.give_one(
                priority, flow, rows.item(QueueColumn.DEADLINE_NS, 0)
            )
            rows[QueueColumn.KEY, 0] = start
        else:
            start, in_order = self._turns.give(priority, flow, rows[QueueColumn.DEADLINE_NS])
            rows[QueueColumn.KEY] = np.arange(start, start + n)
        return [] if in_order else [(priority, flow)]

    def _merge(self, rows: I64, side: Any = "right") -> None:
        """Rows sorted by KEY into their places; behind (or before) those of the same KEY."""
        n = rows.shape[1]
        if self._tail + n > self._block.shape[1]:
            self._make_room(n)
        head, tail, block = self._head, self._tail, self._block
        self._tail += n
        first = rows.item(QueueColumn.KEY, 0)
        if head == tail or block.item(QueueColumn.KEY, tail - 1) < first:
            block[:, tail : self._tail] = rows
            return
        at = head + int(np.searchsorted(block[QueueColumn.KEY, head:tail], first, side=side))
        both = (
            (self._block[:, at:tail], rows) if side == "right" else (rows, self._block[:, at:tail])
        )
        joined = np.concatenate(both, axis=1)
        order = np.argsort(joined[QueueColumn.KEY], kind="stable")
        self._block[:, at : self._tail] = joined[:, order]

    def _deal_by_deadline(self, priority: int, flow: int) -> None:
        """Give a flow's turns to its rows anew, the earliest deadline first. Rows that came back
        have had theirs and stay at the front."""
        queued = self.view()
        theirs = self._with_turns(priority, flow)
        order = np.argsort(queued[QueueColumn.DEADLINE_NS, theirs], kind="stable")
        keys = queued[QueueColumn.KEY, theirs]
        queued[:, theirs] = queued[:, theirs[order]]
        queued[QueueColumn.KEY, theirs] = keys
        latest_ns = int(queued[QueueColumn.DEADLINE_NS, theirs[-1]])
        self._turns.waits(priority, flow, int(keys[-1]), latest_ns)

    # -- ageing -------------------------------------------------------------------------

    def age(self, now_ns: int) -> None:
        """Let rows that waited long rise to the best priority that waits."""
        if len(self) < 2:
            return
        queued = self.view()
        best = priority_of(int(queued[QueueColumn.KEY, 0]))
        if priority_of(int(queued[QueueColumn.KEY, -1])) == best:
            return
        below = queued[QueueColumn.PRIORITY] - best
        waited = now_ns - queued[QueueColumn.SINCE_NS]
        aged = np.flatnonzero((below > 0) & (waited >= below * AGE_NS))
        if len(aged):
            rows = self._remove(aged)
            self._give_up_turns(rows)
            rows[QueueColumn.SINCE_NS] += (
                rows[QueueColumn.PRIORITY] - best
            ) * AGE_NS  # that is used up now
            rows[QueueColumn.PRIORITY] = best
            self._line_up(rows)

    # -- going out ----------------------------------------------------------------------

    def take(self, rows: slice | npt.NDArray[Any]) -> I64:
        """Remove and return rows by position, to be run; a prefix slice moves no others."""
        taken = self._remove(rows)
        if taken.shape[1]:
            self._turns.served(taken[QueueColumn.KEY])
        return taken

    def drop(self, rows: npt.NDArray[Any]) -> I64:
        """Remove and return rows by position that will not be run: nobody's turn is used up."""
        dropped = self._remove(rows)
        self._give_up_turns(dropped)
        return dropped

    def _with_turns(self, priority: int, flow: int) -> npt.NDArray[Any]:
        """Positions of a flow's rows of this priority, without those that came back."""
        queued = self.view()
        first = int(first_key(np.array(priority)))
        return np.flatnonzero(
            (queued[QueueColumn.PRIORITY] == priority)
            & (queued[QueueColumn.FLOW] == flow)
            & (queued[QueueColumn.KEY] != first)
        )

    def _give_up_turns(self, rows: I64) -> None:
        """Rows left their priority without being run: as if they had never come. The others of
        their flows move up into the turns that they had."""
        queued = self.view()
        pairs = {
            *zip(rows[QueueColumn.PRIORITY].tolist(), rows[QueueColumn.FLOW].tolist(), strict=True)
        }
        moved = False
        for priority, flow in pairs:
            theirs = self._with_turns(priority, flow)
            last_key = latest_ns = 0
            if len(theirs):
                mine = (rows[QueueColumn.PRIORITY] == priority) & (rows[QueueColumn.FLOW] == flow)
                keys = queued[QueueColumn.KEY, theirs]
                left = rows[QueueColumn.KEY, mine]
                left = left[left > first_key(np.array(priority))]
                if len(left) and left.min() < keys[-1]:
                    moved = True
                    keys = np.sort(np.concatenate([keys, left]))[: len(theirs)]
                    queued[QueueColumn.KEY, theirs] = keys
                last_key, latest_ns = (
                    int(keys[-1]),
                    int(queued[QueueColumn.DEADLINE_NS, theirs[-1]]),
                )
            self._turns.waits(priority, flow, last_key, latest_ns)
        if moved:
            queued[:] = queued[:, np.argsort(queued[QueueColumn.KEY], kind="stable")]

    def take_front(self, n: int) -> I64:
        """Remove and return the first n >= 1 rows, to be run."""
        head = self._head
        taken = self._block[:, head : head + n].copy()
        self._head = head + n
        if self._head == self._tail:
            self._head = self._tail = 0
        self._turns.served(taken[QueueColumn.KEY])
        return taken

    def _remove(self, rows: slice | npt.NDArray[Any]) -> I64:
        live = self.view()
        taken: I64 = live[:, rows].copy()
        if isinstance(rows, slice) and rows.start == 0:
            self._head += taken.shape[1]
        else:
            keep = np.ones(len(self), dtype=bool)
            keep[rows] = False
            kept = live[:, keep]
            self._tail = self._head + kept.shape[1]
            self._block[:, self._head : self._tail] = kept
        if self._head == self._tail:
            self._head = self._tail = 0
        return taken

    def _make_room(self, n: int) -> None:
        live = self.view()
        size = live.shape[1]
        if size + n > self._block.shape[1] // 2:
            grown = np.empty((QUEUE_COLUMNS, 2 * (size + n)), dtype=np.int64)
            grown[:, :size] = live
            self._block = grown
        else:
            self._block[:, :size] = live.copy()
        self._head, self._tail = 0, size
