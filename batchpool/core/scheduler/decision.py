"""The decision for the waiting rows of one model: batches to send, rows that end, the next time.

Made by `decide` (core/scheduler/decide.py), and for generators by the seating decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from batchpool.core.layout.states import DispatchReason


@dataclass(frozen=True)
class Dispatch:
    """A batch for one worker. rows: positions in the queue as it was given, rising."""

    worker: int
    rows: slice | npt.NDArray[Any]
    reason: DispatchReason


@dataclass(frozen=True)
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

    def is_wait(self) -> bool:
        """True if no row leaves or ends now."""
        return not (self.dispatch or len(self.expire) or len(self.refuse))
