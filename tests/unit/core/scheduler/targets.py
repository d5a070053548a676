"""A target for the 99th percentile, and times that it is measured by."""

from __future__ import annotations

import math

from batchpool.core.scheduler.estimators import ServiceTime
from batchpool.core.scheduler.limits import Limits
from tests.unit.core.scheduler.decisions import time_of
from tests.unit.core.scheduler.queued import MS

WITHIN = Limits(1, 0, target_ns=1000).within_ns / 1000


def target_of(within_ms: float) -> int:
    """The target of which the pool may use so much; the rest is for the way to the caller."""
    return math.ceil(within_ms * MS / WITHIN)


def two_ns(time: ServiceTime, n: int) -> float:
    """Two batches, one of them a slow one."""
    return time.mean_ns(n) + time.high_ns(n)


TARGET = Limits(8, 0, target_ns=target_of(90))
TIME = time_of(20 * MS, 1 * MS, spread=1.25)  # eight rows: 28 ms, 35 ms at most
