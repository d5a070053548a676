"""The decision for the waiting rows of one model: batches to send, rows that end, the next time.

Made by `decide` (core/scheduler/decide.py), and for generators by the seating decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from batchpool.core.layout.states import DispatchReason


# With constructors of their own, since one that `dataclass` makes stays interpreted in a compiled
# module, and these are called for every batch.
@dataclass(init=False)
class Dispatch:
    """A batch for one worker. rows: positions in the queue as it was given, rising."""

    worker: int
    rows: slice | npt.NDArray[Any]
    reason: DispatchReason

    def __init__(self, worker: int, rows: slice | npt.NDArray[Any], reason: DispatchReason) -> None:
        self.worker = worker
        self.rows = rows
        self.reason = reason


@dataclass(init=False)
class Decision:
    """The result of `decide`.

    dispatch: batches to send now.  expire: positions of the rows past their deadline.  refuse:
    positions of the rows that would be late.  wake_at_ns: the time of the next decision, if no
    event comes before.
    """

    dispatch: tuple[Dispatch, ...]
    expire: npt.NDArray[Any]
    refuse: npt.NDArray[Any]
    wake_at_ns: int

    def __init__(
        self,
        dispatch: tuple[Dispatch, ...],
        expire: npt.NDArray[Any],
        refuse: npt.NDArray[Any],
        wake_at_ns: int,
    ) -> None:
        self.dispatch = dispatch
        self.expire = expire
        self.refuse = refuse
        self.wake_at_ns = wake_at_ns

    def is_wait(self) -> bool:
        """True if no row leaves or ends now."""
        return not (self.dispatch or len(self.expire) or len(self.refuse))
