"""TLS on a front end's TCP sockets alone, and a handshake that does not come."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from batchpool.credentials.tls import server_context
from batchpool.frontend import server as server_module
from batchpool.frontend.fast.protocol import fast_protocol
from batchpool.frontend.server import Server
from tests.certificates import certificate
from tests.unit.frontend.frontend_double import Caller, edge, request
from tests.unit.frontend.http.test_gate import INFER, RAW, ROW
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine


@asynccontextmanager
async def over_tls(tls: ssl.SSLContext, path: Path) -> AsyncIterator[tuple[str, int]]:
    """A front end with a TCP socket and one at the path; its address."""
    async with edge(Affine) as it:
        listener = socket.create_server(("127.0.0.1", 0))
        unix = socket.socket(socket.AF_UNIX)
        unix.bind(str(path))
        address: tuple[str, int] = listener.getsockname()
        server = Server(
            it.app,
            drain_s=2,
            give_up=it.client_loop.close,
            protocol=fast_protocol(it.view),
            tls=tls,
        )
        ended = asyncio.create_task(server.run_on(listener, unix))
        try:
            await until(lambda: server.started or ended.done(), "the server serves")
            yield address
        finally:
            server.stop()
            await ended


@on_loop
async def test_tcp_is_tls_and_a_unix_socket_is_not(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    trusting = ssl.create_default_context(cafile=cert)
    path = tmp_path / "http"
    async with over_tls(server_context(cert, key), path) as address:
        roads = (
            await asyncio.open_connection(*address, ssl=trusting),
            await asyncio.open_unix_connection(str(path)),
        )
        for reader, writer in roads:
            caller = Caller(reader, writer)
            for _ in range(2):
                await caller.send(request(INFER, ROW, headers=RAW))
                assert (await caller.answer()).status == 200
            writer.close()


@on_loop
async def test_a_handshake_that_does_not_come_ends_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_HANDSHAKE_S", 0.1)
    async with over_tls(server_context(*certificate(tmp_path)), tmp_path / "http") as address:
        reader, writer = await asyncio.open_connection(*address)
        assert await Caller(reader, writer).ended() == b""
        writer.close()
