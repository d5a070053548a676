"""Those who wait for the ends of tasks: long polls, by the task's id."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from batchpool.control.task_messages import TaskResult

# Gets the result of a task that has ended; None where it has to be looked at.
Listener = Callable[[TaskResult | None], None]


class Ends:
    """Tells listeners when one of their tasks has ended."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Listener]] = {}

    def add(self, identifier: str, listener: Listener) -> None:
        """Tell this listener of the end of a task, from now on."""
        self._listeners.setdefault(identifier, []).append(listener)

    def remove(self, identifier: str, listener: Listener) -> None:
        """Tell it no more."""
        listeners = self._listeners.get(identifier, [])
        if listener in listeners:
            listeners.remove(listener)
            if not listeners:
                del self._listeners[identifier]

    @contextmanager
    def waiting(self, ids: Sequence[str]) -> Iterator[asyncio.Event]:
        """An event that the end of any of these tasks sets, from now on."""
        event = asyncio.Event()

        def listener(_: TaskResult | None) -> None:
            event.set()

        for identifier in ids:
            self.add(identifier, listener)
        try:
            yield event
        finally:
            for identifier in ids:
                self.remove(identifier, listener)

    def ids(self) -> list[str]:
        """The tasks whose end somebody waits for."""
        return list(self._listeners)

    def tell(self, ids: Iterable[str]) -> None:
        """These tasks have ended."""
        for identifier in ids:
            self.tell_result(identifier, None)

    def tell_result(self, identifier: str, result: TaskResult | None) -> None:
        """A task has ended with this result; None where it has to be looked at."""
        for listener in tuple(self._listeners.get(identifier, ())):
            listener(result)

    def is_awaited(self, identifier: str) -> bool:
        """True while somebody waits for the end of this task."""
        return identifier in self._listeners

    def tell_all(self) -> None:
        """Wake everybody: the process stops."""
        self.tell(list(self._listeners))
