"""A stand-in for systemd, which receives a service's messages and holds its sockets."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from tests.process.pool_under_test import Pool, process_state, until

VARIABLES = (
    "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES",
)  # fmt: skip

# Takes the place of itself, as systemd's child does before it runs the service: descriptors from 3
# on, and the pid that it keeps.
_PASS = """
import fcntl, os, sys
fds = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 100) for fd in sys.argv[1].split(",")]
for at, fd in enumerate(fds):
    os.dup2(fd, 3 + at)
    os.close(fd)
os.closerange(3 + len(fds), 100)
os.environ |= {"LISTEN_FDS": str(len(fds)), "LISTEN_PID": str(os.getpid()),
               "LISTEN_FDNAMES": sys.argv[2]}
os.execv(sys.argv[3], sys.argv[3:])
"""


class Ear:
    """A notify socket, and everything that was ever said to it. name: a path, or @NAME."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.messages: list[dict[str, str]] = []
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.setblocking(False)
        self._sock.bind("\0" + name[1:] if name[0] == "@" else name)

    def listen(self) -> list[dict[str, str]]:
        """All messages so far."""
        while True:
            try:
                raw = self._sock.recv(65536)
            except BlockingIOError:
                return self.messages
            self.messages.append(dict(line.split("=", 1) for line in raw.decode().split("\n")))

    def said(self, word: str) -> list[str]:
        """The values of one word, in order."""
        return [message[word] for message in self.listen() if word in message]

    def await_more(self, word: str, more: int = 1) -> None:
        """Wait until it is said so many times more."""
        enough = len(self.said(word)) + more
        until(lambda: len(self.said(word)) >= enough, f"more of {word}")

    def __enter__(self) -> Ear:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._sock.close()


def tcp_socket(port: int = 0, *, reuse: bool = False) -> socket.socket:
    """A listening socket as of ListenStream=127.0.0.1:PORT, with ReusePort= or without."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if reuse:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen(4096)
    return sock


def clients_socket(path: str) -> socket.socket:
    """A listening socket as of ListenSequentialPacket=."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.bind(path)
    sock.listen()
    return sock


def passing(socks: Sequence[socket.socket], names: str) -> dict[str, Any]:
    """Arguments of `start` for a pool that gets these sockets."""
    fds = [sock.fileno() for sock in socks]
    numbers = ",".join(map(str, fds))
    return {"wrapper": [sys.executable, "-c", _PASS, numbers, names], "fds": fds}


def assert_children_were_told_nothing(pool: Pool) -> None:
    """None of systemd's variables in the environment of any child."""
    children = [pid for pid in pool.processes() if process_state(pid)[1] == pool.pid]
    assert len(children) >= 3
    for pid in children:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            names = {entry.partition(b"=")[0].decode() for entry in environ.read().split(b"\0")}
        assert names & set(VARIABLES) == set()
        assert "PATH" in names, "it could be read"
