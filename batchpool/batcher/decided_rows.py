"""Carrying out a decision: its rows are taken out of their queue."""

from __future__ import annotations

import numpy as np

from batchpool.core.scheduler.decision import Decision
from batchpool.core.scheduler.queue import I64, QUEUE_COLUMNS, Queue

_NO_ROWS: I64 = np.empty((QUEUE_COLUMNS, 0), dtype=np.int64)


def take(queue: Queue, decision: Decision) -> tuple[list[I64], I64, I64]:
    """Take the rows of a decision out of the queue: the groups to dispatch, the late rows, the
    refused rows. All positions in the decision refer to the queue before this call."""
    expire, refuse = decision.expire, decision.refuse
    fronts = [dispatch.rows for dispatch in decision.dispatch if isinstance(dispatch.rows, slice)]
    if fronts or not (decision.dispatch or len(expire) or len(refuse)):
        # The usual case: the batches are the front of the queue, one after the other, or none.
        return [queue.take_front(rows.stop - rows.start) for rows in fronts], _NO_ROWS, _NO_ROWS
    view = queue.view()
    groups = [view[:, dispatch.rows] for dispatch in decision.dispatch]
    late, refused = view[:, expire], view[:, refuse]
    gone = np.concatenate([expire, refuse])
    if groups:
        sent = np.sort(np.concatenate([dispatch.rows for dispatch in decision.dispatch]))
        queue.take(sent)
        gone -= np.searchsorted(sent, gone)
    if len(gone):
        queue.drop(gone)
    return groups, late, refused
