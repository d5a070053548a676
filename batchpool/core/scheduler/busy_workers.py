"""When no row can leave, since all workers are busy: told in a fraction of a decision's time.

A stage is decided about whenever anything changes in it, as each time that rows come over from the
stage before. Mostly its workers are busy then, and what waits does not fill a batch that may be
queued behind theirs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from batchpool.core.scheduler.depth import ends_soon_at, queued_from
from batchpool.core.scheduler.limits import NEVER_NS, Limits
from batchpool.core.scheduler.queue import I64, QueueColumn
from batchpool.core.scheduler.worker_view import WorkerView


def all_busy_until(now_ns: int, queue: I64, workers: Sequence[WorkerView], limits: Limits) -> int:
    """When a batch may be queued behind a worker's batch; 0 where a row may leave now.

    NEVER_NS: not before a batch ends or more rows come. queue: at least one row, none of it beside
    background rows; no row's deadline has passed.
    """
    room_from_ns, until_ns, all_lanes = NEVER_NS, NEVER_NS, True
    for worker in workers:
        if worker.closed:
            continue
        in_flight = worker.in_flight
        if in_flight == 0:
            return 0
        all_lanes = all_lanes and worker.lanes is None
        queued_ns = queued_from(worker.free_at_ns, in_flight, worker.time, limits)
        room_from_ns = min(room_from_ns, queued_ns)
        if in_flight == 1 and limits.row_elements is not None:
            soon_ns = ends_soon_at(worker.free_at_ns, worker.elements_time, limits)
            if soon_ns <= now_ns:
                return 0
            until_ns = min(until_ns, soon_ns)
    if room_from_ns == NEVER_NS or not _fills_a_batch(queue, limits):
        return until_ns
    if room_from_ns <= now_ns or not all_lanes:  # rows may fill a batch that none of them may run
        return 0
    return min(until_ns, room_from_ns)


def _fills_a_batch(queue: I64, limits: Limits) -> bool:
    """True if the rows of any bucket fill a batch."""
    n = queue.shape[1]
    if not limits.bucketed:
        return bool(n >= limits.max_batch)
    if limits.bucket_rows is None and n < limits.max_batch:
        return False
    buckets, counts = np.unique(queue[QueueColumn.BUCKET], return_counts=True)
    for bucket, count in zip(buckets.tolist(), counts.tolist(), strict=True):
        if count >= limits.most_rows(bucket):
            return True
    return False
