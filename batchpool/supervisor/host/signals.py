"""The supervisor's signals: they only enqueue, its loop acts on them.

SIGTERM, SIGINT   stop
SIGHUP            reload; when it comes because the terminal was closed, stop. Left alone
                  where it is ignored already, as under nohup

Until `Signals` takes over, while configuration and models are read, SIGTERM and SIGINT end the
process as they end any; SIGHUP, an order to a pool that is not there yet, is kept for it.
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

_LOOKS, _BETWEEN_LOOKS_S = 10, 0.01


class _EarlyHangups:
    """SIGHUP before there are `Signals`: kept; the end of the terminal ends the process."""

    def __init__(self) -> None:
        self.came: list[int] = []
        self.had_terminal = _has_terminal()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if _is_a_wish(self.had_terminal):
            self.came.append(number)
        else:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGHUP)


@contextmanager
def hangups_kept() -> Iterator[None]:
    """Keep SIGHUP for the `Signals` that are made meanwhile, unless it is ignored."""
    before = signal.getsignal(signal.SIGHUP)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _EarlyHangups())
    try:
        yield
    finally:
        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, before)


class Signals:
    """Takes the signals of this process; `fileno` is readable when one came."""

    def __init__(self) -> None:
        self._came: list[int] = []
        self._wake_r, self._wake_w = socket.socketpair()
        self._wake_r.setblocking(False)
        self._wake_w.setblocking(False)
        self._had_terminal = _has_terminal()
        self._old_wakeup = signal.set_wakeup_fd(self._wake_w.fileno(), warn_on_full_buffer=False)
        mine = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            mine.append(signal.SIGHUP)
        self._old = {
            sig: signal.signal(sig, lambda number, frame: self._came.append(number)) for sig in mine
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
        """Make `fileno` wait for the next one."""
        self._wake_r.recv(4096)

    def take(self) -> list[tuple[str, bool]]:
        """Those that came, in order: (name, whether it asks for a reload and not for the end)."""
        came, self._came[:] = self._came[:], []
        return [
            (signal.Signals(n).name, n == signal.SIGHUP and _is_a_wish(self._had_terminal))
            for n in came
        ]

    def close(self) -> None:
        """Give the signals back."""
        for sig, action in self._old.items():
            signal.signal(sig, action)
        signal.set_wakeup_fd(self._old_wakeup)
        self._wake_r.close()
        self._wake_w.close()


def _is_a_wish(had_terminal: bool) -> bool:
    """Whether SIGHUP was sent by somebody, and not by the end of the terminal there was.

    The kernel sends it a moment before that terminal is gone: one that is there is looked at again.
    """
    if had_terminal:
        for _ in range(_LOOKS):
            if not _has_terminal():
                return False
            time.sleep(_BETWEEN_LOOKS_S)
    return True


def _has_terminal() -> bool:
    """Whether this process has a terminal that is not hung up, as far as can be seen."""
    try:
        fd = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as exc:
        return is_shortage(exc)  # a signal is not taken for the end only since no file is to be had
    os.close(fd)
    return True
