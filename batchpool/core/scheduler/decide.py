"""The batching decision: which rows run together, on which worker, and when. A pure function.

    decide(now, queue, workers, limits, traffic) -> dispatch, expire, refuse, wake_at

The queue is in the order of service (core/scheduler/queue.py). A batch is the first rows in that
order that may share one: rows of one bucket, whose lanes the worker has mapped. It is full with
max_batch rows, or with fewer of a bucket of long ones (core/scheduler/element_budget.py). A partial
batch goes to an idle worker only, since more rows may join it while a worker is busy, without
starting later. Which batches are queued behind the one that a worker runs is told in
core/scheduler/depth.py. Where a partial batch is due and a full one of another bucket behind it
could be queued, the partial one is queued in its place. Few rows of several buckets may share a
batch (core/scheduler/joined_buckets.py); buckets take turns (core/scheduler/bucket_turns.py).

A partial batch leaves for an idle worker

    fixed     when its oldest row has waited max_wait since it was submitted
    adaptive  at once where waiting does not pay (core/scheduler/estimators.py); else as soon as
              it stops paying, or when the oldest row has waited max_wait, under heavy load
              max_wait_peak
    both      when a row's deadline leaves just the time to run it, or while the pool drains

Background rows beside others are bounded in number (core/scheduler/background.py). A batch that
they may not fill leaves as a partial one does, for an idle worker only: others may join it still.
Where `spreads` is set rows are divided among idle workers, and few are held for company
(core/scheduler/shares.py). A target for the 99th percentile bounds batches, waits and the queue,
and refuses rows that would be late (core/scheduler/latency_target.py).

Invariants, which are also the property tests:

    - a batch has at most max_batch rows, of one bucket unless few wait, and no row twice; none of
      its inputs has more padded elements than the budget, unless no batch could be smaller;
    - nothing is sent to a worker that is closed;
    - a full batch does not wait while a worker is idle or may have another batch in flight;
    - rows that spread are divided evenly among all idle workers, as far as small batches pay;
    - while a worker is idle no row waits longer than the policy's limit, or than it may be held;
    - rows of one bucket are dispatched in the order of service among those a worker may run;
    - a row at or past its deadline is not dispatched, and expires without waiting for a worker;
    - nothing is refused without a target, nor what is expected to be answered in time;
    - while draining no row waits for others and none is refused;
    - the same input gives the same output.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from batchpool.core.few_rows import LISTED_ROWS
from batchpool.core.scheduler.background import BACKGROUND_KEY
from batchpool.core.scheduler.busy_workers import all_busy_until
from batchpool.core.scheduler.decision import Decision, Dispatch
from batchpool.core.scheduler.estimators import ArrivalEstimator
from batchpool.core.scheduler.latency_target import expected_late
from batchpool.core.scheduler.limits import NEVER_NS, Limits
from batchpool.core.scheduler.listed_round import ListedRound
from batchpool.core.scheduler.queue import I64, QueueColumn, least
from batchpool.core.scheduler.scheduling_round import Round
from batchpool.core.scheduler.worker_view import WorkerView

__all__ = ["NEVER_NS", "Decision", "Dispatch", "Limits", "WorkerView", "decide"]

_NONE = np.empty(0, dtype=np.int64)


def decide(
    now_ns: int,
    queue: I64,
    workers: Sequence[WorkerView],
    limits: Limits,
    traffic: ArrivalEstimator | None = None,
    *,
    beside: bool = False,
    listed_most: int = LISTED_ROWS,
) -> Decision:
    """Decide for one model.

    queue: [QUEUE_COLUMNS, n] in the order of service; it is not changed.  traffic: the model's
    arrivals, for the adaptive policy.  beside: background rows in it are beside others.
    listed_most: so many rows at most are decided upon by plain numbers.
    """
    n = queue.shape[1]
    if n == 0:
        return Decision((), _NONE, _NONE, NEVER_NS)
    deadlines = queue[QueueColumn.DEADLINE_NS]
    earliest_ns = least(deadlines)
    live = None if earliest_ns > now_ns else deadlines > now_ns
    refuse, again_ns = _NONE, NEVER_NS
    if limits.target_ns and not limits.draining:
        refuse, again_ns = expected_late(now_ns, queue, live, workers, limits)
        if len(refuse):
            live = np.ones(n, dtype=bool) if live is None else live
            live[refuse] = False
    if live is None and not beside and not limits.target_ns:
        until_ns = all_busy_until(now_ns, queue, workers, limits)
        if until_ns:
            return Decision((), _NONE, _NONE, min(earliest_ns, until_ns))
    listed = n <= listed_most
    round_ = (ListedRound if listed else Round)(now_ns, queue, workers, limits, traffic)
    if beside:
        round_.background = int(queue[QueueColumn.KEY].searchsorted(BACKGROUND_KEY))
    if live is None and round_.is_uniform():
        round_.dispatch_prefixes(earliest_ns)
        wake_at_ns = min(earliest_ns, round_.wake_at_ns, again_ns)
        return Decision(tuple(round_.dispatch), _NONE, refuse, wake_at_ns)
    if live is None:  # no row ends
        round_.dispatch_any(None)
        wake_at_ns = min(earliest_ns, round_.wake_at_ns, again_ns)
        return Decision(tuple(round_.dispatch), _NONE, refuse, wake_at_ns)
    expire = np.flatnonzero(deadlines <= now_ns)
    round_.dispatch_any(live)
    wake_at_ns = NEVER_NS
    if live.any():
        wake_at_ns = min(int(deadlines[live].min()), round_.wake_at_ns, again_ns)
    return Decision(tuple(round_.dispatch), expire, refuse, wake_at_ns)
