"""Sockets from systemd: which is which, what they decide, and what is refused."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from batchpool.core.config.schema import Config, ModelConfig
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.errors import StartError
from batchpool.supervisor.host.socket_activation import ActivatedSockets, take_sockets

PID = 7
PLACE = "/run/batchpool/batchpool.sock"


def tcp(host: str = "127.0.0.1") -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family)
    sock.bind((host, 0))
    sock.listen()
    return sock


def unix(path: str, kind: socket.SocketKind = socket.SOCK_SEQPACKET) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, kind)
    sock.bind(path)
    sock.listen()
    return sock


class Passing:
    """Descriptors one after another, as an exec with LISTEN_FDS leaves them."""

    def __init__(self) -> None:
        self._made: list[socket.socket] = []
        self.first_fd = 0
        self._left: set[int] = set()

    def __call__(self, *socks: socket.socket, names: str = "", pid: int = PID) -> ActivatedSockets:
        self.first_fd = max(map(int, os.listdir("/proc/self/fd"))) + 1
        for at, sock in enumerate(socks):
            os.dup2(sock.fileno(), self.first_fd + at, inheritable=True)
            sock.close()
        self.fds = range(self.first_fd, self.first_fd + len(socks))
        self.env = {"LISTEN_FDS": str(len(socks)), "LISTEN_PID": str(pid), "PATH": "/bin"}
        if names:
            self.env["LISTEN_FDNAMES"] = names
        return take_sockets(self.env, PID, self.first_fd)

    def open_fds(self) -> list[int]:
        return [fd for fd in self.fds if os.path.exists(f"/proc/self/fd/{fd}")]


@pytest.fixture
def passing() -> Iterator[Passing]:
    passing = Passing()
    yield passing
    assert passing.env == {"PATH": "/bin"}, "the variables are taken out, whatever comes of it"


def test_http_and_clients_are_told_apart_by_what_they_are(passing: Passing, tmp_path: Path) -> None:
    path = str(tmp_path / "clients")
    one, other = tcp(), tcp("::1")
    ports = one.getsockname()[1], other.getsockname()[1]
    activated = passing(one, unix(path), other)
    with ExitStack() as stack:
        stack.callback(activated.close)
        assert activated.urls("http") == [
            f"http://127.0.0.1:{ports[0]}",
            f"http://[::1]:{ports[1]}",
        ]
        assert activated.clients is not None
        assert activated.clients.getsockname() == path
        for sock in (*activated.http, activated.clients):
            assert not sock.getblocking()
            assert not sock.get_inheritable()
        config = activated.configured(CONFIG, PLACE).server
        assert (config.host, config.port) == ("127.0.0.1", ports[0])
        assert (config.socket, config.frontends) == (path, 2)
    assert passing.open_fds() == []
    assert os.path.exists(path), "closing does not remove it"


CONFIG = Config(ServerConfig(host="0.0.0.0", port=9, max_clients=3), (ModelConfig("a:B"),))


def with_frontends(frontends: int) -> Config:
    return Config(ServerConfig(frontends=frontends), CONFIG.models)


@pytest.mark.parametrize(
    ("sockets", "asked", "frontends"),
    [(1, 0, 0), (1, 1, 1), (1, 4, 4), (2, 0, 2), (2, 2, 2), (0, 0, 0), (0, 3, 3)],
)
def test_one_socket_is_shared_and_several_are_one_for_each_front_end(
    passing: Passing, sockets: int, asked: int, frontends: int
) -> None:
    activated = passing(*(tcp() for _ in range(sockets)))
    assert activated.configured(with_frontends(asked), PLACE).server.frontends == frontends
    activated.close()


@pytest.mark.parametrize(("sockets", "asked"), [(2, 1), (2, 3), (3, 2)])
def test_a_number_that_does_not_fit_is_refused_with_both(
    passing: Passing, sockets: int, asked: int
) -> None:
    activated = passing(*(tcp() for _ in range(sockets)))
    sentence = rf"systemd passes {sockets} HTTP sockets, but there are {asked} front ends"
    with pytest.raises(StartError, match=sentence):
        activated.configured(with_frontends(asked), PLACE)
    activated.close()


def test_what_did_not_come_stays_as_configured(passing: Passing) -> None:
    http = passing(tcp())
    configured = http.configured(CONFIG, PLACE)
    assert configured.server.socket == PLACE, "by the port of the file, as `status` looks for it"
    assert configured.server.max_clients == 3
    assert configured.models == CONFIG.models
    http.close()


def test_a_stream_on_a_unix_socket_is_http_of_all_front_ends(
    passing: Passing, tmp_path: Path
) -> None:
    path = str(tmp_path / "http")
    alone = passing(unix(path, socket.SOCK_STREAM))
    assert alone.clients is None
    assert alone.has_http
    assert alone.urls("https") == [f"unix:{path}"]
    assert alone.listeners(2) == [[alone.http_unix[0]], [alone.http_unix[0]]]
    assert alone.configured(CONFIG, PLACE).server.port == 9
    alone.close()
    os.unlink(path)
    both = passing(unix(path, socket.SOCK_STREAM), tcp(), tcp())
    assert both.configured(with_frontends(2), PLACE).server.frontends == 2
    assert both.listeners(2) == [[sock, both.http_unix[0]] for sock in both.http]
    both.close()
    assert passing.open_fds() == []


def test_only_clients(passing: Passing, tmp_path: Path) -> None:
    path = str(tmp_path / "clients")
    clients = passing(unix(path), names="clients")
    server = clients.configured(CONFIG, PLACE).server
    assert (server.host, server.port, server.socket) == ("0.0.0.0", 9, path)
    assert clients.urls("http") == []
    assert not clients.has_http
    clients.close()


def test_sockets_for_another_process_are_not_ours(passing: Passing) -> None:
    sock = tcp()
    assert passing(sock, pid=PID + 1) == ActivatedSockets()
    (fd,) = passing.open_fds()
    os.close(fd)


def test_without_the_variables_there_is_nothing() -> None:
    assert take_sockets({}, PID) == ActivatedSockets()
    assert ActivatedSockets().configured(CONFIG, PLACE).server.port == 9


def test_a_number_that_is_none_is_refused() -> None:
    with pytest.raises(StartError, match=r"LISTEN_FDS = 'two': expected a number"):
        take_sockets({"LISTEN_FDS": "two", "LISTEN_PID": str(PID)}, PID)


def udp(_: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    return sock


def not_listening(_: str) -> socket.socket:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock


@pytest.mark.parametrize(
    ("make", "name", "sentence"),
    [
        (udp, "", r"^descriptor \d+ from systemd is of another type than .* ListenStream="),
        (
            lambda path: unix(path, socket.SOCK_STREAM),
            "clients",
            r"^the socket 'clients' from systemd is of another type .* ListenSequentialPacket=",
        ),
        (not_listening, "http", r"^the socket 'http' from systemd does not listen; .* Accept=no"),
        (lambda _: unix("\0bp-unit-test"), "x", r"has no path: everybody could connect to it"),
        (lambda _: tcp(), "clients", r"'clients' from systemd is a TCP socket; local clients"),
    ],
)
def test_what_is_neither_is_refused_and_everything_let_go(
    passing: Passing,
    tmp_path: Path,
    make: Callable[[str], socket.socket],
    name: str,
    sentence: str,
) -> None:
    with pytest.raises(StartError, match=sentence):
        passing(tcp(), make(str(tmp_path / "s")), names=f"http:{name}")
    assert passing.open_fds() == []


def test_a_descriptor_that_is_no_socket_is_refused() -> None:
    with open(os.devnull) as null:
        env = {"LISTEN_FDS": "1", "LISTEN_PID": str(PID)}
        with pytest.raises(StartError, match=r"from systemd is not a socket: Socket operation"):
            take_sockets(env, PID, null.fileno())


def test_two_sockets_of_clients_are_refused(passing: Passing, tmp_path: Path) -> None:
    with pytest.raises(StartError, match="systemd passes 2 sockets of local clients, not one"):
        passing(unix(str(tmp_path / "a")), unix(str(tmp_path / "b")))
    assert passing.open_fds() == []
