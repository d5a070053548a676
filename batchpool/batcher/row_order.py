"""The orders of a batch's rows: that in which a worker reads them, and that of service."""

from __future__ import annotations

import numpy as np

from batchpool.core.few_rows import LISTED_ROWS
from batchpool.core.scheduler.queue import I64, QueueColumn, all_equal, every


def in_order_of_slots(rows: I64) -> I64:
    """The rows by lane, then slot. Those of one call, in one lane, mostly have that order."""
    n, lanes, slots = rows.shape[1], rows[QueueColumn.LANE], rows[QueueColumn.SLOT]
    if n > LISTED_ROWS:
        if all_equal(lanes) and every(slots[1:] > slots[:-1]):
            return rows
        return rows.take(np.lexsort((slots, lanes)), axis=1)
    listed, by_lane = slots.tolist(), lanes.tolist()
    if by_lane.count(by_lane[0]) == n:
        in_order = sorted(listed)
        if listed == in_order:
            return rows
        return rows.take(sorted(range(n), key=listed.__getitem__), axis=1)
    places = list(zip(by_lane, listed, strict=True))
    return rows.take(sorted(range(n), key=places.__getitem__), axis=1)


def positions_by_service(rows: I64) -> I64:
    """Positions of rows that were taken from one queue, in the order in which it had them."""
    n = rows.shape[1]
    if n > LISTED_ROWS:
        keys = (QueueColumn.SUBMIT_NS, QueueColumn.RETURN, QueueColumn.KEY)
        order: I64 = np.lexsort([rows[column] for column in keys])
        return order
    columns = (QueueColumn.KEY, QueueColumn.RETURN, QueueColumn.SUBMIT_NS)
    places = list(zip(*[rows[column].tolist() for column in columns], strict=True))
    return np.array(sorted(range(n), key=places.__getitem__), dtype=np.int64)


def in_order_of_service(rows: I64) -> I64:
    """At least one row in the order that they had in their queue; mostly they have it already."""
    n = rows.shape[1]
    if n <= LISTED_ROWS:
        keys = rows[QueueColumn.KEY].tolist()
        if keys == sorted(keys) and len({*keys}) == n:
            return rows
    return rows.take(positions_by_service(rows), axis=1)
