"""Those who wait for the ends of tasks: long polls, by the task's id.

A task that this process has taken is open until it is told here that it has ended, so that nobody
has to ask the store before he waits. That holds where no other pool runs tasks of the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from batchpool.control.task_messages import TaskResult

# Gets the result of a task that has ended; None where it has to be looked at.
Listener = Callable[[TaskResult | None], None]


_OPEN_MOST = 100_000


class Ends:
    """Tells listeners when one of their tasks has ended. is_alone: every end of a task of the store
    is told here."""

    def __init__(self, *, is_alone: bool = False) -> None:
        self._listeners: dict[str, list[Listener]] = {}
        self._is_alone = is_alone
        self._principals: dict[str, str] = {}  # of open tasks

    def opened(self, identifier: str, principal: str) -> bool:
        """A task is about to be kept; before that, since it may end at once. principal: of its
        caller. True if that was not known: `tell` is due where it is not kept after all."""
        if not self._is_alone or len(self._principals) >= _OPEN_MOST:
            return False
        if identifier in self._principals:
            return False
        self._principals[identifier] = principal
        return True

    def is_open(self, identifier: str, principal: str) -> bool:
        """True if a task of this caller is open for certain."""
        return self._principals.get(identifier) == principal

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
            for listener in self.ended(identifier):
                listener(None)

    def ended(self, identifier: str) -> Sequence[Listener]:
        """A task has ended: those who wait for that, each of whom is to be told."""
        self._principals.pop(identifier, None)
        return tuple(self._listeners.get(identifier, ()))

    def tell_all(self) -> None:
        """Wake everybody: the process stops."""
        self._principals.clear()
        self.tell(list(self._listeners))
