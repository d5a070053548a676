"""Rows for the tests of the queue and of what is decided over it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from batchpool.core.scheduler.queue import FIELDS, I64, Field, Queue

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
) -> I64:
    """n rows of these words; name: their SEQUENCE, by which they can be told, 0 to n - 1."""
    rows = np.zeros((FIELDS, n), dtype=np.int64)
    rows[Field.SEQUENCE] = range(n) if name is None else name
    rows[Field.FLOW] = flow
    rows[Field.PRIORITY] = priority
    rows[Field.DEADLINE_NS] = deadline
    rows[Field.SUBMIT_NS] = submit
    rows[Field.LANE] = lane
    rows[Field.BUCKET] = bucket
    return rows


def names(rows: I64) -> list[int]:
    return list(map(int, rows[Field.SEQUENCE]))


def flows(rows: I64) -> list[int]:
    return list(map(int, rows[Field.FLOW]))


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
