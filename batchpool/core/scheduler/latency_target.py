"""The latency target for the 99th percentile: smaller batches, and early refusal of late rows.

The target bounds batches, waits and the queue. A batch is no larger than the target allows for two
batches one after the other, since a row may come in just after a batch has left. A wait leaves time
for the batch. A row that would be answered after the target, or after its own deadline, is refused
as soon as that is known: when it comes in, or when a batch takes too long. A worker whose batch is
overdue gets no more, and is expected to take as long again.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from batchpool.core.scheduler.estimators import ServiceTime
from batchpool.core.scheduler.limits import NEVER_NS, Limits
from batchpool.core.scheduler.queue import I64, QueueColumn, least
from batchpool.core.scheduler.worker_view import WorkerView

_WORTH = 0.25  # least time of the rows of a batch, as a share of its fixed cost
_SURE_AFTER = 16  # batches of a worker after which its times are trusted
_LOOK_NS = 1_000_000  # interval of checks where the moment of lateness cannot be computed
_NONE = np.empty(0, dtype=np.int64)


def cap_of(time: ServiceTime | None, limits: Limits) -> int:
    """The most rows of a batch for a worker of these times: two in a row must keep the target.

    Two usual batches leave the response its share of the target. One slow batch of the two may
    use that share too, since two slow ones, or a slow response besides, are too rare to count.
    """
    if not limits.target_ns or time is None or not time.known:
        return limits.max_batch
    usual_ns = limits.within_ns / 2
    cap = _most_of(min(usual_ns, limits.target_ns / (1 + time.spread)), time, limits)
    return cap if cap == limits.max_batch else max(cap, least_cap(time, limits))


def least_cap(time: ServiceTime, limits: Limits) -> int:
    """The smallest cap, whatever the target: smaller batches would be nearly all fixed cost.

    With rows that take a quarter of the fixed cost a worker reaches a fifth of its throughput,
    in 1.25 times the time of a single row. Where even single rows one after the other miss the
    target, smaller batches would lose nearly all of the throughput and gain nothing. Where they
    meet it, the target is kept at the expense of the share for the response.
    """
    enough = limits.max_batch
    if time.row_ns:
        enough = min(enough, max(1, int(_WORTH * time.base_ns / time.row_ns)))
    enough = limits.padded(enough)
    if not _single_rows_keep(time, limits):
        return enough
    return min(enough, _most_of(limits.target_ns / (1 + time.spread), time, limits))


def cycle_ns(n: int, time: ServiceTime, limits: Limits) -> float:
    """The 99th percentile of the time of a batch of n rows that is queued behind another."""
    n = limits.padded(n)
    return time.mean_ns(n) + time.high_ns(n)


def _single_rows_keep(time: ServiceTime, limits: Limits) -> bool:
    """True if batches of one row, one after the other, keep the target."""
    mean_ns = time.mean_ns(limits.padded(1))
    return 2 * mean_ns <= limits.within_ns and cycle_ns(1, time, limits) <= limits.target_ns


def allowed_ns(time: ServiceTime, limits: Limits) -> float:
    """The longest predicted latency of a row that is accepted, by 99th percentiles of batches.

    A batch that takes far longer than usual makes its own rows late and those of the batch that
    is queued behind it. So the excess of one in 200 batches must fit into the target besides. A
    row with a prediction of at most two batches is accepted in any case: otherwise nothing would
    be left to run, and most such rows come in when a part of the first batch is over.
    """
    cap = cap_of(time, limits)
    rare_ns = (time.tail - time.spread) * time.mean_ns(limits.padded(cap))
    most_ns = min(limits.within_ns, limits.target_ns - rare_ns)
    return max(most_ns, cycle_ns(cap, time, limits))


def why_out_of_reach(workers: Sequence[WorkerView], limits: Limits) -> str:
    """The reason why not even single rows keep the target, and the limits used instead.

    "" if they keep it on some worker, or the times of no worker are known well enough.
    """
    why = ""
    for worker in workers:
        time = worker.time
        if time is None or time.batches < _SURE_AFTER:
            continue
        if _single_rows_keep(time, limits):
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
    """The most rows with a mean time of at most `longest_ns`; 0 if one row takes longer."""
    most = limits.max_batch
    if time.mean_ns(most) <= longest_ns:
        return most
    if limits.sizes:
        return max((n for n in limits.sizes if time.mean_ns(n) <= longest_ns), default=0)
    if time.row_ns == 0:
        return 0
    return max(0, min(most, int((longest_ns - time.base_ns) / time.row_ns)))


def expected_late(
    now_ns: int,
    queue: I64,
    live: npt.NDArray[np.bool_] | None,
    workers: Sequence[WorkerView],
    limits: Limits,
) -> tuple[npt.NDArray[Any], int]:
    """Find the live rows that would be answered after the target or their deadline.

    Returns their positions, and the time of the next check: some of the other rows would be late
    too if nothing had happened by then.

    The queue is simulated batch by batch, each on the worker that is free first. A batch takes
    the rows, in the order of service, that its end would reach in time. A row that a batch leaves
    out is refused, since the next batch ends later, and takes no place. Two batches one behind the
    other are always accepted, so that an idle pool refuses nothing for the target where not even
    the smallest batches worth running keep it. A worker without known times is given those of
    another.

    The prediction stays valid until the worker of a batch should be free. From then on, while the
    worker is not free (or the rows wait for others), the end moves by the time that passes; with
    an overdue worker by twice that time, since it is expected to take as long again as it has
    taken. With several workers that holds while every batch keeps its worker. From the moment at
    which a batch may have lost it and be late, the check is repeated every `_LOOK_NS`.
    """
    workers_free = _WorkerTimeline(now_ns, workers, limits)
    rows = np.arange(queue.shape[1]) if live is None else np.flatnonzero(live)
    if not workers_free.free:
        return _NONE, NEVER_NS
    allowed_ns = int(workers_free.allowed_ns)
    due_ns = np.minimum(
        queue[QueueColumn.SUBMIT_NS, rows] + allowed_ns,
        queue[QueueColumn.DEADLINE_NS, rows] - limits.later_ns,
    )
    refused, again_ns, moved_ns = [], NEVER_NS, NEVER_NS
    first_ns, fastest = workers_free.soonest()  # their batches may have to run on other workers
    while len(rows):
        answered_ns, size, from_ns, pace = workers_free.next_batch(len(rows))
        in_time = np.flatnonzero(due_ns >= answered_ns)[:size]
        last = len(rows)
        if len(in_time):
            last = int(in_time[-1]) + 1
            left_ns = least(due_ns[in_time]) - answered_ns
            again_ns = min(again_ns, int(from_ns + left_ns / pace) + 1)
            moved_ns = min(moved_ns, int(first_ns + left_ns / fastest) + 1)
        left_out = np.ones(last, dtype=bool)
        left_out[in_time] = False
        refused.append(rows[:last][left_out])
        rows, due_ns = rows[last:], due_ns[last:]
    again_ns = min(again_ns, max(moved_ns, now_ns + _LOOK_NS))
    return (np.concatenate(refused) if refused else _NONE), again_ns


class _WorkerTimeline:
    """The simulated workers: the time at which each is free next, and its batch times.

    free: a heap of (time when free, number, batch times, start of delays, pace of delays); the
    batch that the worker takes next is delayed from the start on by pace x the time that passes.
    """

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
        """(earliest start of delays, largest pace of delays) over all workers."""
        return min(worker[3] for worker in self.free), max(worker[4] for worker in self.free)

    def next_batch(self, waiting: int) -> tuple[float, int, int, int]:
        """Simulate the next batch: (99th percentile of its end, rows, start, pace of delays)."""
        begins_ns, number, time, from_ns, pace = self.free[0]
        size = min(waiting, self._caps[number])
        worker = begins_ns + time.mean_ns(size), number, time, from_ns, pace
        heapq.heapreplace(self.free, worker)
        return begins_ns + time.high_ns(size), size, from_ns, pace
