"""What a target for the 99th percentile asks for: smaller batches, and early refusals."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from batchpool.core.adaptive import BatchTime
from batchpool.core.limits import NEVER_NS, Limits, Worker
from batchpool.core.queue import I64, Field, least

_WORTH = 0.25  # what the rows of a batch should take at least, of its fixed cost
_SURE_AFTER = 16  # batches
_NONE = np.empty(0, dtype=np.int64)


def cap_of(time: BatchTime | None, limits: Limits) -> int:
    """The most rows of a batch for a worker of these times: two of them, one after the other,
    must keep the target. One of the two may be slow; that both are is too rare to count."""
    if not limits.target_ns or time is None or not time.known:
        return limits.max_batch
    cap = _most_within(limits.within_ns, time, limits)
    return cap if cap == limits.max_batch else max(cap, least_cap(time, limits))


def least_cap(time: BatchTime, limits: Limits) -> int:
    """No smaller batches, whatever the target: they would be nearly all fixed cost.

    With rows that take a quarter of the fixed cost a worker does a fifth of what it can do at
    all, in 1.25 times the time of a lone row. Where even lone rows one after the other do not
    keep the target, smaller batches would lose nearly all of the throughput for nothing. Where
    they do, it is kept, at the expense of what of it is left for the way to the caller.
    """
    enough = limits.max_batch
    if time.row_ns:
        enough = min(enough, max(1, int(_WORTH * time.base_ns / time.row_ns)))
    enough = limits.padded(enough)
    if cycle_ns(1, time, limits) > limits.within_ns:
        return enough
    return min(enough, _most_within(limits.target_ns, time, limits))


def cycle_ns(n: int, time: BatchTime, limits: Limits) -> float:
    """A batch of n rows behind another: the time that 99 of 100 of them keep."""
    n = limits.padded(n)
    return time.mean_ns(n) + time.high_ns(n)


def why_out_of_reach(workers: Sequence[Worker], limits: Limits) -> str:
    """Why not even lone rows keep the target, and what is done instead; "" if they do on some
    worker, or none is known well enough."""
    why = ""
    for worker in workers:
        time = worker.time
        if time is None or time.batches < _SURE_AFTER:
            continue
        if cycle_ns(1, time, limits) <= limits.within_ns:
            return ""
        cap = least_cap(time, limits)
        one, two, done = (
            f"{ns / 1e6:.3g} ms"
            for ns in (
                time.mean_ns(1),
                cycle_ns(1, time, limits),
                cycle_ns(cap, time, limits),
            )
        )
        why = (
            f"a lone row takes {one}, behind another up to {two}, and a part of the target is for"
            f" the way to the caller; batches are of at most {cap} rows, and what would take"
            f" longer than {done} is refused"
        )
    return why


def _most_within(within_ns: float, time: BatchTime, limits: Limits) -> int:
    """The most rows whose cycle is within that; 0 if not even that of one is."""
    most = limits.max_batch
    longest_ns = within_ns / (1 + time.spread)  # on average
    if time.mean_ns(most) <= longest_ns:
        return most
    if limits.sizes:
        return max((n for n in limits.sizes if time.mean_ns(n) <= longest_ns), default=0)
    if time.row_ns == 0:
        return 0
    return max(0, min(most, int((longest_ns - time.base_ns) / time.row_ns)))


def too_late(
    now_ns: int,
    queue: I64,
    live: npt.NDArray[np.bool_] | None,
    workers: Sequence[Worker],
    limits: Limits,
) -> tuple[npt.NDArray[Any], int]:
    """Positions of the live rows that would be answered after the target or their deadline; and
    when to look again, since some of the others would be too if nothing had happened by then.

    The queue is run in thought: batch by batch, each on the worker that is free first, the rows
    that its answer would reach in time, in the order of service. A row that is left out by a
    batch is refused, since the next one is later still, and holds nobody's place. Where not even
    the smallest batches that are worth running keep the target, one behind another, the time of
    the two is what counts, so that an idle pool refuses nobody for the target. A worker of which
    nothing is known is taken for another.

    Nothing changes until the worker of a batch should be free. From then on, as long as it is not
    (or its rows wait for company), the answer is later by as much as the time that goes by.
    """
    lines = _Lines(now_ns, workers, limits)
    rows = np.arange(queue.shape[1]) if live is None else np.flatnonzero(live)
    if not lines.free:
        return _NONE, NEVER_NS
    within_ns = int(max(limits.within_ns, lines.least_cycle_ns))
    due_ns = np.minimum(queue[Field.SUBMIT_NS, rows] + within_ns, queue[Field.DEADLINE_NS, rows])
    refused, again_ns = [], NEVER_NS
    while len(rows):
        answered_ns, size, free_ns = lines.next_batch(len(rows))
        in_time = np.flatnonzero(due_ns >= answered_ns)[:size]
        last = len(rows)
        if len(in_time):
            last = int(in_time[-1]) + 1
            again_ns = min(again_ns, int(free_ns + least(due_ns[in_time]) - answered_ns) + 1)
        left_out = np.ones(last, dtype=bool)
        left_out[in_time] = False
        refused.append(rows[:last][left_out])
        rows, due_ns = rows[last:], due_ns[last:]
    return (np.concatenate(refused) if refused else _NONE), again_ns


class _Lines:
    """The workers as lines to stand in: when each is free, and how long its batches take."""

    def __init__(self, now_ns: int, workers: Sequence[Worker], limits: Limits) -> None:
        known = [w.time for w in workers if w.time is not None and w.time.known]
        self.free: list[tuple[float, int, BatchTime, int]] = []
        self.least_cycle_ns = 0.0
        self._caps: dict[int, int] = {}
        for worker in workers if known else ():
            time = worker.time if worker.time is not None and worker.time.known else known[0]
            self._caps[worker.number] = cap_of(time, limits)
            free_ns = max(now_ns, worker.free_at_ns)
            self.free.append((float(free_ns), worker.number, time, free_ns))
        if known:
            self.least_cycle_ns = min(
                cycle_ns(least_cap(time, limits), time, limits) for time in known
            )
        heapq.heapify(self.free)

    def next_batch(self, waiting: int) -> tuple[float, int, int]:
        """When the next batch of so many waiting rows is answered at the latest, how many it
        takes, and when its worker has run what it has."""
        begins_ns, number, time, free_ns = self.free[0]
        size = min(waiting, self._caps[number])
        heapq.heapreplace(self.free, (begins_ns + time.mean_ns(size), number, time, free_ns))
        return begins_ns + time.high_ns(size), size, free_ns
