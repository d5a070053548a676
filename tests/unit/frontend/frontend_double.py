"""A front end without its process: in memory (`edge`), and on a loopback port (`serving`)."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx
from starlette.applications import Starlette

from batchpool.client.loop import ClientLoop
from batchpool.frontend.asgi.app import build_app
from batchpool.frontend.dashboard.broadcaster import Broadcaster
from batchpool.frontend.dashboard.sampler import Sampler
from batchpool.frontend.fast.protocol import fast_protocol
from batchpool.frontend.http.acceptor import Accepted, Acceptor
from batchpool.frontend.http.background import BackgroundThread
from batchpool.frontend.http.connection import Connection
from batchpool.frontend.http.connection_limits import ConnectionLimits
from batchpool.frontend.http.loop_scheduler import LoopScheduler
from batchpool.frontend.http.read_turns import ReadTurns
from batchpool.frontend.parser.process import ParserProcess
from batchpool.frontend.server import Server
from batchpool.frontend.service.gpu_metrics import Gpus
from batchpool.frontend.service.metadata import package_version
from batchpool.frontend.service.pool_view import PoolView
from batchpool.model import Model
from batchpool.shm.stats.counters import Counters
from batchpool.shm.stats.flight_recorder import FlightRecorder
from tests.unit.counters import new_counters
from tests.unit.frontend.loops import until
from tests.unit.frontend.pool_double import PoolDouble


@dataclass
class Edge:
    """A front end's parts, and an HTTP client that calls its application in memory."""

    pool: PoolDouble
    client_loop: ClientLoop
    view: PoolView
    broadcaster: Broadcaster
    counters: Counters
    parser: ParserProcess
    app: Starlette
    http: httpx.AsyncClient


@asynccontextmanager
async def edge(*models: type[Model], **facts: Any) -> AsyncIterator[Edge]:
    async with PoolDouble(*models, **facts) as pool:
        client_loop = ClientLoop(pool.session)
        counters = new_counters(1, *pool.session.models)
        gpus, background, scrapes = Gpus(), BackgroundThread(), BackgroundThread()
        parser = ParserProcess()
        sampler = Sampler(
            pool.session, counters, FlightRecorder(), gpus, scrapes, package_version()
        )
        broadcaster = Broadcaster(sampler)
        view = PoolView(
            client_loop,
            counters,
            gpus,
            background,
            scrapes,
            parser,
            on_stop=lambda: broadcaster.end("the server is shutting down"),
        )
        app = build_app(view, broadcaster if pool.session.server["page"] else None)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://pool") as http:
            yield Edge(pool, client_loop, view, broadcaster, counters, parser, app, http)
        client_loop.close()
        background.close()
        scrapes.close()
        parser.close()


@dataclass
class Site:
    """A front end on a port."""

    server: Server
    address: tuple[str, int]
    ended: asyncio.Task[None]

    @property
    def connections(self) -> int:
        return len(self.server.server_state.connections) + self.server.acceptor.size

    @property
    def under_way(self) -> int:
        """Requests whose headers are complete and whose answer is not."""
        connections: set[Any] = self.server.server_state.connections
        cycles = [connection.cycle for connection in connections]
        return sum(cycle is not None and not cycle.response_complete for cycle in cycles)


class _PromptAcceptor(Acceptor):
    """It gives connections a protocol before they have sent anything."""

    def _await_bytes(self, accepted: Accepted) -> None:
        self._await_turn(accepted)


class _PromptServer(Server):
    """It stops without uvicorn's two pauses, of 0.1 s each, where no connection is left."""

    _acceptor_class = _PromptAcceptor

    async def main_loop(self) -> None:
        ticks = 0
        while not await self.on_tick(ticks):
            ticks += 1
            await asyncio.sleep(0.002)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
        for listener in sockets or []:
            listener.close()


@asynccontextmanager
async def serving(
    of: Edge,
    limits: ConnectionLimits | None = None,
    drain_s: float = 5.0,
    *,
    fast: bool = True,
) -> AsyncIterator[Site]:
    """Serve an edge on loopback; stopped at the end, with at most drain_s to do so."""
    road = fast_protocol(of.view) if fast else Connection
    attributes = {
        "limits": limits or ConnectionLimits(), "memory": of.view.memory, "turns": ReadTurns(),
        "scheduler": LoopScheduler(),
    }  # fmt: skip
    protocol = type("Limited", (road,), attributes)
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    server = _PromptServer(of.app, drain_s=drain_s, give_up=of.client_loop.close, protocol=protocol)
    ended = asyncio.create_task(server.run_on(listener))
    try:
        await until(lambda: server.started or ended.done(), "the server serves")
        yield Site(server, address, ended)
    finally:
        if not server.should_exit:
            server.stop()
        await ended


@dataclass
class RawAnswer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def object(self) -> Any:
        return json.loads(self.body)

    @property
    def refused(self) -> tuple[int, str]:
        """Status and code of a refusal that is as every refusal must be."""
        assert self.headers["content-type"] == "application/json"
        found = self.object
        assert isinstance(found["error"], str)
        assert found["error"]
        return self.status, found["code"]


class Caller:
    """One connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, raw: bytes) -> None:
        self.writer.write(raw)
        await self.writer.drain()

    async def answer(self, *, has_body: bool = True) -> RawAnswer:
        """The next answer; its length must be announced."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        length = int(headers["content-length"]) if has_body else 0
        return RawAnswer(int(head[0].split()[1]), headers, await self.reader.readexactly(length))

    async def ended(self) -> bytes:
        """All bytes until the server closes the connection."""
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""


@asynccontextmanager
async def calling(site: Site, **options: Any) -> AsyncIterator[Caller]:
    reader, writer = await asyncio.open_connection(*site.address, limit=1 << 25, **options)
    try:
        yield Caller(reader, writer)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def request(
    path: str, body: bytes = b"", method: str = "POST", headers: dict[str, str] | None = None
) -> bytes:
    """A request with Content-Length, as bytes."""
    fields = {"Host": "pool", "Content-Length": str(len(body)), **(headers or {})}
    lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in fields.items() if v)]
    return "\r\n".join([*lines, "", ""]).encode() + body


def chunk(piece: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(piece), piece)


async def gathered(calls: list[Awaitable[Any]]) -> list[Any]:
    return list(await asyncio.gather(*calls))
