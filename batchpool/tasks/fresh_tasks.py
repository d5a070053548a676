"""New tasks that are still in memory, so that the claim that follows need not read them back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from batchpool.tasks.body_files import LONG_BYTES
from batchpool.tasks.record import NewTask

_MOST_BYTES = 16 * 2**20


class FreshTasks:
    """Tasks that were never claimed, by the numbers of their rows; as many as a bound of bytes
    allows. What is not here is read from the database."""

    def __init__(self) -> None:
        self._tasks: dict[int, NewTask] = {}
        self._bytes = 0

    def add(self, first: int, tasks: Iterable[NewTask]) -> None:
        """Keep tasks whose rows are numbered from `first` on."""
        for number, task in enumerate(tasks, first):
            if len(task.input) <= LONG_BYTES:
                self._tasks[number] = task
                self._bytes += len(task.input)
        if self._bytes > _MOST_BYTES:  # of a long queue, which is claimed from its other end
            self.clear()

    def take(self, numbers: Sequence[int]) -> list[NewTask] | None:
        """Remove the tasks of these rows and give them in their order; None where one of them is
        not here."""
        found = [self._tasks.pop(number, None) for number in numbers]
        tasks = [task for task in found if task is not None]
        self._bytes -= sum([len(task.input) for task in tasks])
        return tasks if len(tasks) == len(found) else None

    def clear(self) -> None:
        """Forget all of them, as where a transaction is undone: its numbers come again."""
        self._tasks.clear()
        self._bytes = 0
