"""The exception for a row that ended with an error, made of what stands in its slot."""

from __future__ import annotations

import json

from batchpool.core.errors import InvalidInput, PoolError, error_for
from batchpool.shm.lane import Lane


def row_error(lane: Lane, slot: int, sequence: int) -> PoolError:
    """The error of a finished row. sequence: the use of its slot, for the log."""
    error = error_for(int(lane.status[slot]), lane.read_message(slot))
    error.facts = {"slot": slot, "sequence": sequence}
    origin = lane.read_origin(slot)
    if origin is not None:
        where = zip(("batch", "worker", "worker_pid"), origin, strict=True)
        error.facts = {**error.facts, **dict(where)}
    if isinstance(error, InvalidInput):
        try:
            details = json.loads(lane.read_details(slot) or b"{}")
        except ValueError:  # the owner of the lane has written over it
            details = {}
        error.details = details if isinstance(details, dict) else {}
    return error
