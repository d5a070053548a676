"""The destination of log lines: a descriptor that is never waited for.

A log must not hold up the work: a pipe whose reader is gone or stopped, a stopped terminal, a
journal that is behind, or a full disk cost lines, nothing else. Pipes and terminals are opened once
more in non-blocking mode, for this process alone; a socket has a flag for it. A file is written
through a second descriptor, so that a library that closes or redirects the first does no harm.
"""

from __future__ import annotations

import os
import select
import socket
import stat
from collections.abc import Callable, Mapping
from functools import partial

# The most bytes of one write. A pipe takes PIPE_BUF at once or not at all, so that lines of several
# processes do not mix; the journal cuts lines at 48 KiB.
_PIPE_BYTES = select.PIPE_BUF
_MOST_BYTES = 32 * 1024


class LogSink:
    """Writes whole lines to a descriptor of this process. most_bytes: the limit of one line."""

    def __init__(self, fd: int) -> None:
        mode = os.fstat(fd).st_mode
        self.most_bytes = _PIPE_BYTES if stat.S_ISFIFO(mode) else _MOST_BYTES
        self._torn = False  # the last line was written without its end
        self._own: socket.socket | int | None = None  # a second descriptor of the same file
        if stat.S_ISSOCK(mode):
            sock = self._own = socket.socket(fileno=os.dup(fd))
            flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
            self._put: Callable[[bytes], int] = lambda raw: sock.send(raw, flags)
        elif stat.S_ISFIFO(mode) or os.isatty(fd):
            self._put = self._to_stream(fd)
        else:
            own = self._own = os.dup(fd)
            self._put = partial(os.write, own)

    def _to_stream(self, fd: int) -> Callable[[bytes], int]:
        """The write function of a pipe or terminal.

        Without the right to open it again, a write is only tried when poll reports room.
        """
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        try:
            own = self._own = os.open(f"/proc/self/fd/{fd}", flags)
        except OSError:
            poll = select.poll()
            poll.register(fd, select.POLLOUT)

            def put(raw: bytes) -> int:
                events = poll.poll(0)
                return os.write(fd, raw) if events and events[0][1] & select.POLLOUT else 0

            return put
        return partial(os.write, own)

    def close(self) -> None:
        """Close what was opened here; the descriptor itself belongs to the caller."""
        if isinstance(self._own, socket.socket):
            self._own.close()
        elif self._own is not None:
            os.close(self._own)
        self._own = None

    def write(self, lines: list[bytes]) -> bool:
        """Write the lines of one message; False if any of them is lost."""
        for group in self._groups(lines):
            if self._torn:
                group = b"\n" + group
            try:
                done = self._put(group)
            except OSError:
                return False
            self._torn = group[:done][-1:] not in (b"\n", b"") or (self._torn and not done)
            if done < len(group):
                return False
        return True

    def _groups(self, lines: list[bytes]) -> list[bytes]:
        """Join lines into writes below most_bytes; one byte is for the end of a torn line."""
        groups = [b""]
        for line in lines:
            if groups[-1] and len(groups[-1]) + len(line) >= self.most_bytes:
                groups.append(b"")
            groups[-1] += line
        return groups


def is_journal(fd: int, env: Mapping[str, str]) -> bool:
    """True when a descriptor is the socket of systemd's journal that $JOURNAL_STREAM names."""
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return env.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"
