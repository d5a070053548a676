"""Which rows ride together and when: a pure decision.

    decide(now, queue, workers, limits, traffic) -> dispatch, expire, refuse, wake_at

The queue is in the order of service (core/scheduler/queue.py); a batch is the first rows in that order
that may share one: of one bucket, whose lanes the worker has mapped. A partial batch goes to
an idle worker only: while a worker is busy, more rows may still join without starting later.
A full batch may also queue behind the one a worker runs (up to `depth` in flight, and AHEAD more
where batches are short), so that the worker never idles between two batches; but not behind
the first one, of which nobody knows how long it takes.

When a partial batch leaves an idle worker no longer waiting:

    fixed     its oldest row has waited max_wait since it was submitted
    adaptive  at once where waiting is not worth it (core/scheduler/estimators.py); else when it stops
              being so, or the oldest row has waited max_wait, in a flood max_wait_peak
    both      a row's deadline leaves just the time to run it, or the pool drains

With a target for the 99th percentile a batch is not larger than what two batch times one after
the other allow, since a row may come in just after one has left; a wait leaves time for the
batch; and a row that, behind what is before it, would be answered after the target or its own
deadline is refused as soon as that is known: when it comes in, or when a batch takes too long.
A worker whose batch is overdue gets no more, and is expected to take as long again.

Invariants, which are the property tests too:

    - never more than max_batch rows in a batch, never two buckets, and never a row twice;
    - nothing for a worker that is closed;
    - a full batch never waits while a worker is free: idle, or with room behind what it runs;
    - nobody waits longer than the policy's limit, counted from submission, while a worker is
      idle;
    - in the order of service among the rows of a bucket that a worker may run;
    - nothing at or past its deadline is dispatched; expiry does not wait for a worker;
    - nothing is refused without a target, nor what is expected to be answered in time;
    - while draining nobody waits for company and nobody is refused;
    - the same input gives the same output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from batchpool.core.layout.states import DispatchReason
from batchpool.core.scheduler.estimators import ArrivalEstimator, ServiceTime
from batchpool.core.scheduler.latency_target import cap_of, too_late
from batchpool.core.scheduler.limits import NEVER_NS, Limits, WorkerView
from batchpool.core.scheduler.queue import I64, QueueColumn, least

__all__ = ["NEVER_NS", "Decision", "Dispatch", "Limits", "WorkerView", "decide"]

AHEAD = 2  # full batches more, where they are short
# A batch that is over sooner than this is over before the batcher has heard of the one before it
# and sent another: two wake-ups and a step.
_SHORT_NS = 1_000_000
_FLOOD = 0.5  # of what the workers can do: above it waits may reach max_wait_peak
_FULL, _IDLE = (
    DispatchReason.FULL,
    DispatchReason.IDLE,
)  # the usual ones: an enum's member is slow to look up


@dataclass(frozen=True)
class Dispatch:
    """Rows (positions in the queue as it was given, rising) for one worker."""

    worker: int
    rows: slice | npt.NDArray[Any]
    reason: DispatchReason


@dataclass(frozen=True)
class Decision:
    """expire: positions of the rows past their deadline; refuse: of those that would be late.
    wake_at_ns: decide again then."""

    dispatch: tuple[Dispatch, ...]
    expire: npt.NDArray[Any]
    refuse: npt.NDArray[Any]
    wake_at_ns: int


_NONE = np.empty(0, dtype=np.int64)


def decide(
    now_ns: int,
    queue: I64,
    workers: Sequence[WorkerView],
    limits: Limits,
    traffic: ArrivalEstimator | None = None,
) -> Decision:
    """Decide for one model. queue: [QUEUE_COLUMNS, n] in the order of service; see core/scheduler/queue.py."""
    n = queue.shape[1]
    if n == 0:
        return Decision((), _NONE, _NONE, NEVER_NS)
    deadlines = queue[QueueColumn.DEADLINE_NS]
    earliest_ns = least(deadlines)
    live = None if earliest_ns > now_ns else deadlines > now_ns
    refuse, again_ns = _NONE, NEVER_NS
    if limits.target_ns and not limits.draining:
        refuse, again_ns = too_late(now_ns, queue, live, workers, limits)
        if len(refuse):
            live = np.ones(n, dtype=bool) if live is None else live
            live[refuse] = False
    shift = _Shift(now_ns, queue, workers, limits, traffic)
    if live is None and shift.takes_all():
        shift.send_prefixes(earliest_ns)
        wake_at_ns = min(earliest_ns, shift.wake_at_ns, again_ns)
        return Decision(tuple(shift.dispatch), _NONE, refuse, wake_at_ns)
    if live is None:
        live = np.ones(n, dtype=bool)
    expire = np.flatnonzero(deadlines <= now_ns)
    shift.send_any(live)
    wake_at_ns = NEVER_NS
    if live.any():
        wake_at_ns = min(int(deadlines[live].min()), shift.wake_at_ns, again_ns)
    return Decision(tuple(shift.dispatch), expire, refuse, wake_at_ns)


class _Shift:
    """One decision in the making: who has how many batches, what was sent, when to look again."""

    def __init__(
        self,
        now_ns: int,
        queue: I64,
        workers: Sequence[WorkerView],
        limits: Limits,
        traffic: ArrivalEstimator | None,
    ) -> None:
        self.now_ns = now_ns
        self.queue = queue
        self.limits = limits
        self.traffic = traffic
        self.workers: dict[int, WorkerView] = {}
        self.load: dict[int, int] = {}
        self.free_ns: dict[int, int] = {}
        for worker in workers:
            if worker.closed:
                continue
            number = worker.number
            self.workers[number] = worker
            self.load[number] = worker.in_flight
            self.free_ns[number] = worker.free_at_ns
        self.dispatch: list[Dispatch] = []
        self.wake_at_ns = NEVER_NS

    def takes_all(self) -> bool:
        """Whether every worker may run every row, and any of them together."""
        for worker in self.workers.values():
            if worker.lanes is not None:
                return False
        if not self.limits.bucketed:
            return True
        buckets = self.queue[QueueColumn.BUCKET]
        return bool((buckets == buckets[0]).all())

    def send_prefixes(self, earliest_ns: int) -> None:
        """The common case: batches are the front of the queue, slice by slice."""
        queue = self.queue
        n, at = queue.shape[1], 0
        while at < n and self.load:
            number = self._least_loaded()
            size, cap = n - at, self._cap(number)
            reason, until_ns = self._at_once(size, cap), self.now_ns
            if reason is None and self.load[number] == 0:  # else it would have no room for it
                deadline_ns = earliest_ns if at == 0 else least(queue[QueueColumn.DEADLINE_NS, at:])
                oldest_ns = least(queue[QueueColumn.SUBMIT_NS, at:])
                reason, until_ns = self._due(number, size, oldest_ns, deadline_ns)
            if reason is None or self.load[number] >= self._room(number, reason):
                self._look_again(number, reason, until_ns)
                del self.load[number]  # another one may have a smaller full batch
                continue
            if size > cap:
                size = cap
            self._send(number, slice(at, at + size), size, reason)
            at += size

    def send_any(self, live: npt.NDArray[np.bool_]) -> None:
        """The general case: rows that may not leave, workers without every lane, buckets."""
        free = live.copy()
        while self.load:
            number = self._least_loaded()
            may = self.workers[number].lanes
            rows = np.flatnonzero(free if may is None else free & may[self.queue[QueueColumn.LANE]])
            sent = self._send_first_due(number, rows)
            if sent is None:
                # Nothing for this worker; another one may run other lanes.
                del self.load[number]
            else:
                free[sent] = False

    def _send_first_due(self, number: int, rows: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
        """A batch of the first bucket, in the order of service, that is due; its rows.

        One that is due and waits for an idle worker only is not passed by full ones of other
        buckets: in a flood of those no worker would ever be idle.
        """
        first: tuple[npt.NDArray[Any], DispatchReason] | None = None
        while len(rows):
            alike = self._of_first_bucket(rows)
            cap = self._cap(number)
            reason, until_ns = self._at_once(len(alike), cap), self.now_ns
            if reason is None:
                oldest_ns = least(self.queue[QueueColumn.SUBMIT_NS, alike])
                deadline_ns = least(self.queue[QueueColumn.DEADLINE_NS, alike])
                reason, until_ns = self._due(number, len(alike), oldest_ns, deadline_ns)
            if reason is not None and self.load[number] < self._room(number, reason):
                if first is not None:
                    alike, reason = first
                alike = alike[:cap]
                self._send(number, alike, len(alike), reason)
                return alike
            if reason is not None and first is None:
                first = alike, reason
            self._look_again(number, reason, until_ns)
            if len(alike) == len(rows):
                break
            buckets = self.queue[QueueColumn.BUCKET, rows]
            rows = rows[buckets != buckets[0]]
        return None

    def _of_first_bucket(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if not self.limits.bucketed:
            return rows
        buckets = self.queue[QueueColumn.BUCKET, rows]
        alike: npt.NDArray[Any] = rows[buckets == buckets[0]]
        return alike

    def _least_loaded(self) -> int:
        if len(self.load) == 1:
            return next(iter(self.load))
        return min(self.load, key=lambda number: (self.load[number], self.free_ns[number], number))

    def _room(self, number: int, reason: DispatchReason) -> int:
        """How many batches the worker may have in flight with this one."""
        if reason is not _FULL:
            return 1
        depth, time = self.limits.depth, self.workers[number].time
        if time is not None and not time.known:
            return 1  # what it has may take for ever
        if self.load[number] < depth or time is None:
            return depth
        return depth + (AHEAD if time.mean_ns(self.limits.max_batch) < _SHORT_NS else 0)

    def _send(
        self, number: int, rows: slice | npt.NDArray[Any], n: int, reason: DispatchReason
    ) -> None:
        self.dispatch.append(Dispatch(number, rows, reason))
        self.load[number] += 1
        time = self.workers[number].time
        if time is not None and len(self.workers) > 1:
            self.free_ns[number] = max(self.free_ns[number], self.now_ns) + int(time.mean_ns(n))

    def _look_again(self, number: int, reason: DispatchReason | None, until_ns: int) -> None:
        """Rows wait for company: until then. Rows that wait for a worker: it will ring."""
        if reason is None and self.load[number] == 0:
            self.wake_at_ns = min(self.wake_at_ns, until_ns)

    def _cap(self, number: int) -> int:
        return cap_of(self.workers[number].time, self.limits)

    def _at_once(self, n: int, cap: int) -> DispatchReason | None:
        """Why a batch of the n rows at the front may leave whatever their times are, if so."""
        if n >= cap:
            return _FULL
        return DispatchReason.DRAIN if self.limits.draining else None

    def _due(
        self, number: int, n: int, oldest_ns: int, deadline_ns: int
    ) -> tuple[DispatchReason | None, int]:
        """Why a batch of the n rows at the front may leave now; else None and until when it
        waits for company."""
        limits, time = self.limits, self.workers[number].time
        reason, until_ns = self._company(number, n, oldest_ns)
        if time is not None and time.known:
            latest_ns = deadline_ns - int(time.high_ns(limits.padded(n)))
            if latest_ns < until_ns:
                reason, until_ns = DispatchReason.DEADLINE, latest_ns
        return (reason if self.now_ns >= until_ns else None), until_ns

    def _company(self, number: int, n: int, oldest_ns: int) -> tuple[DispatchReason, int]:
        """Until when the policy lets n rows wait for others, and why they leave then."""
        limits, traffic, time = self.limits, self.traffic, self.workers[number].time
        if not limits.adaptive:
            reason = DispatchReason.WAIT if limits.max_wait_ns else DispatchReason.IDLE
            return reason, oldest_ns + limits.max_wait_ns
        if traffic is None or time is None or not time.known:
            return _IDLE, oldest_ns
        worth_ns = traffic.worth_until_ns(n, time, len(self.workers), limits.max_batch)
        if worth_ns <= self.now_ns:
            return _IDLE, oldest_ns
        most_ns = float(limits.max_wait_ns)
        if self._is_flood(time, traffic):
            most_ns = max(most_ns, limits.max_wait_peak_ns)
        if limits.target_ns:
            most_ns = max(0.0, min(most_ns, limits.within_ns - time.high_ns(n + int(traffic.rows))))
        wait_ns = oldest_ns + int(most_ns)
        return (
            (DispatchReason.WAIT, wait_ns)
            if wait_ns <= worth_ns
            else (DispatchReason.IDLE, worth_ns)
        )

    def _is_flood(self, time: ServiceTime, traffic: ArrivalEstimator) -> bool:
        most = self.limits.max_batch
        capacity_per_s = len(self.workers) * most / max(1e-9, time.mean_ns(most) / 1e9)
        return traffic.rows_per_s > _FLOOD * capacity_per_s
