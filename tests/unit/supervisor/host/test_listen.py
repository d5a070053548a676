"""The pool's port: one listener per front end, and no connection is taken that is not kept."""

from __future__ import annotations

import errno
import itertools
import socket
import stat
import threading
from pathlib import Path

import pytest

from batchpool.core.errors import StartError
from batchpool.supervisor.host.listen import HttpUnixSocket, listen_http
from tests.ports import free_port


class Caller:
    """Connects to a port as soon as that works."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connection: socket.socket | None = None
        self._over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over:
            try:
                self.connection = socket.create_connection(("127.0.0.1", self.port))
                return
            except ConnectionRefusedError:
                pass

    def end(self) -> socket.socket | None:
        self._thread.join(20)
        self._over = True
        return self.connection


def close(listeners: list[list[socket.socket]]) -> None:
    for listener in itertools.chain(*listeners):
        listener.close()


def test_a_connection_made_while_the_port_is_opened_is_kept() -> None:
    for _ in range(100):
        port = free_port()
        caller = Caller(port)
        listeners = listen_http("127.0.0.1", port, 2)
        connection = caller.end()
        assert connection is not None
        with connection:
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):  # neither reset nor closed
                connection.recv(1)
            close(listeners)


def test_only_sockets_that_are_kept_ever_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    listened: list[int] = []

    class Recorded(socket.socket):
        def listen(self, backlog: int = 128, /) -> None:
            listened.append(self.fileno())
            super().listen(backlog)

    monkeypatch.setattr(socket, "socket", Recorded)
    listeners = listen_http("127.0.0.1", free_port(), 3)
    assert listened == [listener.fileno() for (listener,) in listeners]
    close(listeners)


@pytest.mark.parametrize("shared", [False, True], ids=["plain", "SO_REUSEPORT"])
def test_a_port_that_somebody_listens_on_is_taken(shared: bool) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shared))
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        port = other.getsockname()[1]
        with pytest.raises(StartError, match=f"port {port} on 127.0.0.1 is taken"):
            listen_http("127.0.0.1", port, 2)


def test_a_port_with_connections_of_a_dead_pool_is_free() -> None:
    """Connections in TIME_WAIT do not keep the next pool out."""
    [[first]] = listen_http("127.0.0.1", free_port(), 1)
    port = first.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)) as connection:
        taken, _ = first.accept()
        taken.close()  # this end closes first: its side is left in TIME_WAIT
        assert connection.recv(1) == b""
    first.close()
    [[second]] = listen_http("127.0.0.1", port, 1)
    assert second.getsockname()[1] == port
    second.close()
    with pytest.raises(OSError) as refused:
        socket.create_connection(("127.0.0.1", port))
    assert refused.value.errno == errno.ECONNREFUSED


def names(listeners: list[list[socket.socket]]) -> list[list[str]]:
    """The addresses of each front end's sockets."""
    return [[str(sock.getsockname()[0]) for sock in of_one] for of_one in listeners]


_INTERFACES = Path("/proc/net/if_inet6")
HAS_IPV6 = _INTERFACES.exists() and f"{1:032x}" in _INTERFACES.read_text()
ipv6 = pytest.mark.skipif(not HAS_IPV6, reason="there is no ::1 here")


def reach(host: str, port: int) -> None:
    socket.create_connection((host, port), timeout=20).close()


@ipv6
def test_a_name_is_listened_on_at_all_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()

    v4 = (socket.AF_INET, 1, 6, "", ("127.0.0.1", port))
    found = [(socket.AF_INET6, 1, 6, "", ("::1", port, 0, 0)), v4, v4]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    listeners = listen_http("localhost", port, 2)
    assert names(listeners) == [["::1", "127.0.0.1"]] * 2
    close(listeners)


def test_an_address_that_the_machine_does_not_have_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    found = [
        (socket.AF_INET, 1, 6, "", ("203.0.113.1", port)),
        (socket.AF_INET, 1, 6, "", ("127.0.0.1", port)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    listeners = listen_http("name", port, 1)
    assert names(listeners) == [["127.0.0.1"]]
    close(listeners)
    del found[1]
    with pytest.raises(StartError, match=f"cannot listen on port {port} of name: Cannot assign"):
        listen_http("name", port, 1)


@ipv6
@pytest.mark.parametrize("host", ["", "*", "::"])
def test_every_address_is_of_both_families(host: str) -> None:
    port = free_port()
    listeners = listen_http(host, port, 2)
    assert names(listeners) == [["::"]] * 2
    reach("127.0.0.1", port)
    reach("::1", port)
    close(listeners)


@ipv6
def test_every_address_of_ipv4_is_of_no_other() -> None:
    port = free_port()
    listeners = listen_http("0.0.0.0", port, 1)
    reach("127.0.0.1", port)
    with pytest.raises(ConnectionRefusedError):
        reach("::1", port)
    close(listeners)


def test_a_unix_socket_has_its_mode_and_goes_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "http"
    listening = HttpUnixSocket(str(path), "620", "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o620
    with pytest.raises(StartError, match=r"another pool serves with the unix socket of HT"):
        HttpUnixSocket(str(path), "660", "")
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(path))
    listening.close()
    assert list(tmp_path.iterdir()) == []


def test_what_somebody_put_in_the_place_of_a_unix_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "http"
    listening = HttpUnixSocket(str(path), "620", "")
    path.unlink()
    path.write_text("precious")
    listening.close()
    assert path.read_text() == "precious"
    with pytest.raises(StartError, match=r"^cannot bind .*: AF_UNIX path too long"):
        HttpUnixSocket(str(tmp_path / ("x" * 200)), "660", "")


def test_a_dead_unix_socket_is_replaced_and_anything_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "http"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    HttpUnixSocket(str(path), "660", "").close()
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(path))
        alive.listen()
        with pytest.raises(StartError, match="another program listens on"):
            HttpUnixSocket(str(path), "660", "")
    path.unlink()
    path.write_text("precious")
    with pytest.raises(StartError, match="is not a socket; it is left alone"):
        HttpUnixSocket(str(path), "660", "")
    assert path.read_text() == "precious"
    path.unlink()
    with pytest.raises(StartError, match="uds_group = 'nobody-here': there is no such group"):
        HttpUnixSocket(str(path), "660", "nobody-here")
    assert list(tmp_path.iterdir()) == []
