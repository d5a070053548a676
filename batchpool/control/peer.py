"""Leases: a process's right to write some words, ended by the kernel when the process dies.

A lease is over when the process's pidfd is readable or its control socket is closed,
whichever comes first: the socket alone would live on in a forked child, the pid alone would
keep a lane whose client closed it.
"""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass

from batchpool.core.text.escape import printable

_SO_PEERPIDFD = 77  # Linux 6.5; not in Python's socket module yet


@dataclass(frozen=True)
class Peer:
    """The credentials that the kernel reports for the process at the other end of a unix socket."""

    pid: int
    uid: int
    gid: int

    def text(self) -> str:
        """The process in words, for logs: its pid, its user and, where it can be read, its command
        name, which the process may have chosen itself."""
        try:
            with open(f"/proc/{self.pid}/comm", "rb") as comm:
                command = f", {printable(comm.read().decode(errors='replace').rstrip())}"
        except OSError:
            command = ""
        return f"(pid {self.pid}) of uid {self.uid}{command}"


def peer_of(sock: socket.socket) -> Peer:
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return Peer(*struct.unpack("3i", raw))


def pidfd_of(sock: socket.socket) -> int:
    """A pidfd of the process that connected; -1 where the kernel cannot give one.

    SO_PEERPIDFD has no race with a recycled pid; older kernels get pidfd_open.
    """
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4)
        return int(struct.unpack("i", raw)[0])
    except OSError:
        pass
    try:
        return os.pidfd_open(peer_of(sock).pid)
    except OSError:
        return -1
