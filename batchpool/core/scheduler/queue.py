"""The queue of one model: its admitted rows in the order of service, as int64 columns.

The block is sorted by KEY (core/scheduler/fair_order.py), so that the next batch is its front.
Rows of one flow and priority are ordered by deadline, those of equal deadline by arrival; the flows
of one origin take turns. With one flow, one priority and one time limit that is first in, first
out, and appending is a copy to the end.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from batchpool.core.few_rows import LISTED_ROWS
from batchpool.core.flows import origin_of
from batchpool.core.priority import DEFAULT, HIGHEST, LOWEST, effective
from batchpool.core.scheduler.fair_order import (
    AGE_NS,
    TAG_BITS,
    FairOrder,
    first_key,
    priority_of,
)
from batchpool.core.scheduler.flow_turns import in_turns, origins_of

I64 = npt.NDArray[np.int64]


class QueueColumn:
    """Indices into the first dimension of a queue block [QUEUE_COLUMNS, n].

    BUCKET: rows of different buckets never share a batch.  KEY: the sort key.  SINCE_NS: the
    start of the waiting time by which a row ages.  RETURN: the place of a row among those that
    were put back; 0 if it never was.  KEY, SINCE_NS and RETURN are written by `Queue` only.
    Plain ints, because numpy indexes by them twice as fast as by an enum's members.
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
    RETURN: Final = 11


QUEUE_COLUMNS = 12
# Rows: up to this, lists of plain numbers are cheaper than numpy, each of whose calls takes 0.3 us
# and more, three times that where other code has run in between.
FEW = 16
_RETURN_BITS = 20  # of RETURN, for the place within a dispatch; more than a batch can have rows


def least(values: npt.NDArray[Any]) -> int:
    """The least of at least one value, in a third of the time that a reduction takes."""
    few = len(values) <= FEW
    found: int = min(values.tolist()) if few else values.item(values.argmin())
    return found


def largest(values: npt.NDArray[Any]) -> int:
    """The largest of at least one value."""
    few = len(values) <= FEW
    found: int = max(values.tolist()) if few else values.item(values.argmax())
    return found


def every(mask: npt.NDArray[np.bool_]) -> bool:
    """True if all are True, in a third of the time that `all` takes."""
    return bool(np.count_nonzero(mask) == len(mask))


def all_equal(values: I64) -> bool:
    """True if all values are equal: compared as bytes, in a fifth of the time numpy takes."""
    raw = values.tobytes()
    return raw[8:] == raw[:-8]


def _normalise_priorities(rows: I64) -> bool:
    """Replace PRIORITY values by legal ones; True if all rows are of one flow and priority."""
    if rows.shape[1] == 1:
        rows[QueueColumn.PRIORITY, 0] = effective(rows.item(QueueColumn.PRIORITY, 0))
        return True
    priorities = rows[QueueColumn.PRIORITY]
    if all_equal(priorities):
        first = priorities.item(0)
        legal = effective(first)
        if legal != first:
            priorities[:] = legal
        return all_equal(rows[QueueColumn.FLOW])
    priorities[priorities == 0] = DEFAULT
    np.minimum(np.maximum(priorities, HIGHEST), LOWEST, out=priorities)
    return all_equal(priorities) and all_equal(rows[QueueColumn.FLOW])


class Queue:
    """The rows of one model in the order of service; taking from the front moves no memory.

    changes: rises whenever rows come in or go out.
    """

    def __init__(self, capacity: int = 1024) -> None:
        self._block: I64 = np.empty((QUEUE_COLUMNS, capacity), dtype=np.int64)
        self._head = 0
        self._tail = 0
        self.changes = 0
        self._order = FairOrder()

    def __len__(self) -> int:
        return self._tail - self._head

    def view(self) -> I64:
        """The live rows [QUEUE_COLUMNS, n] in the order of service; valid until the next change."""
        return self._block[:, self._head : self._tail]

    def first_and_last(self) -> tuple[int, int]:
        """The keys of the first and of the last row, of which there is at least one."""
        block = self._block
        first = block.item(QueueColumn.KEY, self._head)
        return first, block.item(QueueColumn.KEY, self._tail - 1)

    # -- coming in ----------------------------------------------------------------------

    def append(self, rows: I64, since_ns: int = 0) -> None:
        """Add rows [QUEUE_COLUMNS, n] in the order of arrival.

        Writes their PRIORITY (0 becomes the default), KEY and SINCE_NS. since_ns: when they began
        to wait here; 0: when they were submitted.
        """
        if rows.shape[1] == 0:
            return
        if self._head == self._tail:
            self._order.reset()
        rows[QueueColumn.SINCE_NS] = since_ns or rows[QueueColumn.SUBMIT_NS]
        self._insert(rows)

    def _insert(self, rows: I64) -> None:
        """Assign keys to at least one row, in this order, and merge the rows by their keys."""
        n = rows.shape[1]
        if _normalise_priorities(rows):
            unsorted = self._assign_keys(rows, is_one=True)
        else:
            origins = origins_of(rows[QueueColumn.FLOW])
            order = np.lexsort((origins, rows[QueueColumn.PRIORITY]))
            ranked, origins = rows.take(order, axis=1), origins[order]
            change = (ranked[QueueColumn.PRIORITY, 1:] != ranked[QueueColumn.PRIORITY, :-1]) | (
                origins[1:] != origins[:-1]
            )
            cuts = [0, *(change.nonzero()[0] + 1).tolist(), n]
            unsorted = [f for a, b in pairwise(cuts) for f in self._assign_keys(ranked[:, a:b])]
            # In the order of arrival again: that is the order among equal keys.
            rows[QueueColumn.KEY, order] = ranked[QueueColumn.KEY]
            rows = rows.take(rows[QueueColumn.KEY].argsort(kind="stable"), axis=1)
        self._merge(rows)
        for priority, origin in unsorted:
            self._sort(priority, origin)
        self._order.prune(len(self))

    def prepend(self, rows: I64, dispatch: int) -> None:
        """Put rows [QUEUE_COLUMNS, n] that were taken before at the front of their priority.

        dispatch: the number of the batch that they were in, which rises with each batch of this
        queue. All rows that were put back are in the order of the numbers of their first return,
        those of one batch in the order given, whichever comes back first. Their PRIORITY may be
        as a client wrote it.
        """
        n = rows.shape[1]
        if n == 0:
            return
        rows = rows.copy()
        _normalise_priorities(rows)  # those of a takeover were read in their lane just now
        rows[QueueColumn.KEY] = first_key(rows[QueueColumn.PRIORITY])
        places = (dispatch << _RETURN_BITS) + np.arange(n)
        known = rows[QueueColumn.RETURN]
        rows[QueueColumn.RETURN] = np.where(known, known, places)
        self._merge(rows[:, np.argsort(rows[QueueColumn.KEY], kind="stable")], side="left")
        queued = self.view()
        keys = queued[QueueColumn.KEY]
        returned = keys == first_key(queued[QueueColumn.PRIORITY])
        order = np.lexsort((np.where(returned, queued[QueueColumn.RETURN], 0), keys))
        queued[:] = queued[:, order]

    def _assign_keys(self, rows: I64, *, is_one: bool = False) -> list[tuple[int, int]]:
        """Write the KEYs of rows of one origin and priority. is_one: they are of one flow.

        Returns [(priority, origin)] if the origin's rows must be sorted, else [].
        """
        n = rows.shape[1]
        priority, flow = rows.item(QueueColumn.PRIORITY, 0), rows.item(QueueColumn.FLOW, 0)
        if n == 1:
            start, in_order = self._order.assign_one(
                priority, flow, rows.item(QueueColumn.DEADLINE_NS, 0)
            )
            rows[QueueColumn.KEY, 0] = start
        else:
            # An origin has flows with names, and one without.
            is_one = is_one or all_equal(rows[QueueColumn.FLOW])
            start, in_order = self._order.assign(
                priority, flow, rows[QueueColumn.DEADLINE_NS], is_one=is_one
            )
            rows[QueueColumn.KEY] = np.arange(start, start + n)
        return [] if in_order else [(priority, origin_of(flow))]

    def _merge(self, rows: I64, side: Any = "right") -> None:
        """Merge rows sorted by KEY into the block, behind (or before) those of equal KEY."""
        n = rows.shape[1]
        if self._tail + n > self._block.shape[1]:
            self._reserve(n)
        head, tail, block = self._head, self._tail, self._block
        self._tail += n
        self.changes += 1
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

    def _sort(self, priority: int, origin: int) -> None:
        """Assign an origin's keys to its rows anew: the lowest of a flow to its earliest deadline,
        and of several flows in turns.

        Rows that were put back keep their place at the front.
        """
        queued = self.view()
        if queued.shape[1] <= LISTED_ROWS and self._sort_listed(queued, priority, origin):
            return
        theirs = self._positions_of(priority, origin)
        deadlines = queued[QueueColumn.DEADLINE_NS, theirs]
        order = in_turns(queued[QueueColumn.FLOW, theirs], deadlines)
        keys = queued[QueueColumn.KEY, theirs]
        moved = np.flatnonzero(order != np.arange(len(order)))
        if len(moved):
            part = slice(moved.item(0), moved.item(-1) + 1)
            queued[:, theirs[part]] = queued[:, theirs[order[part]]]
            queued[QueueColumn.KEY, theirs[part]] = keys[part]
        self._order.set_last(priority, origin, int(keys[-1]), largest(deadlines))

    def _sort_listed(self, queued: I64, priority: int, origin: int) -> bool:
        """`_sort` in a queue of few rows; False, with nothing done, for several flows."""
        flows = queued[QueueColumn.FLOW].tolist()
        if flows.count(flows[0]) < len(flows):
            return False
        keys, priorities = queued[QueueColumn.KEY].tolist(), queued[QueueColumn.PRIORITY].tolist()
        first = priority << TAG_BITS  # as `first_key` has it
        theirs = [at for at, own in enumerate(priorities) if own == priority and keys[at] != first]
        deadlines = queued[QueueColumn.DEADLINE_NS].tolist()
        order = sorted(theirs, key=deadlines.__getitem__)
        moved = [k for k, at in enumerate(theirs) if order[k] != at]
        if moved:
            part = slice(moved[0], moved[-1] + 1)
            to = theirs[part]
            queued[:, to] = queued[:, order[part]]
            queued[QueueColumn.KEY, to] = [keys[at] for at in to]
        self._order.set_last(priority, origin, keys[theirs[-1]], deadlines[order[-1]])
        return True

    # -- ageing -------------------------------------------------------------------------

    def age(self, now_ns: int) -> None:
        """Raise rows that have waited long enough to the best priority that waits."""
        if len(self) < 2:
            return
        block = self._block
        best = priority_of(block.item(QueueColumn.KEY, self._head))
        if priority_of(block.item(QueueColumn.KEY, self._tail - 1)) == best:
            return
        queued = self.view()
        below = queued[QueueColumn.PRIORITY] - best
        waited = now_ns - queued[QueueColumn.SINCE_NS]
        aged = np.flatnonzero((below > 0) & (waited >= below * AGE_NS))
        if len(aged):
            rows = self._remove(aged)
            self._return_keys(rows)
            rows[QueueColumn.SINCE_NS] += (
                rows[QueueColumn.PRIORITY] - best
            ) * AGE_NS  # that waiting is used up
            rows[QueueColumn.PRIORITY] = best
            self._insert(rows)

    # -- going out ----------------------------------------------------------------------

    def take(self, rows: slice | npt.NDArray[Any]) -> I64:
        """Remove and return rows by position, to be run. A prefix slice moves no other row."""
        taken = self._remove(rows)
        if taken.shape[1]:
            self._order.advance(taken[QueueColumn.KEY])
        return taken

    def drop(self, rows: npt.NDArray[Any]) -> I64:
        """Remove and return rows by position that will not be run; virtual time stands still."""
        dropped = self._remove(rows)
        self._return_keys(dropped)
        return dropped

    def _positions_of(self, priority: int, origin: int) -> npt.NDArray[Any]:
        """Positions of an origin's rows of this priority, without those that were put back."""
        queued = self.view()
        first = int(first_key(np.array(priority)))
        return np.flatnonzero(
            (queued[QueueColumn.PRIORITY] == priority)
            & (origins_of(queued[QueueColumn.FLOW]) == origin)
            & (queued[QueueColumn.KEY] != first)
        )

    def _return_keys(self, rows: I64) -> None:
        """Pass the keys of rows that left without being run to later rows of their origins.

        The order is then as if the rows had never come in.
        """
        queued = self.view()
        origins = origins_of(rows[QueueColumn.FLOW])
        pairs = {*zip(rows[QueueColumn.PRIORITY].tolist(), origins.tolist(), strict=True)}
        moved = False
        for priority, origin in pairs:
            theirs = self._positions_of(priority, origin)
            last_key = latest_ns = 0
            if len(theirs):
                mine = (rows[QueueColumn.PRIORITY] == priority) & (origins == origin)
                keys = queued[QueueColumn.KEY, theirs]
                left = rows[QueueColumn.KEY, mine]
                left = left[left > first_key(np.array(priority))]
                if len(left) and left.min() < keys[-1]:
                    moved = True
                    keys = np.sort(np.concatenate([keys, left]))[: len(theirs)]
                    queued[QueueColumn.KEY, theirs] = keys
                last_key = int(keys[-1])
                latest_ns = largest(queued[QueueColumn.DEADLINE_NS, theirs])
            self._order.set_last(priority, origin, last_key, latest_ns)
        if moved:
            queued[:] = queued[:, np.argsort(queued[QueueColumn.KEY], kind="stable")]

    def take_front(self, n: int) -> I64:
        """Remove and return the first n >= 1 rows, to be run."""
        head = self._head
        self.changes += 1
        taken = self._block[:, head : head + n].copy()
        self._head = head + n
        if self._head == self._tail:
            self._head = self._tail = 0
        self._order.advance(taken[QueueColumn.KEY])
        return taken

    def _remove(self, rows: slice | npt.NDArray[Any]) -> I64:
        live = self.view()
        self.changes += 1
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

    def _reserve(self, n: int) -> None:
        """Make space for n more rows behind the last one."""
        live = self.view()
        size = live.shape[1]
        if size + n > self._block.shape[1] // 2:
            grown = np.empty((QUEUE_COLUMNS, 2 * (size + n)), dtype=np.int64)
            grown[:, :size] = live
            self._block = grown
        else:
            self._block[:, :size] = live.copy()
        self._head, self._tail = 0, size
