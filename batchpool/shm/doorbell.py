"""Doorbells: one eventfd per process, rung after every group of ring entries.

A bell is a hint that something may have changed; the ring counters are the truth. Whoever
waits on a bell clears it first and looks at the counters after, and every wait has an end.
"""

from __future__ import annotations

import os
import select
import time

_LONGEST_MS = 60_000.0  # every wait has an end
_POLL_MOST_MS = 2**31 - 1  # poll counts in an int
_SHORT_NS = 5_000_000  # below it whole milliseconds, in which poll counts, are too coarse
_SELECT_MOST_FD = 1024


class Doorbell:
    """An eventfd. `fd` is for poll, asyncio and for handing to other processes."""

    __slots__ = ("fd",)

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) if fd is None else fd

    def ring(self) -> None:
        """Wake the owner; rings add up to one wake-up."""
        try:  # noqa: SIM105 - contextlib.suppress costs as much as the ring itself
            os.eventfd_write(self.fd, 1)
        except BlockingIOError:
            pass  # 2**64 - 2 unheard rings: it is ringing already

    def clear(self) -> None:
        """Forget all rings so far. Look at the counters after this, not before."""
        try:  # noqa: SIM105
            os.eventfd_read(self.fd)
        except BlockingIOError:
            pass

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Waiter:
    """Waits on bells and sockets until one is readable or the time has come."""

    __slots__ = ("_fds", "_poll")

    def __init__(self, *fds: int) -> None:
        self._poll = select.poll()
        self._fds: list[int] = []
        for fd in fds:
            self.add(fd)

    def add(self, fd: int) -> None:
        self._poll.register(fd, select.POLLIN)
        self._fds.append(fd)

    def remove(self, fd: int) -> None:
        self._poll.unregister(fd)
        self._fds.remove(fd)

    def wait_ms(self, timeout_ms: float) -> list[int]:
        """The readable descriptors, none after `timeout_ms`; hang-ups count as readable."""
        return [fd for fd, _ in self._poll.poll(min(timeout_ms, _POLL_MOST_MS))]

    def wait_until(self, wake_at_ns: int) -> list[int]:
        """Waits until a CLOCK_MONOTONIC time in ns; short waits are exact to the microsecond."""
        left_ns = wake_at_ns - time.monotonic_ns()
        if 0 < left_ns < _SHORT_NS and max(self._fds) < _SELECT_MOST_FD:
            return select.select(self._fds, (), (), left_ns / 1e9)[0]
        return self.wait_ms(min(max(0.0, left_ns / 1e6), _LONGEST_MS))
