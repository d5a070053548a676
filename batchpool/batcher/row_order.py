"""The orders of a batch's rows: that in which a worker reads them, and that of service."""

from __future__ import annotations

import numpy as np

from batchpool.core.scheduler.queue import FEW, I64, QueueColumn, all_equal, every


def in_order_of_slots(rows: I64) -> I64:
    """The rows by lane, then slot. Those of one call, in one lane, mostly have that order."""
    lanes, slots = rows[QueueColumn.LANE], rows[QueueColumn.SLOT]
    if rows.shape[1] > FEW:
        if all_equal(lanes) and every(slots[1:] > slots[:-1]):
            return rows
        return rows.take(np.lexsort((slots, lanes)), axis=1)
    places = list(zip(lanes.tolist(), slots.tolist(), strict=True))
    order = sorted(range(len(places)), key=places.__getitem__)
    return rows if order == list(range(len(places))) else rows.take(order, axis=1)


def in_order_of_service(rows: I64) -> I64:
    """Positions of rows that were taken from one queue, in the order in which it had them."""
    n = rows.shape[1]
    if n > FEW:
        keys = (QueueColumn.SUBMIT_NS, QueueColumn.RETURN, QueueColumn.KEY)
        order: I64 = np.lexsort([rows[column] for column in keys])
        return order
    columns = (QueueColumn.KEY, QueueColumn.RETURN, QueueColumn.SUBMIT_NS)
    places = list(zip(*[rows[column].tolist() for column in columns], strict=True))
    return np.array(sorted(range(n), key=places.__getitem__), dtype=np.int64)
