"""The order in which new connections are taken: origins that had fewest of late go first.

Each connection that is taken counts for its origin, e times less after each `_MEMORY_S`. A crowd
that connects without end has thousands, so a caller who comes with a few waits for none of them,
and crowds take turns with each other. Within an origin connections are taken in the order in which
they came.

All counts decay alike, so that the order of two of them stays as it is while nothing is taken. What
is kept is the logarithm of a count as it would be at the time 0, which rises by 1 in `_MEMORY_S`
where the count stays the same.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import Generic, TypeVar

_MEMORY_S = 5.0
_KEPT_ORIGINS = 4096  # of which something is known; others have had no connection

_Waiting = TypeVar("_Waiting")


class AcceptOrder(Generic[_Waiting]):
    """Connections that wait to be taken, of any number of origins."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[_Waiting]] = {}
        # One of each origin that waits: its count, the number of its coming, its name.
        self._next: list[tuple[float, int, str]] = []
        self._counts: dict[str, float] = {}  # by origin, the one served least recently first
        self._number = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def lone_origin(self) -> str | None:
        """The only origin whose connections wait; None where there is none, or another one."""
        return next(iter(self._waiting)) if len(self._waiting) == 1 else None

    def add(self, origin: str, waiting: _Waiting) -> None:
        """Let a connection of this origin wait behind its others."""
        self._size += 1
        queue = self._waiting.get(origin)
        if queue is not None:
            queue.append(waiting)
            return
        self._waiting[origin] = deque((waiting,))
        self._await_turn(origin)

    def take(self, now_s: float) -> _Waiting | None:
        """The connection that is next, which waits no longer; None if there is none."""
        if not self._next:
            return None
        _, _, origin = heapq.heappop(self._next)
        queue = self._waiting[origin]
        taken = queue.popleft()
        self._size -= 1
        self._count(origin, now_s / _MEMORY_S)
        if queue:
            self._await_turn(origin)
        else:
            del self._waiting[origin]
        return taken

    def give_up(self) -> list[_Waiting]:
        """Of the origin with most waiting connections the later half, which wait no longer."""
        if not self._waiting:
            return []
        queue = max(self._waiting.values(), key=len)
        given_up = [queue.pop() for _ in range(len(queue) // 2)]
        self._size -= len(given_up)
        return given_up

    def _count(self, origin: str, one: float) -> None:
        """Add a connection to the count. one: the logarithm of a count of 1 now."""
        before = self._counts.pop(origin, -math.inf)
        larger, smaller = (one, before) if one > before else (before, one)
        self._counts[origin] = larger + math.log1p(math.exp(smaller - larger))
        if len(self._counts) > _KEPT_ORIGINS:
            del self._counts[next(iter(self._counts))]

    def _await_turn(self, origin: str) -> None:
        self._number += 1
        count = self._counts.get(origin, -math.inf)
        heapq.heappush(self._next, (count, self._number, origin))
