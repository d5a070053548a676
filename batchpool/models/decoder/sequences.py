"""Running sequences, and the slots of the KV cache that are free."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from batchpool.models.decoder.sampling import Sampling


@dataclass
class RunningSequence:
    """A sequence from `join` to `leave`.

    number: by which the worker knows it. slot: of the KV cache. ids: the tokens of the prompt and
    those made. kept: how many of them have keys and values in the slot, or get them by the call
    under way. ends_at: how many ids it has at most. stop_ids: tokens that end it. sampling: None
    for the likeliest token. decodes: nothing of its prompt is left for further calls. over: it
    needs no further token. is_tainted: its logits were no numbers, and so may be what its slot
    holds.
    """

    number: int
    slot: int
    ids: list[int]
    ends_at: int
    stop_ids: frozenset[int]
    sampling: Sampling | None
    kept: int = 0
    decodes: bool = False
    over: bool = False
    is_tainted: bool = False

    @property
    def rest(self) -> int:
        """The tokens without keys and values."""
        return len(self.ids) - self.kept

    @property
    def is_filled(self) -> bool:
        """True when the calls so far make all tokens that it may have."""
        return self.decodes and self.kept + 1 >= self.ends_at

    def append(self, token: int) -> bool:
        """Take the next token; True when it is one that ends the sequence."""
        self.ids.append(token)
        self.decodes = True
        is_end = token in self.stop_ids
        self.over = is_end or len(self.ids) >= self.ends_at
        return is_end


class FreeSlots:
    """The free slots of so many. The lowest is given out first, so that few of the slots below one
    that runs are free: the model decodes all of them."""

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots))

    def take(self) -> int:
        """A free slot. Raises IndexError when none is."""
        return heapq.heappop(self._free)

    def give(self, slot: int) -> None:
        heapq.heappush(self._free, slot)

    def __len__(self) -> int:
        return len(self._free)
