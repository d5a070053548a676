"""The supervisor's event loop: one thread, one poll, a callback for each descriptor."""

from __future__ import annotations

import select
from collections.abc import Callable


class EventLoop:
    """Calls the callback of each readable descriptor."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._callbacks: dict[int, Callable[[], None]] = {}

    def add(self, fd: int, callback: Callable[[], None]) -> None:
        """Call `callback` whenever the descriptor is readable, until `remove`."""
        self._callbacks[fd] = callback
        self._poll.register(fd, select.POLLIN)

    def remove(self, fd: int) -> None:
        """Forget a descriptor; does nothing if it is not in the loop."""
        if self._callbacks.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def wait(self, timeout_ms: float) -> list[int]:
        """Wait until descriptors are readable or the time is up; returns the descriptors."""
        return [fd for fd, _ in self._poll.poll(timeout_ms)]

    def dispatch(self, ready: list[int]) -> None:
        """Call the callbacks of these descriptors, but not of those removed meanwhile."""
        for fd in ready:
            callback = self._callbacks.get(fd)
            if callback is not None:
                callback()
