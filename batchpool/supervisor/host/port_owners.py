"""The processes that listen on a TCP port, as far as /proc shows them.

Other users' processes are shown to root only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_LISTENS = "0A"


@dataclass(frozen=True)
class PortOwner:
    """A process that holds a listening socket. command: its command line."""

    pid: int
    command: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its name in messages: "nginx (pid 812)"."""
        return f"{os.path.basename(self.command[0].split(':')[0])} (pid {self.pid})"

    @property
    def is_batchpool(self) -> bool:
        """True for a front end or a supervisor, started as a script or as a module."""
        module = self.command.index("-m") + 1 if "-m" in self.command else 1
        words = [os.path.basename(word) for word in (*self.command[:2], *self.command[module:][:1])]
        return "batchpool" in words or "batchpool.frontend" in words

    @property
    def is_init(self) -> bool:
        """True for systemd, which holds sockets for the services it starts."""
        return self.pid == 1


def port_owners(port: int, proc: Path = Path("/proc")) -> list[PortOwner]:
    """The processes that hold a listening socket on this port, in order of their pids."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port, proc)}
    pids = sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdigit())
    return list(_holders(sockets, pids, proc)) if sockets else []


def _inodes(port: int, proc: Path) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        with suppress(OSError):  # a kernel without IPv6
            for line in (proc / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def _holders(sockets: set[str], pids: list[int], proc: Path) -> Iterator[PortOwner]:
    for pid in pids:
        with suppress(OSError):  # it has ended, or belongs to another user
            fds = (proc / str(pid) / "fd").iterdir()
            if any(_target(fd) in sockets for fd in fds):
                command = (proc / str(pid) / "cmdline").read_bytes().rstrip(b"\0")
                words = command.decode(errors="replace").split("\0")
                yield PortOwner(pid, tuple(words))


def _target(fd: Path) -> str:
    with suppress(OSError):
        return os.readlink(fd)
    return ""
