"""The pool's sockets: one SO_REUSEPORT listener per front end, and the unix control socket.

The port is bound once without SO_REUSEPORT first, because with it the kernel would silently let a
second pool of the same user share the port. That socket never listens: connections that it took
would be reset when it is closed. Then each front end gets a socket of its own, over which the
kernel spreads connections evenly. The supervisor keeps a duplicate of each, so that a restarted
front end resets no connection that was still queued. Sockets may come from systemd instead
(`batchpool/supervisor/host/socket_activation.py`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Sequence

from batchpool.control.stranger_channel import StrangerChannel
from batchpool.core.errors import StartError
from batchpool.supervisor.host.port_owners import PortOwner, port_owners
from batchpool.supervisor.host.socket_folder import open_lock, prepare_folder

_BACKLOG = 4096


class PortTaken(StartError):
    """Another process listens on the port. by: the processes, as far as /proc shows them."""

    def __init__(self, host: str, port: int, by: Sequence[PortOwner]) -> None:
        who = ", ".join(one.name for one in by) or "another process"
        super().__init__(
            f"port {port} on {host} is taken by {who}; stop that one or choose another with --port"
        )
        self.by = by


def listen_http(host: str, port: int, count: int) -> list[socket.socket]:
    """Open `count` listening sockets on one TCP address; StartError if that is not possible."""
    try_port(host, port)
    family, address = _resolve(host, port)
    listeners: list[socket.socket] = []
    for _ in range(count):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            listener.bind(address)
            listener.listen(_BACKLOG)
        except OSError as exc:
            for opened in (*listeners, listener):
                opened.close()
            raise _cannot_listen(host, port, exc) from exc
        listeners.append(listener)
    return listeners


def try_port(host: str, port: int) -> None:
    """Raise StartError if this process could not listen there; opens no listening socket."""
    family, address = _resolve(host, port)
    probe = socket.socket(family, socket.SOCK_STREAM)
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
    except OSError as exc:
        raise _cannot_listen(host, port, exc) from exc
    finally:
        probe.close()


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[object, ...]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as exc:
        raise StartError(f"cannot listen on host {host!r}: {exc.strerror}") from exc
    family, _, _, _, address = found[0]
    return family, address


def _cannot_listen(host: str, port: int, exc: OSError) -> StartError:
    if exc.errno == errno.EADDRINUSE:
        return PortTaken(host, port, port_owners(port))
    if exc.errno == errno.EACCES:
        text = f"no permission to listen on port {port} of {host}; ports below 1024 need root"
        return StartError(text)
    return StartError(f"cannot listen on port {port} of {host}: {exc.strerror}")


class ControlSocket:
    """The unix socket for local clients and the command line.

    A lock file beside it ensures that one pool serves it. Raises StartError if another pool does.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        folder = os.path.dirname(path) or "."
        try:
            prepare_folder(folder)
            self._lock = open_lock(path + ".lock")
        except OSError as exc:
            raise StartError(
                f"cannot make the control socket {path}: {exc.strerror};"
                " choose another place with --socket"
            ) from exc
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise StartError(
                f"another pool serves with the control socket {path};"
                " stop that one or choose another with --socket"
            ) from None
        self.sock = self._bind()

    def _bind(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            if os.path.lexists(self.path):
                if not stat.S_ISSOCK(os.lstat(self.path).st_mode):
                    raise StartError(f"{self.path} exists and is not a socket; it is left alone")
                os.unlink(self.path)  # of a dead pool, since the lock is held here
            mask = os.umask(0o177)
            try:
                sock.bind(self.path)
            finally:
                os.umask(mask)
            sock.listen(128)
        except OSError as exc:
            sock.close()
            raise StartError(f"cannot bind {self.path}: {exc.strerror}") from exc
        return sock

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)  # nobody connects from here on
        close_waiting(self.sock)
        self.sock.close()
        for path in (self.path, self.path + ".lock"):
            with contextlib.suppress(OSError):
                os.unlink(path)
        os.close(self._lock)


def close_waiting(listener: socket.socket) -> None:
    """Close the connections that wait in a socket, which may hold descriptors of strangers."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        StrangerChannel(connection).close()


class PassedSocket:
    """A control socket of systemd's: it is neither bound, locked nor unlinked here."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def close(self) -> None:
        self.sock.close()
