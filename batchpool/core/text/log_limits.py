"""Limits on the log: rate limits for repeated messages, and samples of requests.

`LogLimiter` lets the first few messages of each kind through; enough for the whole story of one
request, which may fail several batches. Further ones within a period are only counted, and the
count is logged once at the end of each period. A kind without a message for a period starts
anew.

Time is an argument, in seconds of any clock that does not go back.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar
from zlib import crc32

FIRST = 5
PERIOD_S = 10.0
_MOST_KINDS = 1000  # beyond that, new kinds are counted as one
_OTHERS = object()

Message = TypeVar("Message")


@dataclass
class _Kind(Generic[Message]):
    """The messages of one kind in the current period: how many were let through and held back."""

    since_s: float
    passed: int = 0
    held: int = 0
    last: Message | None = None


class LogLimiter(Generic[Message]):
    """Counts messages by kind, and says which of them are to be logged."""

    def __init__(self, first: int = FIRST, period_s: float = PERIOD_S) -> None:
        self._first = first
        self.period_s = period_s
        self._kinds: dict[Hashable, _Kind[Message]] = {}

    def place(self, kind: Hashable, now_s: float) -> int:
        """The place, from 1, of a new message among those of its kind that are logged.

        0 means that it is not to be logged; pass it to `hold` then. Call `due` first.
        """
        found = self._kinds.get(kind)
        if found is None:
            if len(self._kinds) >= _MOST_KINDS:
                kind = _OTHERS
            found = self._kinds.setdefault(kind, _Kind(now_s))
        if found.passed >= self._first:
            return 0
        found.passed += 1
        return found.passed

    def hold(self, kind: Hashable, message: Message) -> None:
        """Count a message whose place is 0; the last one of its kind is kept for the count."""
        found = self._kinds.get(kind) or self._kinds[_OTHERS]
        found.held += 1
        found.last = message

    def due(self, now_s: float) -> list[tuple[int, Message]]:
        """The counts whose period is over: (number held back, the last of them)."""
        return self._counts(lambda kind: now_s - kind.since_s >= self.period_s, now_s)

    def rest(self, now_s: float) -> list[tuple[int, Message]]:
        """All counts, for the last call."""
        return self._counts(lambda kind: True, now_s)

    def _counts(
        self, is_over: Callable[[_Kind[Message]], bool], now_s: float
    ) -> list[tuple[int, Message]]:
        counts = []
        for name, kind in list(self._kinds.items()):
            if not is_over(kind):
                continue
            if kind.last is None:
                del self._kinds[name]
                continue
            counts.append((kind.held, kind.last))
            kind.since_s, kind.held, kind.last = now_s, 0, None
            kind.passed = self._first  # the kind goes on: only its counts are logged
        return counts

    def is_holding(self) -> bool:
        """True while a count is yet to be logged."""
        return any(kind.held for kind in self._kinds.values())


class TraceSample:
    """A sample of requests that has the given share, 0 to 1, of them.

    A request with an id is chosen by the id alone, so that every process that knows the id
    decides alike. Of those without an id exactly the share is taken, by counting.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._below = share * 2**32
        self._due = 0.0

    def has(self, name: bytes) -> bool:
        """True if the request of this id is in the sample; b"" is a request without an id."""
        if name:
            return crc32(name) < self._below
        self._due += self._share
        if self._due < 1:
            return False
        self._due -= 1
        return True
