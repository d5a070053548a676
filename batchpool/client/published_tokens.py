"""The tokens of a running row, read in its slot while a worker appends to them.

The worker stores tokens, then, behind a fence, their number. A reader loads the number first, so
that all tokens below it are there. The column holds as many as a row may have and is only appended
to, so that a reader that is late misses none and holds nobody up.
"""

from __future__ import annotations

import numpy as np

from batchpool.core.tensors.dtypes import Array
from batchpool.shm.columns import TensorColumn
from batchpool.shm.lane import Lane

# The place of the number among the sizes of a generator's outputs: its tokens are the first of
# them, and the only ones with a dynamic dimension.
_LENGTH = 0


def tokens_column(lane: Lane) -> TensorColumn:
    """The column of a generator's tokens."""
    return next(iter(lane.outputs.values()))


def lengths_of(lane: Lane) -> Array:
    """The number of tokens of each slot, u32 [slots]; a view of the lane."""
    lengths: Array = tokens_column(lane).sizes[:, _LENGTH]
    return lengths


class PublishedTokens:
    """The tokens of one row, whose slot was claimed just now and is not published yet.

    taken: the number of those that `new` has given.
    """

    def __init__(self, lane: Lane, slot: int) -> None:
        self._lane: Lane | None = lane
        self._lengths = lengths_of(lane)
        self._slot = slot
        self._values = tokens_column(lane).values[slot]
        self.taken = 0
        # What the row before left; the batcher clears it too, but only when it takes the row.
        self._lengths[slot] = 0

    @property
    def length(self) -> int:
        """The number of all so far. Whatever the slot says, no more than it holds, and never fewer
        than were given."""
        most = len(self._values)
        if self._lane is None:
            return most
        return max(self.taken, min(int(self._lengths[self._slot]), most))

    @property
    def waiting(self) -> int:
        """The number of those that were not given yet."""
        return self.length - self.taken

    def new(self) -> Array | None:
        """A copy [k, *token shape] of those that were not given yet; None if there are none."""
        n = self.waiting
        return self.take(n) if n > 0 else None

    def take(self, n: int) -> Array:
        """The next n of those that were not given yet, at most `waiting`."""
        taken = self.taken
        self.taken = taken + n
        return np.array(self._values[taken : taken + n])

    def all(self) -> Array:
        """A copy [length, *token shape]."""
        return np.array(self._values[: self.length])

    def finish_reason(self) -> str:
        """The reason of the end of a row that has ended well. Before `leave`."""
        assert self._lane is not None, "the slot is another row's"
        _, reasons = self._lane.outputs.values()
        reason: bytes = reasons.load(slice(self._slot, self._slot + 1))[0]
        return reason.decode(errors="replace")

    def leave(self) -> None:
        """Keep what is there as a copy: the slot may be another row's from now on."""
        if self._lane is not None:
            self._values, self._lane = self.all(), None
            self._lengths = self._lengths[:0].copy()  # nothing of the lane is referred to any more
