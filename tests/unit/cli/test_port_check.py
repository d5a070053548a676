"""A port that is taken by a batchpool of another user, which /proc does not show."""

from __future__ import annotations

import http.server
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from batchpool.cli.port_check import port_state
from batchpool.core.errors import StartError
from batchpool.supervisor.host import listen
from batchpool.supervisor.host.port_owners import PortOwner
from tests.certificates import certificate

POOL = (200, {}, b'{"name":"batchpool"}')
WITH_KEYS = (401, {"WWW-Authenticate": 'Bearer realm="batchpool"'}, b'{"error":"","code":""}')
OTHER = (200, {"WWW-Authenticate": 'Basic realm="router"'}, b'{"name":"triton"}')
Reply = tuple[int, dict[str, str], bytes]


@contextmanager
def answering(reply: Reply, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """A server of one answer; its port."""

    class Answering(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = reply
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """The test's output is for the test."""

    server = http.server.HTTPServer(("127.0.0.1", 0), Answering)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(port: int) -> list[PortOwner]:
        return []

    monkeypatch.setattr(listen, "port_owners", nobody)


@pytest.mark.parametrize("reply", [POOL, WITH_KEYS])
def test_a_batchpool_is_known_by_its_answer(reply: Reply) -> None:
    with answering(reply) as port:
        assert port_state("127.0.0.1", port) == "in use (by a running batchpool)"


def test_anybody_else_is_a_fault() -> None:
    with answering(OTHER) as port, pytest.raises(StartError, match="is taken by another process"):
        port_state("127.0.0.1", port)


def test_a_batchpool_with_tls_is_asked_with_tls(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate(tmp_path))
    with answering(POOL, context) as port:
        assert port_state("127.0.0.1", port, tls=True) == "in use (by a running batchpool)"
