"""The supervisor's signals. Handlers only enqueue; the supervisor's loop acts.

    SIGTERM, SIGINT   stop
    SIGHUP            reload; stop if it was sent because the terminal was closed. Not caught if it
                      is ignored already, as under nohup

Before `Signals` exists, while configuration and models are read, SIGTERM and SIGINT end the process
as by default; a SIGHUP that asks for a reload is kept for the pool.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from batchpool.shm.resource_errors import is_shortage

_CHECKS, _BETWEEN_CHECKS_S = 10, 0.01


class _EarlyHangups:
    """Handles SIGHUP before `Signals` exists: keeps it, or ends the process with its terminal."""

    def __init__(self) -> None:
        self.came: list[int] = []
        self.had_terminal = _has_terminal()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if _asks_for_reload(self.had_terminal):
            self.came.append(number)
        else:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGHUP)


@contextmanager
def hangups_kept() -> Iterator[None]:
    """Keep each SIGHUP for the `Signals` that is made in this context, unless SIGHUP is ignored."""
    before = signal.getsignal(signal.SIGHUP)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _EarlyHangups())
    try:
        yield
    finally:
        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, before)


class Signals:
    """Receives the signals of this process; `fileno` is readable when one came."""

    def __init__(self) -> None:
        self._came: list[int] = []
        self._wake_r, self._wake_w = socket.socketpair()
        self._wake_r.setblocking(False)
        self._wake_w.setblocking(False)
        self._had_terminal = _has_terminal()
        self._old_wakeup = signal.set_wakeup_fd(self._wake_w.fileno(), warn_on_full_buffer=False)
        caught = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            caught.append(signal.SIGHUP)
        self._old = {
            sig: signal.signal(sig, lambda number, frame: self._came.append(number))
            for sig in caught
        }
        early = self._old.get(signal.SIGHUP)
        if isinstance(early, _EarlyHangups):
            self._had_terminal = early.had_terminal
            self._came[:0] = early.came
            early.came.clear()
        if self._came:
            self._wake_w.send(b"\0")

    def fileno(self) -> int:
        return self._wake_r.fileno()

    def clear(self) -> None:
        """Make `fileno` unreadable until the next signal."""
        self._wake_r.recv(4096)

    def take(self) -> list[tuple[str, bool]]:
        """The signals since the last call, in order: (name, True for a reload or False)."""
        came, self._came[:] = self._came[:], []
        return [
            (signal.Signals(n).name, n == signal.SIGHUP and _asks_for_reload(self._had_terminal))
            for n in came
        ]

    def close(self) -> None:
        """Restore the signal actions from before."""
        for sig, action in self._old.items():
            signal.signal(sig, action)
        signal.set_wakeup_fd(self._old_wakeup)
        self._wake_r.close()
        self._wake_w.close()


def _asks_for_reload(had_terminal: bool) -> bool:
    """True when SIGHUP was sent by a process, False when by the end of the terminal.

    The kernel sends it a moment before the terminal is gone, so one that is there is checked again.
    """
    if had_terminal:
        for _ in range(_CHECKS):
            if not _has_terminal():
                return False
            time.sleep(_BETWEEN_CHECKS_S)
    return True


def _has_terminal() -> bool:
    """True when this process has a terminal that is not hung up."""
    try:
        fd = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as exc:
        return is_shortage(exc)  # without a free descriptor it is unknown; assume a terminal
    os.close(fd)
    return True
