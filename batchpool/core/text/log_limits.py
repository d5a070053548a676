"""Repeats: which of many equal messages are said, and when the others are counted.

Of each kind the first few are said; enough for one request's whole story, which may fail
several batches. What comes after them within a period is only counted, and the count is said
once at the end of each period. A kind that was silent for a period starts anew.

Pure: time is an argument, in seconds of any clock that does not go back.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

FIRST = 5
PERIOD_S = 10.0
_MOST_KINDS = 1000  # beyond that, new kinds count as one
_OTHERS = object()

Message = TypeVar("Message")


@dataclass
class _Kind(Generic[Message]):
    since_s: float
    said: int = 0
    held: int = 0
    last: Message | None = None


class LogLimiter(Generic[Message]):
    """Counts messages by kind."""

    def __init__(self, first: int = FIRST, period_s: float = PERIOD_S) -> None:
        self._first = first
        self.period_s = period_s
        self._kinds: dict[Hashable, _Kind[Message]] = {}

    def place(self, kind: Hashable, now_s: float) -> int:
        """The place of a new message among those of its kind that are said, from 1; 0: `hold` it.

        Ask for `due` first.
        """
        found = self._kinds.get(kind)
        if found is None:
            if len(self._kinds) >= _MOST_KINDS:
                kind = _OTHERS
            found = self._kinds.setdefault(kind, _Kind(now_s))
        if found.said >= self._first:
            return 0
        found.said += 1
        return found.said

    def hold(self, kind: Hashable, message: Message) -> None:
        """A message that `place` did not let through; the last one is kept for the count."""
        found = self._kinds.get(kind) or self._kinds[_OTHERS]
        found.held += 1
        found.last = message

    def due(self, now_s: float) -> list[tuple[int, Message]]:
        """The counts whose period is over: (how many were held, the last of them)."""
        return self._counts(lambda kind: now_s - kind.since_s >= self.period_s, now_s)

    def rest(self, now_s: float) -> list[tuple[int, Message]]:
        """All counts, when nobody will ask again."""
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
            kind.said = self._first  # it goes on: only the counts are said
        return counts

    def is_holding(self) -> bool:
        """Whether a count is yet to be said."""
        return any(kind.held for kind in self._kinds.values())
