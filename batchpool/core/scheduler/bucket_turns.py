"""Turns of size buckets: after a batch of one bucket, a short batch of another one goes in between.

The rows of a bucket leave together in the order of service, so a caller's one short row would stand
behind all of his long ones, however many, and each of their batches takes long. So where a worker
has just had a batch of the bucket that is first, and would get the next one of it, rows of another
bucket that wait go before: as many as take a quarter of the time of that batch. Then the first
bucket has its turn again. It loses no more than that, whatever waits, and a row of a bucket that
few rows are in waits for one batch of another bucket, or for as many as such buckets wait before
it.

The times are those of measured batches by their padded elements: where a short batch takes hardly
less than a full one, as it does on most GPUs, nothing goes in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from batchpool.core.layout.states import DispatchReason
from batchpool.core.scheduler.element_budget import RowElements
from batchpool.core.scheduler.estimators import ServiceTime
from batchpool.core.scheduler.limits import Limits
from batchpool.core.scheduler.queue import I64, QueueColumn
from batchpool.core.scheduler.worker_view import WorkerView

_FULL, _IDLE, _DEADLINE = DispatchReason.FULL, DispatchReason.IDLE, DispatchReason.DEADLINE
_SHARE = 0.25  # of the time of the batch that gives way


class BucketTurns:
    """The turns of one scheduling round. queue: its rows. workers: by number."""

    def __init__(self, queue: I64, workers: Mapping[int, WorkerView], limits: Limits) -> None:
        self._queue, self._workers, self._limits = queue, workers, limits
        self._last: dict[int, int] = {}  # buckets by worker, of the batches of this round

    def next_batch(
        self,
        number: int,
        rows: npt.NDArray[Any],
        waiting: npt.NDArray[Any],
        reason: DispatchReason,
    ) -> tuple[npt.NDArray[Any], DispatchReason]:
        """The rows of the worker's next batch and why they leave: these, which would leave for this
        reason, or some of another bucket. waiting: all that the worker may run."""
        bucket = self._queue.item(QueueColumn.BUCKET, rows[0])
        if self._gives_way(number, bucket, len(rows) < len(waiting), reason):
            time = self._workers[number].elements_time
            found = batch_in_between(rows, waiting, self._queue, self._limits, time)
            if found is not None:
                rows, bucket = found, self._queue.item(QueueColumn.BUCKET, found[0])
                reason = self._reason_of(len(rows), bucket)
        self._last[number] = bucket
        return rows, reason

    def next_listed(
        self,
        number: int,
        rows: list[int],
        waiting: list[int],
        buckets: list[int],
        reason: DispatchReason,
    ) -> tuple[list[int], DispatchReason]:
        """`next_batch` for few rows. buckets: of every position."""
        bucket = buckets[rows[0]]
        if self._gives_way(number, bucket, len(rows) < len(waiting), reason):
            time = self._workers[number].elements_time
            priorities = self._queue[QueueColumn.PRIORITY].tolist()
            found = listed_batch_in_between(rows, waiting, buckets, priorities, self._limits, time)
            if found is not None:
                rows, bucket = found, buckets[found[0]]
                reason = self._reason_of(len(rows), bucket)
        self._last[number] = bucket
        return rows, reason

    def _gives_way(self, number: int, bucket: int, leaves: bool, reason: DispatchReason) -> bool:
        """True if another bucket has its turn. leaves: the batch leaves other rows waiting."""
        last = self._last.get(number, self._workers[number].last_bucket)
        return bucket == last and leaves and reason is not _DEADLINE

    def _reason_of(self, n: int, bucket: int) -> DispatchReason:
        return _FULL if n == self._limits.most_rows(bucket) else _IDLE


def listed_batch_in_between(
    rows: list[int],
    waiting: list[int],
    buckets: list[int],
    priorities: list[int],
    limits: Limits,
    time: ServiceTime | None,
) -> list[int] | None:
    """`batch_in_between` for few rows. buckets, priorities: of every position."""
    elements = limits.row_elements
    if elements is None or time is None or not time.row_ns or limits.target_ns:
        return None
    own, priority = buckets[rows[0]], priorities[rows[0]]
    others: dict[int, list[int]] = {}
    for at in waiting:
        if buckets[at] != own and priorities[at] == priority:
            others.setdefault(buckets[at], []).append(at)
    allowed_ns = _SHARE * time.mean_ns(len(rows) * elements.of(own))
    for bucket, theirs in others.items():
        most = _most_in_between(bucket, allowed_ns, elements, limits, time)
        if most >= 1:
            return theirs[:most]
    return None


def _most_in_between(
    bucket: int, allowed_ns: float, elements: RowElements, limits: Limits, time: ServiceTime
) -> int:
    """The most rows of a bucket that take no longer; 0 for none."""
    each_ns = time.row_ns * elements.of(bucket)
    most = min(int((allowed_ns - time.base_ns) / each_ns), limits.most_rows(bucket))
    if limits.sizes:
        return max((size for size in limits.sizes if size <= most), default=0)
    return most


def batch_in_between(
    rows: npt.NDArray[Any],
    waiting: npt.NDArray[Any],
    queue: I64,
    limits: Limits,
    time: ServiceTime | None,
) -> npt.NDArray[Any] | None:
    """The rows of a batch that goes before `rows`, rising, or None.

    rows: positions of a batch of one bucket. waiting: of all that the worker may run. time: of the
    worker's batches by their padded elements; None where these are not measured. Only rows of the
    priority of `rows` go before them.
    """
    elements = limits.row_elements
    if elements is None or time is None or not time.row_ns or limits.target_ns:
        return None
    buckets, priorities = queue[QueueColumn.BUCKET], queue[QueueColumn.PRIORITY]
    first = rows[0]
    others = waiting[
        (buckets[waiting] != buckets[first]) & (priorities[waiting] == priorities[first])
    ]
    allowed_ns = _SHARE * time.mean_ns(len(rows) * elements.of(buckets.item(first)))
    own = buckets[others]
    for bucket in dict.fromkeys(own.tolist()):
        most = _most_in_between(bucket, allowed_ns, elements, limits, time)
        if most >= 1:
            found: npt.NDArray[Any] = others[own == bucket][:most]
            return found
    return None
