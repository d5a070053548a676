"""Bytes of kept tasks by origin, and the share of the store's bytes that one origin may have.

An origin is where tasks come from, which no caller can make up: a key, or an address with all the
names that its callers give themselves. Of the bytes that others leave of the store one origin may
have a part, three quarters unless the configuration says otherwise. So one that is alone has most
of the store, and each newcomer finds room, less with each other one that has its share (the dynamic
thresholds of Choudhury and Hahne, as in batchpool/frontend/http/memory_budget.py).
"""

from __future__ import annotations

from collections import Counter

RECORD_BYTES = 512  # of a task in a database, beside its bodies, about


def most_of_one(limit: int, others: int, share: float) -> int:
    """The most bytes that one origin may have. limit: of all. others: what is not its own."""
    return int(share * max(0, limit - others))


class ByteShares:
    """Bytes by origin; those who have none are forgotten."""

    def __init__(self) -> None:
        self._bytes: Counter[str] = Counter()

    def add(self, origin: str, more: int) -> None:
        """So many bytes more, or fewer, of this origin."""
        self._bytes[origin] += more
        if self._bytes[origin] <= 0:
            del self._bytes[origin]

    def of(self, origin: str) -> int:
        """The bytes of one origin."""
        return self._bytes.get(origin, 0)

    def largest(self) -> str:
        """The origin with the most bytes; "" where none has any."""
        return max(self._bytes, key=self._bytes.__getitem__, default="")

    def clear(self) -> None:
        """Forget all of them."""
        self._bytes.clear()

    def has_room(self, origin: str, more: int, kept: int, limit: int, share: float) -> bool:
        """True if an origin may have so many bytes more. kept: bytes of all, limit: the most of
        them. One that has none may have a task of any size."""
        if kept + more <= most_of_one(limit, kept, share):  # whoever has them
            return True
        own = self.of(origin)
        return not own or own + more <= most_of_one(limit, max(0, kept - own), share)
