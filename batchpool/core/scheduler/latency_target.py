"""What a target for the 99th percentile asks for: smaller batches, and early refusals."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from batchpool.core.scheduler.estimators import ServiceTime
from batchpool.core.scheduler.limits import NEVER_NS, Limits, WorkerView
from batchpool.core.scheduler.queue import I64, QueueColumn, least

_WORTH = 0.25  # what the rows of a batch should take at least, of its fixed cost
_SURE_AFTER = 16  # batches
_LOOK_NS = 1_000_000  # how often to look at what cannot be foreseen to the moment
_NONE = np.empty(0, dtype=np.int64)


def cap_of(time: ServiceTime | None, limits: Limits) -> int:
    """The most rows of a batch for a worker of these times: two of them, one after the other,
    must keep the target. Two usual ones leave the way to the caller its part of it; a slow one
    among the two may use that too, since a slow way then, or two slow ones, are too rare to
    count."""
    if not limits.target_ns or time is None or not time.known:
        return limits.max_batch
    usual_ns = limits.within_ns / 2
    cap = _most_of(min(usual_ns, limits.target_ns / (1 + time.spread)), time, limits)
    return cap if cap == limits.max_batch else max(cap, least_cap(time, limits))


def least_cap(time: ServiceTime, limits: Limits) -> int:
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
    if not _keeps_alone(time, limits):
        return enough
    return min(enough, _most_of(limits.target_ns / (1 + time.spread), time, limits))


def cycle_ns(n: int, time: ServiceTime, limits: Limits) -> float:
    """A batch of n rows behind another: the time that 99 of 100 of them keep."""
    n = limits.padded(n)
    return time.mean_ns(n) + time.high_ns(n)


def _keeps_alone(time: ServiceTime, limits: Limits) -> bool:
    """Whether lone rows, one behind another, keep the target."""
    mean_ns = time.mean_ns(limits.padded(1))
    return 2 * mean_ns <= limits.within_ns and cycle_ns(1, time, limits) <= limits.target_ns


def allowed_ns(time: ServiceTime, limits: Limits) -> float:
    """How long a row may be foreseen to take, by the 99th percentile of its own batch's times.

    Late are, for every batch that takes far longer than usual, its own rows and those of the batch
    that stands behind it already. So what one in 200 batches takes longer must fit into the
    target besides. A row that is foreseen to take no more than two batches is taken in any case:
    nothing would be left to run, and most such rows come when some of the first has gone by.
    """
    cap = cap_of(time, limits)
    rare_ns = (time.tail - time.spread) * time.mean_ns(limits.padded(cap))
    most_ns = min(limits.within_ns, limits.target_ns - rare_ns)
    return max(most_ns, cycle_ns(cap, time, limits))


def why_out_of_reach(workers: Sequence[WorkerView], limits: Limits) -> str:
    """Why not even lone rows keep the target, and what is done instead; "" if they do on some
    worker, or none is known well enough."""
    why = ""
    for worker in workers:
        time = worker.time
        if time is None or time.batches < _SURE_AFTER:
            continue
        if _keeps_alone(time, limits):
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


def _most_of(longest_ns: float, time: ServiceTime, limits: Limits) -> int:
    """The most rows that take no longer than that on average; 0 if not even one does."""
    most = limits.max_batch
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
    workers: Sequence[WorkerView],
    limits: Limits,
) -> tuple[npt.NDArray[Any], int]:
    """Positions of the live rows that would be answered after the target or their deadline; and
    when to look again, since some of the others would be too if nothing had happened by then.

    The queue is run in thought: batch by batch, each on the worker that is free first, the rows
    that its answer would reach in time, in the order of service. A row that is left out by a
    batch is refused, since the next one is later still, and holds nobody's place. Two batches one
    behind the other may always be stood in for, so that where not even the smallest that are worth
    running keep the target, an idle pool refuses nobody for it. A worker of which nothing is known
    is taken for another.

    Nothing changes until the worker of a batch should be free. From then on, as long as it is not
    (or its rows wait for company), the answer is later by as much as the time that goes by; with a
    worker that is overdue, by twice as much from now on, since it is expected to take as long
    again as it has taken. With several workers that holds while every batch keeps its worker. From
    the moment at which one may have lost it and be late, the look is taken again every ms.
    """
    lines = _Lines(now_ns, workers, limits)
    rows = np.arange(queue.shape[1]) if live is None else np.flatnonzero(live)
    if not lines.free:
        return _NONE, NEVER_NS
    allowed_ns = int(lines.allowed_ns)
    due_ns = np.minimum(
        queue[QueueColumn.SUBMIT_NS, rows] + allowed_ns, queue[QueueColumn.DEADLINE_NS, rows]
    )
    refused, again_ns, shuffled_ns = [], NEVER_NS, NEVER_NS
    first_ns, fastest = lines.soonest()  # whose batches others may have to take
    while len(rows):
        answered_ns, size, from_ns, pace = lines.next_batch(len(rows))
        in_time = np.flatnonzero(due_ns >= answered_ns)[:size]
        last = len(rows)
        if len(in_time):
            last = int(in_time[-1]) + 1
            left_ns = least(due_ns[in_time]) - answered_ns
            again_ns = min(again_ns, int(from_ns + left_ns / pace) + 1)
            shuffled_ns = min(shuffled_ns, int(first_ns + left_ns / fastest) + 1)
        left_out = np.ones(last, dtype=bool)
        left_out[in_time] = False
        refused.append(rows[:last][left_out])
        rows, due_ns = rows[last:], due_ns[last:]
    again_ns = min(again_ns, max(shuffled_ns, now_ns + _LOOK_NS))
    return (np.concatenate(refused) if refused else _NONE), again_ns


class _Lines:
    """The workers as lines to stand in: when each is free, and how long its batches take."""

    def __init__(self, now_ns: int, workers: Sequence[WorkerView], limits: Limits) -> None:
        known = [w.time for w in workers if w.time is not None and w.time.known]
        self.free: list[tuple[float, int, ServiceTime, int, int]] = []
        allowed = [allowed_ns(time, limits) for time in known]
        kept = [ns for ns in allowed if ns <= limits.target_ns]
        self.allowed_ns = max(kept) if kept else min(allowed, default=0.0)
        self._caps: dict[int, int] = {}
        for worker in workers if known else ():
            time = worker.time if worker.time is not None and worker.time.known else known[0]
            self._caps[worker.number] = cap_of(time, limits)
            begins_ns = from_ns = max(now_ns, worker.free_at_ns)
            pace = 1
            if worker.overdue_since_ns:
                begins_ns = max(begins_ns, 2 * now_ns - worker.overdue_since_ns)
                from_ns, pace = now_ns, 2
            self.free.append((float(begins_ns), worker.number, time, from_ns, pace))
        heapq.heapify(self.free)

    def soonest(self) -> tuple[int, int]:
        """From when on a batch may be later than now foreseen, and by how many times the time that
        goes by at most."""
        return min(line[3] for line in self.free), max(line[4] for line in self.free)

    def next_batch(self, waiting: int) -> tuple[float, int, int, int]:
        """When the next batch of so many waiting rows is answered at the latest, how many it
        takes; and from when on that is later by how many times the time that goes by."""
        begins_ns, number, time, from_ns, pace = self.free[0]
        size = min(waiting, self._caps[number])
        line = begins_ns + time.mean_ns(size), number, time, from_ns, pace
        heapq.heapreplace(self.free, line)
        return begins_ns + time.high_ns(size), size, from_ns, pace
