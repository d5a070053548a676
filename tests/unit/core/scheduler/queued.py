"""Rows for the tests of the queue and of what is decided over it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from batchpool.core.scheduler.queue import I64, QUEUE_COLUMNS, Queue, QueueColumn

MS = 1_000_000
NEVER = 2**63 - 1
Words = int | Sequence[int] | I64


def rows_of(
    n: int,
    *,
    name: Words | None = None,
    flow: Words = 0,
    priority: Words = 0,
    deadline: Words = NEVER,
    submit: Words = 0,
    lane: Words = 0,
    bucket: Words = 0,
    since: Words | None = None,
) -> I64:
    """n rows of these words; name: their SEQUENCE, by which they can be told, 0 to n - 1. since:
    when they came to this stage; None for when they were submitted."""
    rows = np.zeros((QUEUE_COLUMNS, n), dtype=np.int64)
    rows[QueueColumn.SEQUENCE] = range(n) if name is None else name
    rows[QueueColumn.FLOW] = flow
    rows[QueueColumn.PRIORITY] = priority
    rows[QueueColumn.DEADLINE_NS] = deadline
    rows[QueueColumn.SUBMIT_NS] = submit
    rows[QueueColumn.SINCE_NS] = submit if since is None else since
    rows[QueueColumn.LANE] = lane
    rows[QueueColumn.BUCKET] = bucket
    return rows


def names(rows: I64) -> list[int]:
    return list(map(int, rows[QueueColumn.SEQUENCE]))


def flows(rows: I64) -> list[int]:
    return list(map(int, rows[QueueColumn.FLOW]))


def queue_of(*groups: I64) -> Queue:
    """A queue these groups came to, one after the other."""
    queue = Queue()
    for group in groups:
        queue.append(group)
    return queue


def positions(*at: int) -> I64:
    return np.array(at, dtype=np.int64)


def front(n: int) -> slice:
    return slice(0, n)
