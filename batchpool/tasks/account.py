"""Counts of the tasks in a store, kept up in memory, and who may add one.

What one may have is counted by origin: a caller can make up names, but no origins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from batchpool.tasks.byte_shares import ByteShares
from batchpool.tasks.record import PutOutcome, TaskState


class Account:
    """Tasks by model and state, open tasks by origin. shares: bytes by origin."""

    def __init__(self) -> None:
        self._tasks: Counter[tuple[str, TaskState]] = Counter()
        self._open_of: Counter[str] = Counter()
        self.shares = ByteShares()
        self.open = 0

    def add(self, model: str, state: TaskState, origin: str, n: int = 1) -> None:
        """n tasks more, or fewer, of this model, state and origin."""
        self._tasks[model, state] += n
        if not self._tasks[model, state]:
            del self._tasks[model, state]
        if not state.has_ended:
            self.open += n
            self._open_of[origin] += n
            if not self._open_of[origin]:
                del self._open_of[origin]

    def move(
        self, model: str, origin: str, before: TaskState, after: TaskState, n: int = 1
    ) -> None:
        """n tasks have another state."""
        self.add(model, before, origin, -n)
        self.add(model, after, origin, n)

    def lack(self, origin: str, most: int) -> PutOutcome | None:
        """The limit that keeps an origin from another open task: FULL, SHARE_FULL, or None.

        most: open tasks of all origins. While others have some too, one gets half of them.
        """
        if self.open >= most:
            return PutOutcome.FULL
        own = self._open_of.get(origin, 0)
        if own < max(1, most // 2) or len(self._open_of) == 1:
            return None
        return PutOutcome.SHARE_FULL

    def queued(self, model: str) -> int:
        """The tasks of a model that wait, for their turn or for their time."""
        return self._tasks.get((model, TaskState.QUEUED), 0)

    def models(self) -> set[str]:
        """The models with open tasks."""
        return {model for model, state in self._tasks if not state.has_ended}

    def by_model(self) -> dict[str, dict[str, int]]:
        """{model: {state: count}} of all tasks, without zeros."""
        found: dict[str, dict[str, int]] = {}
        for (model, state), n in sorted(self._tasks.items()):
            found.setdefault(model, {})[state.label] = n
        return found

    def load(self, rows: Iterable[tuple[str, int, str, int, int]]) -> None:
        """Begin anew with (model, state, origin, count, bytes)."""
        self._tasks.clear()
        self._open_of.clear()
        self.shares.clear()
        self.open = 0
        for model, state, origin, n, size in rows:
            self.add(model, TaskState(state), origin, n)
            self.shares.add(origin, size)
