"""What a target for the 99th percentile asks for: smaller batches, and early refusals."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from batchpool.core.adaptive import BatchTime
from batchpool.core.limits import Limits, Worker
from batchpool.core.queue import I64, Field

_NONE = np.empty(0, dtype=np.int64)


def cap_of(time: BatchTime | None, limits: Limits) -> int:
    """The most rows of a batch for a worker of these times: two of them, one after the other,
    must keep the target. One of the two may be slow; that both are is too rare to count."""
    most = limits.max_batch
    if not limits.target_ns or time is None or not time.known:
        return most
    longest_ns = limits.within_ns / (1 + time.spread)  # on average
    if time.mean_ns(most) <= longest_ns:
        return most
    if limits.sizes:
        fit = [size for size in limits.sizes if time.mean_ns(size) <= longest_ns]
        return fit[-1] if fit else limits.sizes[0]
    if time.row_ns == 0:
        return most  # smaller ones would not be faster
    return max(1, min(most, int((longest_ns - time.base_ns) / time.row_ns)))


def too_late(
    now_ns: int,
    queue: I64,
    live: npt.NDArray[np.bool_] | None,
    workers: Sequence[Worker],
    limits: Limits,
) -> npt.NDArray[Any]:
    """Positions of the live rows that would be answered after the target or their deadline.

    The queue is run in thought: batch by batch, each on the worker that is free first, the rows
    that its answer would reach in time, in the order of service. A row that is left out by a
    batch is refused, since the next one is later still, and holds nobody's place. Where not even
    a batch behind another keeps the target, the time of the two is what counts, so that an idle
    pool refuses nobody for the target. A worker of which nothing is known is taken for another.
    """
    lines = _Lines(now_ns, workers, limits)
    rows = np.arange(queue.shape[1]) if live is None else np.flatnonzero(live)
    if not lines.free:
        return _NONE
    within_ns = int(max(limits.within_ns, lines.least_cycle_ns))
    due_ns = np.minimum(queue[Field.SUBMIT_NS, rows] + within_ns, queue[Field.DEADLINE_NS, rows])
    refused = []
    while len(rows):
        answered_ns, size = lines.next_batch(len(rows))
        in_time = np.flatnonzero(due_ns >= answered_ns)[:size]
        last = int(in_time[-1]) + 1 if len(in_time) else len(rows)
        left_out = np.ones(last, dtype=bool)
        left_out[in_time] = False
        refused.append(rows[:last][left_out])
        rows, due_ns = rows[last:], due_ns[last:]
    return np.concatenate(refused) if refused else _NONE


class _Lines:
    """The workers as lines to stand in: when each is free, and how long its batches take."""

    def __init__(self, now_ns: int, workers: Sequence[Worker], limits: Limits) -> None:
        known = [w.time for w in workers if w.time is not None and w.time.known]
        self._limits = limits
        self.free: list[tuple[float, int, BatchTime]] = []
        self.least_cycle_ns = 0.0
        for worker in workers if known else ():
            time = worker.time if worker.time is not None and worker.time.known else known[0]
            self.free.append((float(max(now_ns, worker.free_at_ns)), worker.number, time))
        if known:
            one = limits.padded(1)
            self.least_cycle_ns = min(time.mean_ns(one) + time.high_ns(one) for time in known)
        heapq.heapify(self.free)

    def next_batch(self, waiting: int) -> tuple[float, int]:
        """When the next batch of so many waiting rows is answered at the latest, and how many
        it takes."""
        free_ns, number, time = self.free[0]
        size = min(waiting, cap_of(time, self._limits))
        heapq.heapreplace(self.free, (free_ns + time.mean_ns(size), number, time))
        return free_ns + time.high_ns(size), size
