"""The wait of rows for others that may share their batch."""

from __future__ import annotations

from batchpool.core.layout.states import DispatchReason
from batchpool.core.scheduler.estimators import ArrivalEstimator, ServiceTime
from batchpool.core.scheduler.limits import Limits
from batchpool.core.scheduler.shares import held_ns

_HEAVY_LOAD = 0.5  # share of the workers' capacity; above it waits may reach max_wait_peak
# The most frequent reason: looking a member up in its enum is slow.
_IDLE = DispatchReason.IDLE


def wait_of(
    now_ns: int,
    n: int,
    most: int,
    oldest_ns: int,
    limits: Limits,
    time: ServiceTime | None,
    traffic: ArrivalEstimator | None,
    workers: int,
    *,
    is_lone: bool = True,
) -> tuple[DispatchReason, int]:
    """(reason to leave then, end of the wait): how long the policy lets n rows wait for others.

    most: the most rows of a batch of their bucket. oldest_ns: when the first of them was submitted;
    where rows spread, when it came to this stage. time: of the worker's batches. workers: that may
    run them. is_lone: no worker is busy.
    """
    if limits.spreads and not is_lone and (wait_ns := held_ns(n, time)):
        return DispatchReason.WAIT, oldest_ns + wait_ns
    if not limits.adaptive:
        reason = DispatchReason.WAIT if limits.max_wait_ns else _IDLE
        return reason, oldest_ns + limits.max_wait_ns
    if traffic is None or time is None or not time.known:
        return _IDLE, oldest_ns
    worth_ns = traffic.worth_until_ns(n, time, workers, most)
    if worth_ns <= now_ns:
        return _IDLE, oldest_ns
    most_ns = float(limits.max_wait_ns)
    if _is_heavy_load(time, traffic, most, workers):
        most_ns = max(most_ns, limits.max_wait_peak_ns)
    if limits.target_ns:
        most_ns = max(0.0, min(most_ns, limits.within_ns - time.high_ns(n + int(traffic.rows))))
    wait_ns = oldest_ns + int(most_ns)
    return (DispatchReason.WAIT, wait_ns) if wait_ns <= worth_ns else (_IDLE, worth_ns)


def _is_heavy_load(time: ServiceTime, traffic: ArrivalEstimator, most: int, workers: int) -> bool:
    """True if rows come in faster than `_HEAVY_LOAD` of the rate that the workers can run in
    batches of `most` rows."""
    capacity_per_s = workers * most / max(1e-9, time.mean_ns(most) / 1e9)
    return traffic.rows_per_s > _HEAVY_LOAD * capacity_per_s
