"""A round of the batching decision for few rows, by plain numbers instead of arrays.

It decides as `Round` (core/scheduler/scheduling_round.py) does. Where few rows wait, most of a
round's time would go into calls of arrays: each takes as long as a loop over a dozen rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from batchpool.core.layout.states import DispatchReason
from batchpool.core.scheduler.estimators import ArrivalEstimator
from batchpool.core.scheduler.joined_buckets import with_other_buckets
from batchpool.core.scheduler.limits import Limits
from batchpool.core.scheduler.queue import I64, QueueColumn
from batchpool.core.scheduler.scheduling_round import Round
from batchpool.core.scheduler.worker_view import WorkerView

_TO_COME = slice(0, 0)  # rows of a dispatch that are set when all dispatches of the round are known


class ListedRound(Round):
    """The state of one scheduling round of few rows."""

    def __init__(
        self,
        now_ns: int,
        queue: I64,
        workers: Sequence[WorkerView],
        limits: Limits,
        traffic: ArrivalEstimator | None,
    ) -> None:
        super().__init__(now_ns, queue, workers, limits, traffic)
        self._buckets: list[int] = []
        self._lanes: list[int] = []
        self._since_ns: list[int] = []
        self._deadlines_ns: list[int] = []
        self._sent: list[list[int]] = []  # the rows of each dispatch

    def dispatch_any(self, live: npt.NDArray[np.bool_] | None) -> None:
        """Dispatch in the general case. live: True for the rows that may be dispatched; None for
        all."""
        queue = self.queue
        self._buckets = queue[QueueColumn.BUCKET].tolist()
        self._since_ns = queue[self.limits.waits_since].tolist()
        self._deadlines_ns = queue[QueueColumn.DEADLINE_NS].tolist()
        free: list[int] = (
            list(range(len(self._buckets))) if live is None else live.nonzero()[0].tolist()
        )
        while self.in_flight:
            if self.limits.row_elements is not None:
                self._several_buckets = len({self._buckets[at] for at in free}) > 1
            number = self._least_loaded()
            mask = self.workers[number].lanes
            sent = self._first_due(number, free if mask is None else self._in_lanes(free, mask))
            if not sent:
                # There is nothing for this worker; another one may run other lanes.
                del self.in_flight[number]
            else:
                gone = {*sent}
                free = [at for at in free if at not in gone]
        self._set_rows(may_be_front=live is None)

    def _set_rows(self, *, may_be_front: bool) -> None:
        """Set the rows of all dispatches: as slices where they are the front of the queue, one
        after the other, and no row ends."""
        at = 0
        for rows in self._sent:
            if rows[0] != at or rows[-1] != at + len(rows) - 1:
                may_be_front = False
            at += len(rows)
        at = 0
        for dispatch, rows in zip(self.dispatch, self._sent, strict=True):
            if may_be_front:
                dispatch.rows = slice(at, at + len(rows))
                at += len(rows)
            else:
                dispatch.rows = np.array(rows, dtype=np.int64)

    def _in_lanes(self, rows: list[int], mask: npt.NDArray[np.bool_]) -> list[int]:
        if not self._lanes:
            self._lanes = self.queue[QueueColumn.LANE].tolist()
        return [at for at in rows if mask[self._lanes[at]]]

    def _first_due(self, number: int, rows: list[int]) -> list[int]:
        """Dispatch a batch of the first bucket, in the order of service, that is due.

        Returns its rows; none if no bucket is due. See `Round`.
        """
        first: tuple[list[int], DispatchReason] | None = None
        waiting, buckets = rows, self._buckets
        while rows:
            alike = self._alike(rows)
            most = self._most_rows(rows[0])
            cap, full = self._cap(number, most, self._waited_for_listed(alike))
            reason, until_ns = self._immediate_reason(len(alike), cap, full), self.now_ns
            if reason is None:
                oldest_ns = min([self._since_ns[at] for at in alike])
                deadline_ns = min([self._deadlines_ns[at] for at in alike])
                reason, until_ns = self._due(number, len(alike), most, oldest_ns, deadline_ns)
            if reason is not None and self.in_flight[number] < self._in_flight_limit(
                number, reason
            ):
                if first is not None:
                    alike, reason = first
                    most = self._most_rows(alike[0])
                    cap, _ = self._cap(number, most, self._waited_for_listed(alike))
                alike = alike[:cap]
                if len(alike) < cap and self.background is None:
                    time = self.workers[number].elements_time
                    alike = with_other_buckets(alike, waiting, buckets, cap, self.limits, time)
                if self.limits.spreads:
                    size, reason = self._share(number, len(alike), reason, waiting, len(waiting))
                    alike = alike[:size]
                alike, reason = self.turns.next_listed(number, alike, waiting, buckets, reason)
                self._dispatch(number, _TO_COME, len(alike), reason)
                self._sent.append(alike)
                return alike
            if reason is not None and first is None:
                first = alike, reason
            self._wake_up_at(number, reason, until_ns)
            if len(alike) == len(rows):
                break
            own = buckets[rows[0]]
            rows = [at for at in rows if buckets[at] != own]
        return []

    def _alike(self, rows: list[int]) -> list[int]:
        """The rows of the first row's bucket."""
        if not self.limits.bucketed:
            return rows
        buckets = self._buckets
        own = buckets[rows[0]]
        return [at for at in rows if buckets[at] == own]

    def _waited_for_listed(self, rows: list[int]) -> int | None:
        return None if self.background is None else bisect_left(rows, self.background)
