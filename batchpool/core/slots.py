"""Which slots of a lane are claimed, and when a claim is refused: pure bookkeeping.

Slots are handed out next-fit: the search goes on where the last one ended, so that rows that
come one after another lie side by side, and a batch of them is one extent.

A claim of n rows is refused when claimed + n > floor(watermark x slots). After a refusal the
lane stays shut until fewer than `reopen` x slots are claimed, so that it does not flap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from batchpool.core.tensors import Array

_FREE = b"\0"


def bound_of(slots: int, watermark: float) -> int:
    """The most slots that may be claimed at once; at least 1."""
    return max(1, math.floor(slots * watermark + 1e-9))


class SlotMap:
    """The claimed slots of one lane, for its one client."""

    def __init__(self, slots: int, watermark: float = 0.90, reopen: float = 0.80) -> None:
        self.slots = slots
        self.bound = bound_of(slots, watermark)
        self.reopen_below = max(1, math.ceil(slots * min(reopen, watermark) - 1e-9))
        self.claimed = 0
        self.shut = False
        self._used = bytearray(slots)
        self._view = np.frombuffer(self._used, dtype=np.uint8)
        self._cursor = 0

    def admits(self, n: int) -> bool:
        """Whether n more rows may be claimed now. A refusal shuts the lane."""
        if self.shut:
            if self.claimed >= self.reopen_below:
                return False
            self.shut = False
        if self.claimed + n > self.bound:
            self.shut = True
            return False
        return True

    def would_admit(self, n: int) -> bool:
        """The same answer without shutting or opening anything."""
        if self.shut and self.claimed >= self.reopen_below:
            return False
        return self.claimed + n <= self.bound

    def take_one(self) -> int:
        """The next free slot. The caller asked `admits` first."""
        slot = self._used.find(_FREE, self._cursor)
        if slot < 0:
            slot = self._used.find(_FREE)
            assert slot >= 0, "no free slot although the lane admitted the claim"
        self._used[slot] = 1
        self._cursor = slot + 1
        self.claimed += 1
        return slot

    def take(self, n: int) -> Sequence[int]:
        """n free slots, neighbours if there is such a run ahead or at all, else scattered."""
        run = _FREE * n
        first = self._used.find(run, self._cursor)
        if first < 0:
            first = self._used.find(run)
        if first >= 0:
            self._used[first : first + n] = b"\1" * n
            self._cursor = first + n
            self.claimed += n
            return range(first, first + n)
        return [self.take_one() for _ in range(n)]

    def give_back(self, slot: int) -> None:
        assert self._used[slot], f"slot {slot} given back twice"
        self._used[slot] = 0
        self.claimed -= 1

    def give_back_many(self, slots: Sequence[int] | Array) -> None:
        if isinstance(slots, range):
            slots = np.arange(slots.start, slots.stop)
        assert bool(self._view[slots].all()), "slots given back twice"
        self._view[slots] = 0
        self.claimed -= len(slots)

    def is_claimed(self, slot: int) -> bool:
        return bool(self._used[slot])
