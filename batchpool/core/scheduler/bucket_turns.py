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
from batchpool.core.scheduler.estimators import ServiceTime
from batchpool.core.scheduler.limits import Limits, WorkerView
from batchpool.core.scheduler.queue import I64, QueueColumn

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
        worker, bucket = self._workers[number], self._queue.item(QueueColumn.BUCKET, rows[0])
        if (
            bucket == self._last.get(number, worker.last_bucket)
            and len(rows) < len(waiting)
            and reason is not DispatchReason.DEADLINE
        ):
            time = worker.elements_time
            found = batch_in_between(rows, waiting, self._queue, self._limits, time)
            if found is not None:
                rows, bucket = found, self._queue.item(QueueColumn.BUCKET, found[0])
                is_full = len(rows) == self._limits.most_rows(bucket)
                reason = DispatchReason.FULL if is_full else DispatchReason.IDLE
        self._last[number] = bucket
        return rows, reason


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
        each_ns = time.row_ns * elements.of(bucket)
        most = min(int((allowed_ns - time.base_ns) / each_ns), limits.most_rows(bucket))
        if limits.sizes:
            most = max((size for size in limits.sizes if size <= most), default=0)
        if most >= 1:
            found: npt.NDArray[Any] = others[own == bucket][:most]
            return found
    return None
