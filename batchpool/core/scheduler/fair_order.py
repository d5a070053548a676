"""Fair service order: a sort key for each queued row, from its priority and its flow's service.

Lower priority numbers go first: 1 is the highest, 255 the lowest. Among rows of one priority the
flows are served round robin, one row each. That is deficit round robin (Shreedhar and Varghese
1996) with a quantum of one row, since every row costs the same. The order is computed by the
virtual time of self-clocked fair queueing (Golestani 1994): virtual time is the tag of the row
that was dispatched last, and a flow's next row gets the tag after its last one or after virtual
time, whichever is later. So a flow without waiting rows is served next when a row comes in, and
a flow with a thousand rows has all but one of them behind that row. A tag does not change once
it was assigned, so the next batch is always the front of the queue and needs no search.

    KEY = priority << 40 | tag

The turns are those of origins (core/flows.py): all names of one origin share its tags, so that
whoever sends each row under a new name gets no more than who sends all under one. Within an origin
and priority the tags go round its names, one row each, and within a name to the rows with the
earliest deadlines; the queue sorts them (core/scheduler/queue.py).

Ageing: a row rises by one priority for every `AGE_NS` that it has waited, at most up to the best
priority that waits, and gets a tag among the rows of that priority. So the lowest priority waits
at most 254 x AGE_NS longer than the highest, and a crowd of aged rows does not overtake the
others.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from batchpool.core.few_rows import LISTED_ROWS
from batchpool.core.flows import NAMED_FROM

AGE_NS = 100_000_000
TAG_BITS = 40
_TAG_MASK = (1 << TAG_BITS) - 1
_KEEP_FLOWS = 4096  # origins without waiting rows whose last tags are kept
_SEVERAL = -(1 << 63)  # in place of the one flow of an origin

_I64 = npt.NDArray[np.int64]


def priority_of(key: int) -> int:
    """The priority in a KEY."""
    return key >> TAG_BITS


def first_key(priority: _I64) -> _I64:
    """Keys before every tag of these priorities, for rows that go back to the front."""
    keys: _I64 = priority << TAG_BITS
    return keys


class FairOrder:
    """Assigns the keys of one queue, from virtual time and the last tag of each origin."""

    def __init__(self) -> None:
        self._virtual_time: dict[int, int] = {}  # priority -> tag of the row dispatched last
        # (priority, origin) -> (its last tag, the latest deadline among its waiting rows, its flow
        # or _SEVERAL)
        self._last: dict[tuple[int, int], tuple[int, int, int]] = {}
        # The latest deadline of the origin that was assigned tags last, before its new rows.
        self._latest_before_ns = 0

    def assign(
        self, priority: int, flow: int, deadlines: _I64, *, is_one: bool = True
    ) -> tuple[int, bool]:
        """Assign tags to new rows of a flow with these deadlines, in the order of arrival.

        is_one: all rows are of this flow, else of others of its origin too. Returns the first KEY,
        the others following by one each; and whether no other flow of the origin had rows, and
        every deadline is at or after those before it. If not, its waiting rows must be sorted.
        """
        if len(deadlines) <= LISTED_ROWS:
            listed = deadlines.tolist()
            in_rising_order = sorted(listed)
            latest_ns, rising = in_rising_order[-1], listed == in_rising_order
        else:
            rising = bool(np.count_nonzero(deadlines[1:] < deadlines[:-1]) == 0)
            latest_ns = deadlines.item(-1) if rising else int(deadlines.max())
        key, in_order = self.assign_one(priority, flow, latest_ns, len(deadlines), is_one=is_one)
        return key, in_order and rising and deadlines.item(0) >= self._latest_before_ns

    def assign_one(
        self, priority: int, flow: int, deadline_ns: int, n: int = 1, *, is_one: bool = True
    ) -> tuple[int, bool]:
        """`assign` for one row, or for n rows of which `deadline_ns` is the latest deadline."""
        now = self._virtual_time.get(priority, 0)
        origin = flow >> 32 if flow >= NAMED_FROM else flow  # `origin_of`, without a call
        last, latest_ns, of = self._last.get((priority, origin), (0, 0, flow))
        if of != flow or not is_one:
            of = _SEVERAL
        start = (now if now > last else last) + 1
        in_order = deadline_ns >= latest_ns
        self._last[priority, origin] = start + n - 1, deadline_ns if in_order else latest_ns, of
        self._latest_before_ns = latest_ns
        return start + (priority << TAG_BITS), in_order and of == flow

    def advance(self, keys: _I64) -> None:
        """Advance virtual time to these rows, which are dispatched in the order of service."""
        last = keys.item(-1)
        self._advance_to(last)
        if keys.item(0) >> TAG_BITS == last >> TAG_BITS:
            return
        priorities = keys >> TAG_BITS
        for at in np.flatnonzero(priorities[1:] != priorities[:-1]).tolist():
            self._advance_to(keys.item(at))

    def _advance_to(self, key: int) -> None:
        priority, tag = key >> TAG_BITS, key & _TAG_MASK
        if tag > self._virtual_time.get(priority, 0):
            self._virtual_time[priority] = tag

    def set_last(self, priority: int, origin: int, last_key: int, latest_ns: int) -> None:
        """Set the last KEY and the latest deadline of an origin's waiting rows; 0, 0 for none.

        Called after rows left without being run, so that their origin is not charged for them.
        """
        if not last_key:
            self._last.pop((priority, origin), None)
            return
        of = self._last.get((priority, origin), (0, 0, _SEVERAL))[2]
        self._last[priority, origin] = last_key & _TAG_MASK, latest_ns, of

    def reset(self) -> None:
        """Start anew with an empty queue."""
        self._virtual_time.clear()
        self._last.clear()

    def prune(self, waiting: int) -> None:
        """Drop origins without waiting rows, once they outnumber the `waiting` rows."""
        if len(self._last) > _KEEP_FLOWS + 2 * waiting:
            now = self._virtual_time
            self._last = {
                whose: last for whose, last in self._last.items() if last[0] > now.get(whose[0], 0)
            }
