"""The supervisor's signals: they only enqueue, its loop acts on them.

SIGTERM, SIGINT   stop
SIGHUP            reload; when it comes because the terminal was closed, stop. Left alone
                  where it is ignored already, as under nohup
"""

from __future__ import annotations

import os
import signal
import socket


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

    def fileno(self) -> int:
        return self._wake_r.fileno()

    def clear(self) -> None:
        """Make `fileno` wait for the next one."""
        self._wake_r.recv(4096)

    def take(self) -> list[tuple[str, bool]]:
        """Those that came, in order: (name, whether it asks for a reload and not for the end)."""
        came, self._came[:] = self._came[:], []
        return [(signal.Signals(n).name, n == signal.SIGHUP and self._is_a_wish()) for n in came]

    def _is_a_wish(self) -> bool:
        return not self._had_terminal or _has_terminal()

    def close(self) -> None:
        """Give the signals back."""
        for sig, action in self._old.items():
            signal.signal(sig, action)
        signal.set_wakeup_fd(self._old_wakeup)
        self._wake_r.close()
        self._wake_w.close()


def _has_terminal() -> bool:
    """Whether this process has a terminal that is not hung up."""
    try:
        fd = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    os.close(fd)
    return True
