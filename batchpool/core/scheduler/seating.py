"""Which queued rows of a generator join which worker now. A pure function.

    seat(now, queue, workers, settled) -> dispatch, expire, refuse, wake_at

A worker of a generator runs many sequences at once, each of which is a row, and a row may join at
every step. So a row does not wait for others: it is given to a worker as soon as one has a place
for it. A place is one of the worker's `sequences`, and as many of its `kv_tokens` as the row may
come to need: its prompt and all tokens that it may get. All of them are reserved when the row
joins, so that no sequence ever has to stop for want of memory.

The queue is in the order of service (core/scheduler/queue.py). Each row in turn goes to the worker
with the fewest sequences among those that have a place for it. A row that finds a free sequence
but not the tokens holds one worker: the one with the most unreserved tokens among those that could
ever run it. That worker gets no later row until the held row has joined. So a long row waits, at
most, until the sequences that ran when it came are over; each row that waits in this way takes
one worker from those behind it, and the rows behind go on with the others.

A row whose reservation is more than every worker can ever hold is refused.

Invariants, which are also the property tests:

    - a worker never has more sequences, or more reserved tokens, than it said;
    - nothing is sent to a worker that is closed or has not mapped the row's lane;
    - a row at or past its deadline does not join, and expires without waiting for a worker;
    - no row is left that a worker has a place for, but for the workers that earlier rows hold;
    - of rows of one lane and one reservation none overtakes another;
    - a row that could run somewhere is not refused;
    - the same input gives the same output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from batchpool.core.layout.states import DispatchReason
from batchpool.core.scheduler.decision import Decision, Dispatch
from batchpool.core.scheduler.limits import NEVER_NS
from batchpool.core.scheduler.queue import I64, QueueColumn, least

_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class SequenceWorker:
    """A worker of a generator, as the decision needs it.

    running: the sequences that it has, of at most `sequences`.  reserved: the tokens that these may
    have, of at most `kv_tokens`; 0 for any number.  lanes: a mask by lane number of those that it
    may run; None for all.  closed: no other sequence may join it for now.
    """

    number: int
    running: int
    sequences: int
    reserved: int = 0
    kv_tokens: int = 0
    lanes: npt.NDArray[np.bool_] | None = None
    closed: bool = False

    def may_ever_run(self, tokens: int) -> bool:
        """True if a row that reserves so many tokens fits while the worker has no other."""
        return self.kv_tokens == 0 or tokens <= self.kv_tokens


def seat(
    now_ns: int, queue: I64, workers: Sequence[SequenceWorker], settled: bool = True
) -> Decision:
    """Decide for one generator. Each position in a `Dispatch` joins as a sequence of its own.

    queue: [QUEUE_COLUMNS, n] in the order of service, BUCKET being the tokens that a row reserves;
    it is not changed.  workers: those that are ready and active.  settled: these are all that there
    will be; otherwise nothing is refused, since one that still loads may hold more.
    """
    if queue.shape[1] == 0:
        return Decision((), _NONE, _NONE, NEVER_NS)
    deadlines = queue[QueueColumn.DEADLINE_NS]
    earliest_ns = least(deadlines)
    expire, refuse = _NONE, _NONE
    left = None if earliest_ns > now_ns else deadlines > now_ns
    if left is not None:
        expire = np.flatnonzero(~left)
    most = _most_tokens(workers) if settled else 0
    if most:
        too_large = queue[QueueColumn.BUCKET] > most
        if too_large.any():
            left = ~too_large if left is None else left & ~too_large
            refuse = np.flatnonzero(too_large & (deadlines > now_ns))
    taken = _Places(workers).give(queue, None if left is None else np.flatnonzero(left))
    if left is not None:
        earliest_ns = least(deadlines[left]) if left.any() else NEVER_NS
    dispatch = tuple(
        Dispatch(number, np.array(rows, dtype=np.int64), DispatchReason.IDLE)
        for number, rows in taken.items()
    )
    return Decision(dispatch, expire, refuse, earliest_ns)


def _most_tokens(workers: Sequence[SequenceWorker]) -> int:
    """The most tokens that a row may reserve; 0 for any number, or where there is no worker."""
    if not all(worker.kv_tokens for worker in workers):
        return 0
    return max((worker.kv_tokens for worker in workers), default=0)


class _Places:
    """The places of the workers in one decision. free, unreserved: the sequences and tokens that
    are left, by worker."""

    def __init__(self, workers: Sequence[SequenceWorker]) -> None:
        self._workers = {worker.number: worker for worker in workers if not worker.closed}
        self._free = {n: w.sequences - w.running for n, w in self._workers.items()}
        self._unreserved = {
            n: (w.kv_tokens or NEVER_NS) - w.reserved for n, w in self._workers.items()
        }

    def give(self, queue: I64, rows: npt.NDArray[Any] | None) -> dict[int, list[int]]:
        """Give places to these rows, all for None, in turn; returns the rows by worker."""
        taken: dict[int, list[int]] = {}
        lanes, needs = queue[QueueColumn.LANE], queue[QueueColumn.BUCKET]
        for at in range(queue.shape[1]) if rows is None else rows.tolist():
            if not any(free > 0 for free in self._free.values()):
                break
            number = self._place(lanes.item(at), needs.item(at))
            if number is not None:
                self._free[number] -= 1
                self._unreserved[number] -= needs.item(at)
                taken.setdefault(number, []).append(at)
        return taken

    def _place(self, lane: int, tokens: int) -> int | None:
        """The worker for a row. None if it waits; it may hold one from then on."""
        able = [
            number
            for number, worker in self._workers.items()
            if number in self._free
            and (worker.lanes is None or worker.lanes[lane])
            and worker.may_ever_run(tokens)
        ]
        fitting = [n for n in able if self._free[n] > 0 and self._unreserved[n] >= tokens]
        if fitting:
            return min(fitting, key=lambda n: (self._sequences_of(n), -self._unreserved[n], n))
        if able:
            del self._free[max(able, key=lambda n: (self._unreserved[n], -n))]
        return None

    def _sequences_of(self, number: int) -> int:
        return self._workers[number].sequences - self._free[number]
