"""Whose turn it is: a number for each queued row, so that the order of service is one sort key.

Priorities first: 1 is the highest, 255 the lowest. Among rows of one priority the flows take
turns, one row each (deficit round robin of Shreedhar and Varghese 1996, whose quantum is one
row here, since every row costs the same). The turns are numbered as in self-clocked fair
queueing (Golestani 1994): a flow's next row gets the turn after its last one, or after the
turn that is being served, whichever is later. So a flow that was quiet comes next, a flow
with a thousand rows waits behind it with all but one, and a turn once given never changes:
the next batch is always the front of the queue, found without a search.

    KEY = priority << 40 | turn

Within a flow and priority the earliest deadline has the first of the flow's turns
(core/scheduler/queue.py deals them out).

Ageing: for every `AGE_NS` of waiting a row rises by one priority, up to the best one that
waits, where its flow takes turns with the others. So the lowest priority waits at most
254 x AGE_NS longer than the highest, whatever comes in, and a crowd of aged rows does not
overrun the others.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

AGE_NS = 100_000_000
_TURN_BITS = 40
_TURNS = (1 << _TURN_BITS) - 1
_KEEP_FLOWS = 4096  # whose last turns are remembered although they may have had it

_I64 = npt.NDArray[np.int64]


def priority_of(key: int) -> int:
    """The priority in a KEY."""
    return key >> _TURN_BITS


def first_key(priority: _I64) -> _I64:
    """Keys before all turns of these priorities: rows that go back to the front."""
    keys: _I64 = priority << _TURN_BITS
    return keys


class FairOrder:
    """The turns of one queue: what was served last, and the last turn each flow was given."""

    def __init__(self) -> None:
        self._served: dict[int, int] = {}  # priority -> turn
        # (priority, flow) -> the last turn it was given, the latest deadline that has one
        self._last: dict[tuple[int, int], tuple[int, int]] = {}
        self._before = 0  # the latest deadline of the last flow, before its new rows

    def give(self, priority: int, flow: int, deadlines: _I64) -> tuple[int, bool]:
        """Turns for more rows of a flow with these deadlines, in the order they came.

        Returns the first KEY, the others follow by one each; and whether no row of the flow has
        a deadline before that of one ahead of it: else its turns must be dealt out anew.
        """
        rising = bool(np.count_nonzero(deadlines[1:] < deadlines[:-1]) == 0)
        latest_ns = deadlines.item(-1) if rising else int(deadlines.max())
        key, in_order = self.give_one(priority, flow, latest_ns, len(deadlines))
        return key, in_order and rising and deadlines.item(0) >= self._before

    def give_one(self, priority: int, flow: int, deadline_ns: int, n: int = 1) -> tuple[int, bool]:
        """The same for one row, or for n of which this is the latest deadline."""
        served = self._served.get(priority, 0)
        last, latest_ns = self._last.get((priority, flow), (0, 0))
        start = (served if served > last else last) + 1
        in_order = deadline_ns >= latest_ns
        self._last[priority, flow] = start + n - 1, deadline_ns if in_order else latest_ns
        self._before = latest_ns
        return start + (priority << _TURN_BITS), in_order

    def served(self, keys: _I64) -> None:
        """These rows, in the order of service, leave to be run: whoever comes from now on has a
        later turn."""
        last = keys.item(-1)
        self._serve(last)
        if keys.item(0) >> _TURN_BITS == last >> _TURN_BITS:
            return
        priorities = keys >> _TURN_BITS
        for at in np.flatnonzero(priorities[1:] != priorities[:-1]).tolist():
            self._serve(keys.item(at))

    def _serve(self, key: int) -> None:
        priority, turn = key >> _TURN_BITS, key & _TURNS
        if turn > self._served.get(priority, 0):
            self._served[priority] = turn

    def waits(self, priority: int, flow: int, last_key: int, latest_ns: int) -> None:
        """What of a flow still waits: its last KEY and latest deadline, both 0 if nothing does.

        After rows left unserved, so that a flow is not charged for turns it never used.
        """
        self._last[priority, flow] = last_key & _TURNS, latest_ns

    def forget(self) -> None:
        """The queue is empty: every flow starts anew."""
        self._served.clear()
        self._last.clear()

    def prune(self, waiting: int) -> None:
        """Drop flows that have had their last turn, once they outnumber the waiting rows."""
        if len(self._last) > _KEEP_FLOWS + 2 * waiting:
            served = self._served
            self._last = {
                flow: last for flow, last in self._last.items() if last[0] > served.get(flow[0], 0)
            }
