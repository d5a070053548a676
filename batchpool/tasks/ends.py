"""Those who wait for the ends of tasks: long polls, by the task's id."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager


class Ends:
    """Wakes waits when one of their tasks has ended."""

    def __init__(self) -> None:
        self._waits: dict[str, set[asyncio.Event]] = {}

    @contextmanager
    def waiting(self, ids: Sequence[str]) -> Iterator[asyncio.Event]:
        """An event that the end of any of these tasks sets, from now on."""
        event = asyncio.Event()
        for identifier in ids:
            self._waits.setdefault(identifier, set()).add(event)
        try:
            yield event
        finally:
            for identifier in ids:
                events = self._waits.get(identifier)
                if events is not None:
                    events.discard(event)
                    if not events:
                        del self._waits[identifier]

    def ids(self) -> list[str]:
        """The tasks whose end somebody waits for."""
        return list(self._waits)

    def tell(self, ids: Iterable[str]) -> None:
        """These tasks have ended."""
        for identifier in ids:
            for event in self._waits.get(identifier, ()):
                event.set()

    def tell_all(self) -> None:
        """Wake everybody: the process stops."""
        self.tell(list(self._waits))
