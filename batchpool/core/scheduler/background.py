"""Rows that nobody waits for, beside rows that somebody waits for.

Rows of priority `BACKGROUND` and behind are those of tasks, batches and topics. Without a bound
they would fill every batch, so that a request waits for a full batch first and is answered with
another one. So while a model gets requests that somebody waits for, and for `LATELY_NS` after the
last of them, background rows may make a batch only so much longer than it would be without them
(`background_slowdown`), a batch of them alone than that of a single row. Where rows take no time of
their own, as on a GPU that is far from busy, that is no bound at all.
"""

from __future__ import annotations

from batchpool.core.scheduler.estimators import ServiceTime
from batchpool.core.scheduler.limits import Limits

LATELY_NS = 1_000_000_000


def rows_beside(n: int, time: ServiceTime | None, limits: Limits) -> int:
    """The most rows of a batch of which n are waited for: at least n, and at least one."""
    most = limits.max_batch
    if time is None or not time.known or not time.row_ns:
        return most
    least = limits.padded(max(n, 1))
    allowed_ns = (1 + limits.background_slowdown) * time.mean_ns(least)
    rows = (allowed_ns - time.base_ns) / time.row_ns
    if rows >= most:
        return most
    fitting = max(least, int(rows))
    if limits.sizes:
        fitting = max(size for size in (least, *limits.sizes) if size <= fitting)
    return min(most, fitting)
