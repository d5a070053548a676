"""The batches that a worker may have in flight: what is queued behind the one that it runs.

A full batch may be queued, up to `depth` dispatched and at most `AHEAD` more where batches are
short, so that the worker does not idle between two batches; but not behind a worker's first batch,
whose time is not known yet, nor behind one that runs for long still: whoever comes meanwhile would
wait for both, and the worker loses nothing as long as the next one is there in time. Where rows of
several buckets wait, a partial batch of one of them is also queued behind a batch that ends soon:
the others go on collecting meanwhile.
"""

from __future__ import annotations

from batchpool.core.scheduler.estimators import ServiceTime
from batchpool.core.scheduler.limits import NEVER_NS, Limits

AHEAD = 2  # full batches in flight beyond `depth` at most, where batches are short
# A full batch is queued so long before the batch in front of it is expected to end. Expected times
# are wrong by a part of themselves; one that ends sooner costs the worker a wake-up.
QUEUED_BEFORE_END_NS = 25_000_000
# Batches that are dispatched beyond `depth` last as long. From the end of a batch until the worker
# has launched another one in its place, outputs are stored, the batcher enters the rows of two
# batches and decides between two wake-ups, and inputs are gathered. With 3 ms an H200 whose batches
# take 1.8 ms was idle for 15 % of its time (bench/dynamic_graphs.py).
_TURN_NS = 6_000_000
_SOON_NS = 1_000_000


def most_in_flight(
    in_flight: int, time: ServiceTime | None, limits: Limits, left_ns: int = 0
) -> int:
    """The batches that a worker may have in flight where the next one is full, that one included.

    in_flight: those that it has. time: of its batches by their rows, None where these are not
    measured. left_ns: how long they are expected to run still.
    """
    if left_ns > QUEUED_BEFORE_END_NS or (time is not None and not time.known):
        return 1  # it runs for long, or nobody knows how long
    if in_flight < limits.depth or time is None:
        return limits.depth
    batch_ns = time.mean_ns(limits.max_batch)
    return limits.depth + (AHEAD if batch_ns * AHEAD <= _TURN_NS else int(_TURN_NS // batch_ns))


def queued_from(free_at_ns: int, in_flight: int, time: ServiceTime | None, limits: Limits) -> int:
    """From when on a full batch may be queued behind a worker's batches; NEVER_NS where none may.

    free_at_ns: when these are expected to end.
    """
    may = in_flight < most_in_flight(in_flight, time, limits)
    return free_at_ns - QUEUED_BEFORE_END_NS if may else NEVER_NS


def runs_long(time: ServiceTime, limits: Limits) -> bool:
    """True if full batches are not queued behind another one at once: its end has to be foreseen.

    time: of a worker's batches by their rows.
    """
    return time.known and time.mean_ns(limits.max_batch) > QUEUED_BEFORE_END_NS


def ends_soon_at(free_at_ns: int, time: ServiceTime | None, limits: Limits) -> int:
    """From when on a partial batch of one of several buckets may be queued behind a worker's batch;
    NEVER_NS where none may.

    free_at_ns: when that batch is expected to end. time: of the worker's batches by their padded
    elements, None where these are not measured.
    """
    if time is None or not time.known or limits.depth < 2:
        return NEVER_NS
    return free_at_ns - _SOON_NS
