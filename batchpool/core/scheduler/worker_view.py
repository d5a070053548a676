"""A worker as the batching decision needs it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from batchpool.core.scheduler.estimators import ServiceTime


# With a constructor of its own, since one that `dataclass` makes stays interpreted in a compiled
# module, and a view is made for every batch.
@dataclass(init=False)
class WorkerView:
    """One worker, as the decision needs it.

    in_flight: its batches.  lanes: a mask by lane number of those that it may run; None for all.
    time: its batch times, where they are measured.  elements_time: the same by the padded elements
    of a batch, where rows differ in these.  last_bucket: of the last batch that it was sent; -1 for
    none.  free_at_ns: the expected end of its batches.
    closed: it gets no more batches for now.  overdue_since_ns: the start of a batch that takes so
    long that it may hang, 0 for none; the worker is closed then, and is expected to take as long
    again.
    """

    number: int
    in_flight: int
    lanes: npt.NDArray[np.bool_] | None
    time: ServiceTime | None
    free_at_ns: int
    closed: bool
    overdue_since_ns: int
    elements_time: ServiceTime | None
    last_bucket: int

    def __init__(
        self,
        number: int,
        in_flight: int,
        lanes: npt.NDArray[np.bool_] | None = None,
        time: ServiceTime | None = None,
        free_at_ns: int = 0,
        closed: bool = False,
        overdue_since_ns: int = 0,
        elements_time: ServiceTime | None = None,
        last_bucket: int = -1,
    ) -> None:
        self.number = number
        self.in_flight = in_flight
        self.lanes = lanes
        self.time = time
        self.free_at_ns = free_at_ns
        self.closed = closed
        self.overdue_since_ns = overdue_since_ns
        self.elements_time = elements_time
        self.last_bucket = last_bucket
