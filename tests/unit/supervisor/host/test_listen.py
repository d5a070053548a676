"""The pool's port: one listener per front end, and no connection is taken that is not kept."""

from __future__ import annotations

import errno
import socket
import threading

import pytest

from batchpool.core.errors import StartError
from batchpool.supervisor.host.listen import listen_http
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
            for listener in listeners:
                listener.close()


def test_only_sockets_that_are_kept_ever_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    listened: list[int] = []

    class Recorded(socket.socket):
        def listen(self, backlog: int = 128, /) -> None:
            listened.append(self.fileno())
            super().listen(backlog)

    monkeypatch.setattr(socket, "socket", Recorded)
    listeners = listen_http("127.0.0.1", free_port(), 3)
    assert listened == [listener.fileno() for listener in listeners]
    for listener in listeners:
        listener.close()


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
    [first] = listen_http("127.0.0.1", free_port(), 1)
    port = first.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)) as connection:
        taken, _ = first.accept()
        taken.close()  # this end closes first: its side is left in TIME_WAIT
        assert connection.recv(1) == b""
    first.close()
    [second] = listen_http("127.0.0.1", port, 1)
    assert second.getsockname()[1] == port
    second.close()
    with pytest.raises(OSError) as refused:
        socket.create_connection(("127.0.0.1", port))
    assert refused.value.errno == errno.ECONNREFUSED
