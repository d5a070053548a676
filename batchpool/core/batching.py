"""Which rows ride together and when: a pure decision.

    decide(now, queue, workers, limits) -> dispatch, expire, wake_at

Policy "fixed", wait-or-full: a batch leaves when max_batch rows are there, or when its oldest
row has waited max_wait since it was submitted, whichever is first. A partial batch goes to an
idle worker only: while a worker is busy, more rows may still join without starting later. A
full batch may also queue behind the one a worker runs (up to `depth` in flight), so that the
worker never idles between two batches.

Invariants, which are the property tests too:

    - never more than max_batch rows in a batch, and never a row twice;
    - a full batch never waits while a worker is free;
    - nobody waits longer than max_wait, counted from submission, while a worker is idle;
    - first in, first out among the rows that a worker may run;
    - nothing at or past its deadline is dispatched; expiry does not wait for a worker;
    - while draining nobody waits for company;
    - the same input gives the same output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from batchpool.core.lifecycle import Reason
from batchpool.core.queue import I64, Field, least

NEVER_NS = 2**63 - 1


@dataclass(frozen=True)
class Limits:
    """What bounds a model's batches. depth: batches a worker may have in flight."""

    max_batch: int
    max_wait_ns: int
    depth: int = 2
    draining: bool = False


@dataclass(frozen=True)
class Worker:
    """A worker as the decision sees it. lanes: which it may run, by lane number; None: all."""

    number: int
    in_flight: int
    lanes: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Dispatch:
    """Rows (positions in the queue as it was given, rising) for one worker."""

    worker: int
    rows: slice | npt.NDArray[Any]
    reason: Reason


@dataclass(frozen=True)
class Decision:
    """expire: positions of the rows past their deadline. wake_at_ns: decide again then."""

    dispatch: tuple[Dispatch, ...]
    expire: npt.NDArray[Any]
    wake_at_ns: int


_NONE = np.empty(0, dtype=np.int64)


def decide(now_ns: int, queue: I64, workers: Sequence[Worker], limits: Limits) -> Decision:
    """Decide for one model. queue: [FIELDS, n], oldest first; see core/queue.py."""
    n = queue.shape[1]
    if n == 0:
        return Decision((), _NONE, NEVER_NS)
    deadlines = queue[Field.DEADLINE_NS]
    wake_at_ns = least(deadlines)
    if wake_at_ns > now_ns and all(worker.lanes is None for worker in workers):
        dispatch, left_at = _in_order(now_ns, queue, workers, limits)
        return Decision(dispatch, _NONE, min(wake_at_ns, left_at))
    live = deadlines > now_ns
    expire = np.flatnonzero(~live)
    dispatch, left_at = _by_worker(now_ns, queue, live, workers, limits)
    wake_at_ns = min(int(deadlines[live].min()), left_at) if live.any() else NEVER_NS
    return Decision(dispatch, expire, wake_at_ns)


def _due(now_ns: int, oldest_submit_ns: int, n: int, limits: Limits) -> Reason | None:
    """Why a batch of the n rows at the front may leave now; None: it waits for company."""
    if n >= limits.max_batch:
        return Reason.FULL
    if limits.draining:
        return Reason.DRAIN
    if now_ns - oldest_submit_ns >= limits.max_wait_ns:
        return Reason.WAIT if limits.max_wait_ns else Reason.IDLE
    return None


def _in_order(
    now_ns: int, queue: I64, workers: Sequence[Worker], limits: Limits
) -> tuple[tuple[Dispatch, ...], int]:
    """The common case: nothing expired, every worker may run every row. Batches are slices."""
    n = queue.shape[1]
    at = 0
    dispatch = []
    load = {worker.number: worker.in_flight for worker in workers}
    submit = queue[Field.SUBMIT_NS]
    while at < n and load:
        number = min(load, key=lambda w: (load[w], w))
        left = n - at
        reason = _due(now_ns, least(submit[at:]), left, limits)
        limit = limits.depth if reason is Reason.FULL else 1
        if reason is None or load[number] >= limit:
            break
        size = min(left, limits.max_batch)
        dispatch.append(Dispatch(number, slice(at, at + size), reason))
        load[number] += 1
        at += size
    return tuple(dispatch), _wait_end(submit[at:], min(load.values(), default=1), limits)


def _by_worker(
    now_ns: int,
    queue: I64,
    live: npt.NDArray[np.bool_],
    workers: Sequence[Worker],
    limits: Limits,
) -> tuple[tuple[Dispatch, ...], int]:
    """The general case: rows that expired, or workers that may not run every lane yet."""
    dispatch = []
    submit = queue[Field.SUBMIT_NS]
    free = live.copy()
    load = {worker.number: worker.in_flight for worker in workers}
    lanes = {worker.number: worker.lanes for worker in workers}
    wake_at_ns = NEVER_NS
    while load:
        number = min(load, key=lambda w: (load[w], w))
        may = lanes[number]
        rows = np.flatnonzero(free if may is None else free & may[queue[Field.LANE]])
        oldest_ns = least(submit[rows]) if len(rows) else now_ns
        reason = _due(now_ns, oldest_ns, len(rows), limits) if len(rows) else None
        limit = limits.depth if reason is Reason.FULL else 1
        if reason is None or load[number] >= limit:
            # Nothing for this worker; another one may run other lanes.
            wake_at_ns = min(wake_at_ns, _wait_end(submit[rows], load[number], limits))
            del load[number]
            continue
        rows = rows[: limits.max_batch]
        dispatch.append(Dispatch(number, rows, reason))
        free[rows] = False
        load[number] += 1
    return tuple(dispatch), wake_at_ns


def _wait_end(submit_ns: I64, in_flight: int, limits: Limits) -> int:
    """When the oldest of these rows has waited enough; NEVER while a worker must be free first."""
    if len(submit_ns) == 0 or in_flight > 0:
        return NEVER_NS
    return least(submit_ns) + limits.max_wait_ns
