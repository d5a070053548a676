"""The slots of one lane whose tokens are read while they run, all looked at at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from batchpool.client.published_tokens import lengths_of
from batchpool.shm.lane import Lane

_NOT_WATCHED = 2**32 - 1  # no row has more tokens


class StreamingSlots:
    """Slots and what is called as their rows grow, which one comparison of the column finds."""

    def __init__(self, lane: Lane) -> None:
        self._lengths = lengths_of(lane)
        self._seen = np.full(lane.slots, _NOT_WATCHED, dtype=np.uint32)
        self._grew: dict[int, Callable[[], None]] = {}

    def __len__(self) -> int:
        return len(self._grew)

    def add(self, slot: int, grew: Callable[[], None]) -> None:
        """Call `grew` whenever `look` finds more tokens in the slot than before."""
        self._grew[slot] = grew
        self._seen[slot] = 0

    def remove(self, slot: int) -> None:
        """The row has ended, or is not read any more."""
        del self._grew[slot]
        self._seen[slot] = _NOT_WATCHED

    def look(self) -> None:
        """Call those whose rows have grown since it looked last."""
        grown = np.flatnonzero(self._lengths > self._seen)
        if len(grown):
            self._seen[grown] = self._lengths[grown]
            for slot in grown.tolist():
                self._grew[slot]()
