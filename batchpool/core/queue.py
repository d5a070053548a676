"""The admitted rows of one model in the order they are to be served, in the batcher's arrays.

By KEY (core/turns.py), so that the next batch is the front of the block; rows of one flow and
priority have their turns in the order of their deadlines, those of equal deadline in the
order they came. With one flow, one priority and one time limit that is first in, first out,
and appending is a copy to the end.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from batchpool.core.turns import AGE_NS, DEFAULT, HIGHEST, LOWEST, Turns, first_key, priority_of

I64 = npt.NDArray[np.int64]


class Field:
    """The rows of a queue block [fields, n]. Plain ints: numpy indexes twice as fast by them.

    BUCKET: rows of different buckets never share a batch. KEY: the order; the queue's own.
    """

    LANE = 0
    SLOT = 1
    SEQUENCE = 2
    SUBMIT_NS = 3
    DEADLINE_NS = 4
    PRIORITY = 5
    FLOW = 6
    ATTEMPT = 7
    BUCKET = 8
    KEY = 9


FIELDS = 10


def least(values: npt.NDArray[Any]) -> int:
    """The least of at least one value; a reduction costs ten times as much as one look."""
    return int(values[0]) if len(values) == 1 else int(values.min())


def largest(values: npt.NDArray[Any]) -> int:
    """The largest of at least one value."""
    return int(values[0]) if len(values) == 1 else int(values.max())


def _alike(values: I64) -> bool:
    return bool(values[0] == values[-1]) and (len(values) < 3 or bool((values == values[0]).all()))


class Queue:
    """A block of int64 columns; taking from the front moves no memory."""

    def __init__(self, capacity: int = 1024) -> None:
        self._block: I64 = np.empty((FIELDS, capacity), dtype=np.int64)
        self._head = 0
        self._tail = 0
        self._turns = Turns()

    def __len__(self) -> int:
        return self._tail - self._head

    def view(self) -> I64:
        """The live rows [FIELDS, n] in the order of service; valid until the next change."""
        return self._block[:, self._head : self._tail]

    # -- coming in ----------------------------------------------------------------------

    def append(self, rows: I64) -> None:
        """Rows [FIELDS, n] that came in, in the order they came. Writes their PRIORITY (0 is
        the default) and KEY."""
        n = rows.shape[1]
        if n == 0:
            return
        if self._head == self._tail:
            self._turns.forget()
        if n == 1:
            self._append_one(rows)
            return
        priorities, flows = rows[Field.PRIORITY], rows[Field.FLOW]
        if not _alike(priorities) or not HIGHEST <= priorities[0] <= LOWEST:
            priorities[priorities == 0] = DEFAULT
            np.clip(priorities, HIGHEST, LOWEST, out=priorities)
        if _alike(priorities) and _alike(flows):
            untidy = self._give_turns(rows, slice(0, n))
        else:
            order = np.lexsort((flows, priorities))
            ranked = rows[:, order]
            change = (ranked[Field.PRIORITY, 1:] != ranked[Field.PRIORITY, :-1]) | (
                ranked[Field.FLOW, 1:] != ranked[Field.FLOW, :-1]
            )
            cuts = [0, *(np.flatnonzero(change) + 1).tolist(), n]
            untidy = [f for a, b in pairwise(cuts) for f in self._give_turns(rows, order[a:b])]
            rows = rows[:, np.argsort(rows[Field.KEY], kind="stable")]
        self._merge(rows)
        for priority, flow in untidy:
            self._deal_by_deadline(priority, flow)
        self._turns.prune(len(self))

    def _append_one(self, rows: I64) -> None:
        """The same for one row, for which arrays cost more than numbers."""
        priority, flow = rows.item(Field.PRIORITY, 0), rows.item(Field.FLOW, 0)
        if not HIGHEST <= priority <= LOWEST:
            priority = min(max(priority, HIGHEST), LOWEST) if priority else DEFAULT
            rows[Field.PRIORITY, 0] = priority
        key, in_order = self._turns.give_one(priority, flow, rows.item(Field.DEADLINE_NS, 0))
        rows[Field.KEY, 0] = key
        self._merge(rows)
        if not in_order:
            self._deal_by_deadline(priority, flow)
        self._turns.prune(len(self))

    def prepend(self, rows: I64) -> None:
        """Rows [FIELDS, n] that were here before, back to the front of their priority."""
        if rows.shape[1]:
            rows = rows.copy()
            rows[Field.KEY] = first_key(rows[Field.PRIORITY])
            order = np.argsort(rows[Field.KEY], kind="stable")
            self._merge(rows[:, order], side="left")

    def _give_turns(self, rows: I64, which: slice | I64) -> list[tuple[int, int]]:
        """Write the KEYs of rows of one flow and priority; returns the two, in a list, if their
        turns must be dealt out anew."""
        deadlines = rows[Field.DEADLINE_NS, which]
        first = which.start if isinstance(which, slice) else which[0]
        priority, flow = int(rows[Field.PRIORITY, first]), int(rows[Field.FLOW, first])
        start, in_order = self._turns.give(priority, flow, deadlines)
        n = len(deadlines)
        rows[Field.KEY, which] = start if n == 1 else np.arange(start, start + n)
        return [] if in_order else [(priority, flow)]

    def _merge(self, rows: I64, side: Any = "right") -> None:
        """Rows sorted by KEY into their places; behind (or before) those of the same KEY."""
        n = rows.shape[1]
        if self._tail + n > self._block.shape[1]:
            self._make_room(n)
        head, tail, keys = self._head, self._tail, self._block[Field.KEY]
        self._tail += n
        first = rows.item(Field.KEY, 0)
        if head == tail or keys.item(tail - 1) < first:
            self._block[:, tail : self._tail] = rows
            return
        at = head + int(np.searchsorted(keys[head:tail], first, side=side))
        both = (
            (self._block[:, at:tail], rows) if side == "right" else (rows, self._block[:, at:tail])
        )
        joined = np.concatenate(both, axis=1)
        order = np.argsort(joined[Field.KEY], kind="stable")
        self._block[:, at : self._tail] = joined[:, order]

    def _deal_by_deadline(self, priority: int, flow: int) -> None:
        """Give a flow's turns to its rows anew, the earliest deadline first."""
        queued = self.view()
        theirs = np.flatnonzero((queued[Field.PRIORITY] == priority) & (queued[Field.FLOW] == flow))
        order = np.argsort(queued[Field.DEADLINE_NS, theirs], kind="stable")
        keys = queued[Field.KEY, theirs]
        queued[:, theirs] = queued[:, theirs[order]]
        queued[Field.KEY, theirs] = keys
        latest_ns = int(queued[Field.DEADLINE_NS, theirs[-1]])
        self._turns.waits(priority, flow, int(keys[-1]), latest_ns)

    # -- ageing -------------------------------------------------------------------------

    def age(self, now_ns: int) -> None:
        """Let rows that waited long rise to the best priority that waits."""
        if len(self) < 2:
            return
        queued = self.view()
        best = priority_of(int(queued[Field.KEY, 0]))
        if priority_of(int(queued[Field.KEY, -1])) == best:
            return
        below = queued[Field.PRIORITY] - best
        waited = now_ns - queued[Field.SUBMIT_NS]
        aged = np.flatnonzero((below > 0) & (waited >= below * AGE_NS))
        if len(aged):
            rows = self._remove(aged)
            rows[Field.PRIORITY] = best
            self.append(rows)

    # -- going out ----------------------------------------------------------------------

    def take(self, rows: slice | npt.NDArray[Any]) -> I64:
        """Remove and return rows by position, to be run; a prefix slice moves no others."""
        taken = self._remove(rows)
        if taken.shape[1]:
            self._turns.served(taken[Field.KEY])
        return taken

    def drop(self, rows: npt.NDArray[Any]) -> I64:
        """Remove and return rows by position that will not be run: nobody's turn is used up."""
        dropped = self._remove(rows)
        if dropped.shape[1] == 0:
            return dropped
        queued = self.view()
        pairs = {*zip(dropped[Field.PRIORITY].tolist(), dropped[Field.FLOW].tolist(), strict=True)}
        for priority, flow in pairs:
            theirs = (queued[Field.PRIORITY] == priority) & (queued[Field.FLOW] == flow)
            last_key = int(queued[Field.KEY, theirs].max(initial=0))
            latest_ns = int(queued[Field.DEADLINE_NS, theirs].max(initial=0))
            self._turns.waits(priority, flow, last_key, latest_ns)
        return dropped

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
            grown = np.empty((FIELDS, 2 * (size + n)), dtype=np.int64)
            grown[:, :size] = live
            self._block = grown
        else:
            self._block[:, :size] = live.copy()
        self._head, self._tail = 0, size
