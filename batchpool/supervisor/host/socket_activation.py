"""systemd's socket activation, sd_listen_fds(3), without its library.

Sockets come as descriptors from 3 on, $LISTEN_FDS of them, for the process $LISTEN_PID. Their kind
tells their use, in any order:

    TCP, listening                       HTTP: one for each front end, or one that all of them share
    unix SOCK_STREAM, listening          HTTP too, shared by all front ends
    unix SOCK_SEQPACKET, listening       local clients and the command line

They are never bound, unlinked or shut down here: connections wait in them while the pool restarts.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from dataclasses import dataclass, replace

from batchpool.core.config.schema import Config
from batchpool.core.errors import StartError

_FIRST_FD = 3
_VARIABLES = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
_CLIENTS = "clients"


@dataclass(frozen=True)
class ActivatedSockets:
    """The sockets that systemd passed. http: on TCP. http_unix: on unix sockets. clients: the one
    for local clients, or None."""

    http: tuple[socket.socket, ...] = ()
    clients: socket.socket | None = None
    http_unix: tuple[socket.socket, ...] = ()

    @property
    def has_http(self) -> bool:
        """True if HTTP is answered on these sockets, and on none of the configuration's port."""
        return bool(self.http or self.http_unix)

    def listeners(self, frontends: int) -> list[list[socket.socket]]:
        """The HTTP sockets of each front end: one of its own or a shared one on TCP, and all unix
        sockets."""
        tcp = list((self.http * frontends)[:frontends])
        return [[*tcp[i : i + 1], *self.http_unix] for i in range(frontends)]

    def urls(self, scheme: str) -> list[str]:
        """The addresses of the HTTP sockets, each once. scheme: of TCP."""
        tcp = (_url(scheme, *sock.getsockname()[:2]) for sock in self.http)
        return list(dict.fromkeys([*tcp, *(f"unix:{_path(sock)}" for sock in self.http_unix)]))

    def configured(self, config: Config, socket_path: str) -> Config:
        """The configuration with host, port and control socket path of these sockets.

        They also decide the number of front ends unless it is configured. socket_path: of the
        control socket if systemd passed none. Raises StartError when the numbers of sockets and
        front ends do not match.
        """
        server = replace(config.server, socket=socket_path)
        if self.clients is not None:
            server = replace(server, socket=os.fsdecode(self.clients.getsockname()))
        if self.http:
            many, asked = len(self.http), server.frontends
            if asked and many not in (1, asked):
                raise StartError(
                    f"systemd passes {many} HTTP sockets, but there are {asked} front ends;"
                    " expected one socket for all of them or one for each: give the socket unit"
                    f" ReusePort=yes and {asked} times its line ListenStream=, or set frontends"
                )
            host, port = self.http[0].getsockname()[:2]
            frontends = asked if many == 1 else many
            server = replace(server, host=host, port=port, frontends=frontends)
        return Config(server, config.models)

    def close(self) -> None:
        """Close this process's descriptors; systemd keeps its own."""
        for sock in (*self.http, *self.http_unix):
            sock.close()
        if self.clients is not None:
            self.clients.close()


def take_sockets(
    env: MutableMapping[str, str], pid: int, first_fd: int = _FIRST_FD
) -> ActivatedSockets:
    """The sockets passed to process `pid`; removes their variables from the environment.

    Raises StartError for a descriptor that is neither kind of socket, and for a second socket of
    local clients.
    """
    count, whose, names = (env.pop(name, "") for name in _VARIABLES)
    if whose != str(pid):
        return ActivatedSockets()
    if not count.isdecimal():
        raise StartError(f"LISTEN_FDS = {count!r}: expected a number of sockets")
    named = names.split(":") if names else []
    http: list[socket.socket] = []
    http_unix: list[socket.socket] = []
    clients: list[socket.socket] = []
    try:
        for i in range(int(count)):
            sock = _listening_socket(first_fd + i, named[i] if i < len(named) else "")
            if sock.family != socket.AF_UNIX:
                http.append(sock)
            else:
                (http_unix if sock.type == socket.SOCK_STREAM else clients).append(sock)
        if len(clients) > 1:
            raise StartError(f"systemd passes {len(clients)} sockets of local clients, not one")
    except StartError:
        for sock in (*http, *http_unix, *clients):
            sock.close()
        raise
    return ActivatedSockets(tuple(http), clients[0] if clients else None, tuple(http_unix))


def _listening_socket(fd: int, name: str) -> socket.socket:
    who = f"the socket {name!r} from systemd" if name else f"descriptor {fd} from systemd"
    try:
        sock = socket.socket(fileno=fd)
        listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as exc:
        raise StartError(f"{who} is not a socket: {exc.strerror}") from None
    sock.set_inheritable(False)
    unix = sock.family == socket.AF_UNIX
    stream, packets = socket.SOCK_STREAM, socket.SOCK_SEQPACKET
    expected = (packets,) if name == _CLIENTS else (stream, packets) if unix else (stream,)
    problem = ""
    if sock.family not in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
        problem = "is neither a TCP nor a unix socket"
    elif sock.type not in expected and not (name == _CLIENTS and not unix):
        clients = "ListenSequentialPacket=, for local clients"
        wanted = clients if name == _CLIENTS else "ListenStream=, for HTTP"
        problem = f"is of another type than those of {wanted}"
    elif not listens:
        problem = "does not listen; expected Accept=no in its unit"
    elif unix and not _path(sock):
        problem = "has no path: everybody could connect to it"
    elif name == _CLIENTS and not unix:
        problem = "is a TCP socket; local clients connect over ListenSequentialPacket= with a path"
    if problem:
        sock.close()
        raise StartError(f"{who} {problem}")
    # The event loops never wait in accept.
    sock.setblocking(False)
    return sock


def _path(sock: socket.socket) -> str:
    """The path of a unix socket; "" for one without, or with an abstract name."""
    address = sock.getsockname()
    return address if isinstance(address, str) else ""


def _url(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
