"""The supervisor's event loop: one thread, one epoll, a callback for each descriptor."""

from __future__ import annotations

import select
from collections.abc import Callable

Ready = tuple[int, Callable[[], None]]  # a readable descriptor and its callback


class EventLoop:
    """Calls the callback of each readable descriptor.

    Waiting is by epoll, since poll fails while the process has more descriptors than
    RLIMIT_NOFILE allows it, which may be lowered at any time.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}

    def add(self, fd: int, callback: Callable[[], None]) -> None:
        """Call `callback` whenever the descriptor is readable, until `remove`."""
        self._callbacks[fd] = callback
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        """Forget a descriptor; does nothing if it is not in the loop."""
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def wait(self, timeout_ms: float) -> list[Ready]:
        """Wait until descriptors are readable or the time is up; returns them for `dispatch`."""
        ready = self._epoll.poll(timeout_ms / 1000)
        return [(fd, self._callbacks[fd]) for fd, _ in ready]

    def dispatch(self, ready: list[Ready]) -> None:
        """Call the callbacks of these descriptors, but not of those removed meanwhile.

        The number of a descriptor that was closed may be that of another one by now, of which
        nothing has been heard: the callback must still be the one that was waited with.
        """
        for fd, callback in ready:
            if self._callbacks.get(fd) is callback:
                callback()
