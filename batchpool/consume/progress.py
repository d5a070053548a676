"""Which records of a partition have ended, and up to which one their offsets may be committed.

Records end in any order. A committed offset says that all records before it have ended, so it stays
before the first one that has not: what runs again after a death is what came behind it.
"""

from __future__ import annotations

from collections import deque


class PartitionProgress:
    """The records of one partition that are under way."""

    def __init__(self) -> None:
        self._begun: deque[int] = deque()  # offsets, rising, from the first that has not ended
        self._ended: set[int] = set()  # of these
        self._committed: int | None = None
        self._next: int | None = None  # behind the last record before the first of `_begun`

    def goes_on_at(self, offset: int) -> bool:
        """True if this offset is behind all that were fetched."""
        last = self._begun[-1] if self._begun else (self._next or 0) - 1
        return offset > last

    def begin(self, offset: int) -> None:
        """A record was fetched; offsets rise, with gaps where the broker dropped records."""
        assert not self._begun or offset > self._begun[-1], "records are fetched in order"
        self._begun.append(offset)

    def end(self, offset: int) -> None:
        """The result of a record, or its dead letter, is with the broker."""
        self._ended.add(offset)
        while self._begun and self._begun[0] in self._ended:
            first = self._begun.popleft()
            self._ended.remove(first)
            self._next = first + 1

    @property
    def under_way(self) -> int:
        """Records that have not ended."""
        return len(self._begun) - len(self._ended)

    def to_commit(self) -> int | None:
        """The offset to commit; None where it is the last one again."""
        return None if self._next == self._committed else self._next

    def committed(self, offset: int) -> None:
        """The broker has taken this offset."""
        self._committed = offset
