"""One round of the batching decision: batches are formed for the workers that may have them.

The rules are told in core/scheduler/decide.py. Rows are positions in the queue, rising. Of few rows
`ListedRound` (core/scheduler/listed_round.py) decides the same by plain numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from batchpool.core.layout.states import DispatchReason
from batchpool.core.scheduler.background import rows_beside
from batchpool.core.scheduler.bucket_turns import BucketTurns
from batchpool.core.scheduler.decision import Dispatch
from batchpool.core.scheduler.depth import ends_soon_at, most_in_flight, queued_from
from batchpool.core.scheduler.estimators import ArrivalEstimator
from batchpool.core.scheduler.joined_buckets import may_join, with_other_buckets
from batchpool.core.scheduler.latency_target import cap_of
from batchpool.core.scheduler.limits import NEVER_NS, Limits
from batchpool.core.scheduler.queue import I64, QueueColumn, all_equal, least
from batchpool.core.scheduler.shares import able, share_of
from batchpool.core.scheduler.waits import wait_of
from batchpool.core.scheduler.worker_view import WorkerView

# The most frequent reasons: looking a member up in its enum is slow.
_FULL, _IDLE = DispatchReason.FULL, DispatchReason.IDLE


class Round:
    """The state of one scheduling round: batches in flight, dispatches made, next wake-up.

    in_flight: batches by the number of every worker that may still get one in this round.
    free_ns: the time at which each worker is expected to have run its batches.
    background: the position of the first background row that is beside others; None for no bound.
    """

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
        self.in_flight: dict[int, int] = {}
        self.free_ns: dict[int, int] = {}
        for worker in workers:
            if worker.closed:
                continue
            number = worker.number
            self.workers[number] = worker
            self.in_flight[number] = worker.in_flight
            self.free_ns[number] = worker.free_at_ns
        self.turns = BucketTurns(queue, self.workers, limits)
        self.dispatch: list[Dispatch] = []
        self.wake_at_ns = NEVER_NS
        self.background: int | None = None
        self._several_buckets = False

    def is_uniform(self) -> bool:
        """True if every worker may run every row, and any rows may share a batch."""
        for worker in self.workers.values():
            if worker.lanes is not None:
                return False
        if not self.limits.bucketed:
            return True
        return all_equal(self.queue[QueueColumn.BUCKET])

    def dispatch_prefixes(self, earliest_ns: int) -> None:
        """Dispatch in the uniform case, where batches are slices from the front of the queue.
        earliest_ns: the earliest deadline in the queue."""
        queue, n, at = self.queue, self.queue.shape[1], 0
        while at < n and self.in_flight:
            number = self._least_loaded()
            most = self._most_rows(at)
            waited_for = None if self.background is None else max(0, self.background - at)
            size = n - at
            cap, full = self._cap(number, most, waited_for)
            reason, until_ns = self._immediate_reason(size, cap, full), self.now_ns
            if reason is None and self.in_flight[number] == 0:  # no partial one for a busy worker
                deadline_ns = earliest_ns if at == 0 else least(queue[QueueColumn.DEADLINE_NS, at:])
                oldest_ns = least(queue[self.limits.waits_since, at:])
                reason, until_ns = self._due(number, size, most, oldest_ns, deadline_ns)
            if reason is None or self.in_flight[number] >= self._in_flight_limit(number, reason):
                self._wake_up_at(number, reason, until_ns)
                del self.in_flight[number]  # a full batch of another worker may be smaller
                continue
            if size > cap:
                size = cap
            if self.limits.spreads:
                size, reason = self._share(number, size, reason, None, n - at)
            self._dispatch(number, slice(at, at + size), size, reason)
            at += size

    def dispatch_any(self, live: npt.NDArray[np.bool_] | None) -> None:
        """Dispatch in the general case: expired rows, workers without every lane, buckets.
        live: True for the rows that may be dispatched; None for all."""
        free = np.ones(self.queue.shape[1], dtype=bool) if live is None else live.copy()
        while self.in_flight:
            if self.limits.row_elements is not None:
                self._several_buckets = not all_equal(self.queue[QueueColumn.BUCKET, free])
            number = self._least_loaded()
            lanes = self.workers[number].lanes
            rows = np.flatnonzero(
                free if lanes is None else free & lanes[self.queue[QueueColumn.LANE]]
            )
            sent = self._dispatch_first_due(number, rows)
            if sent is None:
                # There is nothing for this worker; another one may run other lanes.
                del self.in_flight[number]
            else:
                free[sent] = False

    def _dispatch_first_due(self, number: int, rows: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
        """Dispatch a batch of the first bucket, in the order of service, that is due.

        Returns its rows, or None if no bucket is due. A due batch that waits for an idle worker
        is not overtaken by full batches of other buckets; under a continuous load of those no
        worker would ever be idle.
        """
        first: tuple[npt.NDArray[Any], DispatchReason] | None = None
        waiting = rows
        while len(rows):
            alike = self._of_first_bucket(rows)
            most = self._most_rows(int(rows[0]))
            cap, full = self._cap(number, most, self._waited_for(alike))
            reason, until_ns = self._immediate_reason(len(alike), cap, full), self.now_ns
            if reason is None:
                oldest_ns = least(self.queue[self.limits.waits_since, alike])
                deadline_ns = least(self.queue[QueueColumn.DEADLINE_NS, alike])
                reason, until_ns = self._due(number, len(alike), most, oldest_ns, deadline_ns)
            if reason is not None and self.in_flight[number] < self._in_flight_limit(
                number, reason
            ):
                if first is not None:
                    alike, reason = first
                    most, waited_for = self._most_rows(int(alike[0])), self._waited_for(alike)
                    cap, _ = self._cap(number, most, waited_for)
                alike = alike[:cap]
                if len(alike) < cap and self.background is None:
                    alike = self._joined(number, alike, waiting, cap)
                if self.limits.spreads:
                    size, reason = self._share(number, len(alike), reason, waiting, len(waiting))
                    alike = alike[:size]
                alike, reason = self.turns.next_batch(number, alike, waiting, reason)
                self._dispatch(number, alike, len(alike), reason)
                return alike
            if reason is not None and first is None:
                first = alike, reason
            self._wake_up_at(number, reason, until_ns)
            if len(alike) == len(rows):
                break
            buckets = self.queue[QueueColumn.BUCKET, rows]
            rows = rows[buckets != buckets[0]]
        return None

    def _joined(
        self, number: int, rows: npt.NDArray[Any], waiting: npt.NDArray[Any], cap: int
    ) -> npt.NDArray[Any]:
        """These rows, and those of other buckets that may join them."""
        time, limits = self.workers[number].elements_time, self.limits
        if not may_join(len(rows), len(waiting), limits, time):
            return rows
        buckets = self.queue[QueueColumn.BUCKET].tolist()
        joined = with_other_buckets(rows.tolist(), waiting.tolist(), buckets, cap, limits, time)
        return np.array(joined, dtype=np.int64)

    def _of_first_bucket(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if not self.limits.bucketed:
            return rows
        buckets = self.queue[QueueColumn.BUCKET, rows]
        alike: npt.NDArray[Any] = rows[buckets == buckets[0]]
        return alike

    def _share(
        self,
        number: int,
        size: int,
        reason: DispatchReason,
        rows: npt.NDArray[Any] | list[int] | None,
        n: int,
    ) -> tuple[int, DispatchReason]:
        """The rows of a batch of at most `size`, and its reason, where rows are divided among the
        idle workers. rows: the n that the worker may run; None: every worker may run all."""
        if self.in_flight[number]:
            return size, reason
        idle = [self.workers[each] for each, batches in self.in_flight.items() if not batches]
        lanes = None
        if rows is not None and not all(worker.lanes is None for worker in idle):
            lanes = self.queue[QueueColumn.LANE, rows]
        share = share_of(n, able(idle, lanes), self.workers[number].time)
        return (size, reason) if share >= size else (share, _IDLE if reason is _FULL else reason)

    def _least_loaded(self) -> int:
        if len(self.in_flight) == 1:
            return next(iter(self.in_flight))
        free_ns, least, fewest = self.free_ns, -1, 0
        for number, batches in self.in_flight.items():
            if least < 0 or batches < fewest:
                least, fewest = number, batches
            elif batches == fewest and (free_ns[number], number) < (free_ns[least], least):
                least = number
        return least

    def _in_flight_limit(self, number: int, reason: DispatchReason) -> int:
        """The number of batches that the worker may have in flight, this one included."""
        if reason is _FULL:
            time, free_ns = self.workers[number].time, self.free_ns[number]
            return most_in_flight(self.in_flight[number], time, self.limits, free_ns - self.now_ns)
        return 2 if self._ends_soon_at(number) <= self.now_ns else 1

    def _ends_soon_at(self, number: int) -> int:
        time = self.workers[number].elements_time if self._several_buckets else None
        return ends_soon_at(self.free_ns[number], time, self.limits)

    def _dispatch(
        self, number: int, rows: slice | npt.NDArray[Any], n: int, reason: DispatchReason
    ) -> None:
        self.dispatch.append(Dispatch(number, rows, reason))
        self.in_flight[number] += 1
        time = self.workers[number].time
        if time is not None:
            self.free_ns[number] = max(self.free_ns[number], self.now_ns) + int(time.mean_ns(n))

    def _wake_up_at(self, number: int, reason: DispatchReason | None, until_ns: int) -> None:
        """Schedule a wake-up for rows that wait for others; the end of a batch is an event."""
        batches = self.in_flight[number]
        if reason is None and batches == 0:
            self.wake_at_ns = min(self.wake_at_ns, until_ns)
        elif batches == 1 or reason is _FULL:
            soon_ns = max(self.now_ns if reason else until_ns, self._ends_soon_at(number))
            if reason is _FULL:
                time, free_ns = self.workers[number].time, self.free_ns[number]
                soon_ns = queued_from(free_ns, batches, time, self.limits)
            if soon_ns > self.now_ns:
                self.wake_at_ns = min(self.wake_at_ns, soon_ns)

    def _most_rows(self, at: int) -> int:
        """The most rows of a batch of the bucket of the row at this position."""
        if self.limits.bucket_rows is None:
            return self.limits.max_batch
        return self.limits.most_rows(self.queue.item(QueueColumn.BUCKET, at))

    def _cap(self, number: int, most: int, waited_for: int | None) -> tuple[int, DispatchReason]:
        """(the most rows of a batch for a worker, the reason for which so many leave).
        most: of their bucket. waited_for: those before the background rows, None for no bound."""
        time = self.workers[number].time
        cap = min(most, cap_of(time, self.limits))
        if waited_for is None or (few := rows_beside(waited_for, time, self.limits)) >= cap:
            return cap, _FULL
        return few, _IDLE

    def _waited_for(self, rows: npt.NDArray[Any]) -> int | None:
        return None if self.background is None else int(rows.searchsorted(self.background))

    def _immediate_reason(self, n: int, cap: int, full: DispatchReason) -> DispatchReason | None:
        """The reason to dispatch the first n rows whatever their times are, or None."""
        if n >= cap:
            return full
        return DispatchReason.DRAIN if self.limits.draining else None

    def _due(
        self, number: int, n: int, most: int, oldest_ns: int, deadline_ns: int
    ) -> tuple[DispatchReason | None, int]:
        """(reason to dispatch the first n rows now, or None; end of their wait for others).
        most: the most rows of a batch of their bucket."""
        limits, time, workers = self.limits, self.workers[number].time, len(self.workers)
        is_lone = not (limits.spreads and any(self.in_flight.values()))
        reason, until_ns = wait_of(
            self.now_ns, n, most, oldest_ns, limits, time, self.traffic, workers, is_lone=is_lone
        )
        if time is not None and time.known:
            latest_ns = deadline_ns - int(time.high_ns(limits.padded(n))) - limits.later_ns
            if latest_ns < until_ns:
                reason, until_ns = DispatchReason.DEADLINE, latest_ns
        return (reason if self.now_ns >= until_ns else None), until_ns
