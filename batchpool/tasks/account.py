"""Counts of the tasks in a store, kept up in memory, and who may add one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from batchpool.tasks.record import PutOutcome, TaskState


class Account:
    """Tasks by model and state, and open tasks by caller."""

    def __init__(self) -> None:
        self._tasks: Counter[tuple[str, TaskState]] = Counter()
        self._open_of: Counter[str] = Counter()
        self.open = 0

    def add(self, model: str, state: TaskState, caller: str, n: int = 1) -> None:
        """n tasks more, or fewer, of this model, state and caller."""
        self._tasks[model, state] += n
        if not self._tasks[model, state]:
            del self._tasks[model, state]
        if not state.has_ended:
            self.open += n
            self._open_of[caller] += n
            if not self._open_of[caller]:
                del self._open_of[caller]

    def move(
        self, model: str, caller: str, before: TaskState, after: TaskState, n: int = 1
    ) -> None:
        """n tasks have another state."""
        self.add(model, before, caller, -n)
        self.add(model, after, caller, n)

    def lack(self, caller: str, most: int) -> PutOutcome | None:
        """The limit that keeps a caller from another open task: FULL, SHARE_FULL, or None.

        most: open tasks of all callers. While others have some too, one caller gets half of them.
        """
        if self.open >= most:
            return PutOutcome.FULL
        own = self._open_of.get(caller, 0)
        if own < max(1, most // 2) or len(self._open_of) == 1:
            return None
        return PutOutcome.SHARE_FULL

    def has_open(self, caller: str) -> bool:
        """True if this caller has open tasks."""
        return caller in self._open_of

    def models(self) -> set[str]:
        """The models with open tasks."""
        return {model for model, state in self._tasks if not state.has_ended}

    def by_model(self) -> dict[str, dict[str, int]]:
        """{model: {state: count}} of all tasks, without zeros."""
        found: dict[str, dict[str, int]] = {}
        for (model, state), n in sorted(self._tasks.items()):
            found.setdefault(model, {})[state.label] = n
        return found

    def load(self, rows: Iterable[tuple[str, int, str, int]]) -> None:
        """Begin anew with (model, state, caller, count)."""
        self._tasks.clear()
        self._open_of.clear()
        self.open = 0
        for model, state, caller, n in rows:
            self.add(model, TaskState(state), caller, n)
