"""Turns in the queues of the simulated batcher: the callers of requests, and the rule.

No origin has two turns in one round, however many names its requests have: of one priority, its
rows that have not come back have keys that differ (core/scheduler/fair_order.py).
"""

from __future__ import annotations

from collections import Counter

from batchpool.core.flows import named_flow, origin_of
from batchpool.core.scheduler.fair_order import priority_of
from batchpool.core.scheduler.queue import Queue, QueueColumn
from tests.sim.memory import Fault

_NAMES = 5
_TAG_BITS = 40


def flow_of_request(number: int, *, named: bool) -> int:
    """The flow of a request by the number of its first row. named: there are origins whose requests
    have names, one of which is new each time."""
    if not named:
        return 1
    origin = 2 + number % 3
    if origin == 2:
        return origin
    return named_flow(origin, number if origin == 3 else 1 + number // 3 % _NAMES)


def check_turns(queue: Queue) -> None:
    """Raise Fault where an origin has two turns in one round."""
    rows = queue.view()
    found: Counter[tuple[int, int]] = Counter()
    for flow, key in rows[[QueueColumn.FLOW, QueueColumn.KEY]].T.tolist():
        if key != priority_of(key) << _TAG_BITS:  # that of rows that came back
            found[origin_of(flow), key] += 1
    for (origin, key), count in found.items():
        if count > 1:
            raise Fault(f"origin {origin} has {count} turns in round {key} of {priority_of(key)}")
