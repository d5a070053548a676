"""Joining rows of several size buckets in one batch, where only few rows wait.

A small batch of a GPU takes hardly longer than one of a single row: nearly all of its time is what
a call takes whatever is in it. Where the few rows that wait are of several buckets, a batch for
each bucket lets the last of them wait for as many such calls. Rows of another bucket ride along
where the elements that are padded for it take less than a quarter of the time that a call of its
own would take besides: a call of which the CPU prepares the next one meanwhile costs less than its
whole time. The times are those of measured batches by their padded elements, so that a model whose
time is in its elements, as most are on a CPU, keeps its buckets apart.

Where more rows wait than half of a full batch, each bucket has company of its own, and is apart.
"""

from __future__ import annotations

from batchpool.core.scheduler.estimators import ServiceTime
from batchpool.core.scheduler.limits import Limits
from batchpool.core.scheduler.size_buckets import joined_bucket

_SHARE = 0.25  # of a call's fixed time that padding may take to save it
_TIMES = 2  # so many times the rows that wait fit into a full batch


def may_join(rows: int, waiting: int, limits: Limits, time: ServiceTime | None) -> bool:
    """False where no row can join so many rows of one bucket, of so many that wait: not every model
    joins rows, and many rows are apart."""
    if limits.row_elements is None or time is None or not time.row_ns or rows == waiting:
        return False
    return _TIMES * waiting <= limits.max_batch


def with_other_buckets(
    rows: list[int],
    waiting: list[int],
    buckets: list[int],
    most: int,
    limits: Limits,
    time: ServiceTime | None,
) -> list[int]:
    """The rows of a batch, rising: `rows`, and all that wait of each bucket that may join them.

    rows: positions of one bucket's rows that are to leave together, all of it. waiting: of all that
    the worker may run. buckets: of every position. most: rows of a batch for this worker. time: of
    the worker's batches by their padded elements; None where these are not measured.
    """
    elements = limits.row_elements
    if elements is None or time is None or not may_join(len(rows), len(waiting), limits, time):
        return rows
    others: dict[int, list[int]] = {}
    for at in waiting:
        others.setdefault(buckets[at], []).append(at)
    bucket, n = buckets[rows[0]], len(rows)
    del others[bucket]
    joined = rows
    for other, theirs in others.items():
        both, more = joined_bucket((bucket, other)), len(theirs)
        if n + more > min(most, limits.most_rows(both)):
            continue
        apart = n * elements.of(bucket) + more * elements.of(other)
        padding_ns = ((n + more) * elements.of(both) - apart) * time.row_ns
        if padding_ns < _SHARE * time.base_ns:
            bucket, n = both, n + more
            joined = joined + theirs
    return rows if joined is rows else sorted(joined)
