"""The pool's sockets: SO_REUSEPORT listeners of each front end, and the unix sockets.

The port is bound once without SO_REUSEPORT first, because with it the kernel would silently let a
second pool of the same user share the port. That socket never listens: connections that it took
would be reset when it is closed. Then each front end gets sockets of its own, over which the
kernel spreads connections evenly. The supervisor keeps a duplicate of each, so that a restarted
front end resets no connection that was still queued. Sockets may come from systemd instead
(`batchpool/supervisor/host/socket_activation.py`).
"""

from __future__ import annotations

import contextlib
import errno
import grp
import itertools
import socket
from collections.abc import Sequence
from typing import NamedTuple

from batchpool.control.stranger_channel import StrangerChannel
from batchpool.core.errors import StartError
from batchpool.supervisor.host.port_owners import PortOwner, port_owners
from batchpool.supervisor.host.unix_path import UnixPath

_BACKLOG = 4096
_EVERY = ("", "*")  # every address, of IPv6 and IPv4
_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class PortTaken(StartError):
    """Another process listens on the port. by: the processes, as far as /proc shows them."""

    def __init__(self, host: str, port: int, by: Sequence[PortOwner]) -> None:
        who = ", ".join(one.name for one in by) or "another process"
        super().__init__(
            f"port {port} on {host} is taken by {who}; stop that one or choose another with --port"
        )
        self.by = by


class TcpAddress(NamedTuple):
    """One address to listen on. both: an address of IPv6 that takes connections of IPv4 too."""

    family: socket.AddressFamily
    address: tuple[object, ...]
    both: bool = False


def listen_http(host: str, port: int, count: int) -> list[list[socket.socket]]:
    """Open listening sockets for `count` front ends: each gets one on every address of the host.

    StartError if that is not possible.
    """
    addresses = try_port(host, port)
    opened: list[list[socket.socket]] = []
    try:
        for _ in range(count):
            opened.append([])
            for address in addresses:
                listener = _socket(address)
                opened[-1].append(listener)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                listener.bind(address.address)
                listener.listen(_BACKLOG)
    except OSError as exc:
        for listener in itertools.chain(*opened):
            listener.close()
        raise _cannot_listen(host, port, exc) from exc
    return opened


def try_port(host: str, port: int) -> list[TcpAddress]:
    """The addresses of a host on which this process could listen; opens no listening socket.

    An address of a name that this machine does not have (::1 of localhost, without IPv6) is left
    out. Raises StartError if there is none, or if another process has one of them.
    """
    usable: list[TcpAddress] = []
    absent: OSError | None = None
    for address in _addresses(host, port):
        try:
            with _socket(address) as probe:
                probe.bind(address.address)
        except OSError as exc:
            if exc.errno not in _ABSENT:
                raise _cannot_listen(host, port, exc) from exc
            absent = exc
        else:
            usable.append(address)
    if host in _EVERY and usable[1:]:
        usable = usable[:1]  # IPv6 takes IPv4 too
    if not usable and absent is not None:
        raise _cannot_listen(host, port, absent) from absent
    return usable


def _socket(address: TcpAddress) -> socket.socket:
    sock = socket.socket(address.family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if address.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not address.both)
    return sock


def _addresses(host: str, port: int) -> list[TcpAddress]:
    if host in _EVERY:
        both = TcpAddress(socket.AF_INET6, ("::", port), True)
        return [both, TcpAddress(socket.AF_INET, ("0.0.0.0", port))]
    if host == "::":
        return [TcpAddress(socket.AF_INET6, ("::", port), True)]
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as exc:
        raise StartError(f"cannot listen on host {host!r}: {exc.strerror}") from exc
    return list(dict.fromkeys(TcpAddress(entry[0], entry[4]) for entry in found))


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
        self._path = UnixPath(path, "the control socket", "--socket")
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._path.listen(self.sock, 128)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)  # nobody connects from here on
        close_waiting(self.sock)
        self.sock.close()
        self._path.release()


class HttpUnixSocket:
    """The unix socket on which all front ends answer HTTP: beside the TCP port, or instead of it.

    mode: of its file, in octal digits. group: who may connect beside the pool's own user; "" for
    the pool's own group. Raises StartError as `UnixPath`, and for a group that does not exist.
    """

    def __init__(self, path: str, mode: str, group: str) -> None:
        try:
            gid = grp.getgrnam(group).gr_gid if group else -1
        except KeyError:
            raise StartError(f"uds_group = {group!r}: there is no such group") from None
        self._path = UnixPath(path, "the unix socket of HTTP", "--uds")
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._path.listen(self.sock, _BACKLOG, mode=int(mode, 8), gid=gid)

    def close(self) -> None:
        self.sock.close()
        self._path.release()


class TaskSocket:
    """The unix socket of the task process, for front ends and the command line: only root and the
    pool's user may connect. Raises StartError as `UnixPath`."""

    def __init__(self, path: str) -> None:
        self._path = UnixPath(path, "the socket of the tasks", "--socket")
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._path.listen(self.sock, 128)

    def close(self) -> None:
        self.sock.close()
        self._path.release()


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
