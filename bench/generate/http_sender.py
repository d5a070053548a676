"""A process that sends its part of a load over HTTP and notes when each token came.

    python -m bench.generate.http_sender PORT PATH

A child that the run tells what to do. It reads event streams with httptools, on connections that
are used again, so that it takes little of the cores that it shares with the server.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from typing import Any

import httptools
import msgspec

from bench.generate.answers import Answer
from bench.generate.loads import Load, Request
from bench.generate.sending import TIMEOUT_S, obey_loads, parameters, sent


class _Event(msgspec.Struct):
    """The fields of an event that count here."""

    token: list[int] = []
    error: str | None = None


_decode = msgspec.json.Decoder(_Event).decode


class _Connection(asyncio.Protocol):
    """A keep-alive connection with one event stream at a time."""

    def __init__(self) -> None:
        self.transport: Any = None
        self._parser: Any = None
        self._rest = b""
        self._answer = Answer(0.0)
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    async def ask(self, request: bytes, answer: Answer) -> None:
        """Send a request and wait for the end of its stream. RuntimeError: it failed."""
        self._parser, self._rest, self._answer = httptools.HttpResponseParser(self), b"", answer
        self._ended = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        await asyncio.wait_for(self._ended, TIMEOUT_S)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except Exception as error:
            self._fail(f"{error.__cause__ or error}: {data[:200]!r}")

    def on_body(self, body: bytes) -> None:
        if (status := self._parser.get_status_code()) != 200:
            self._fail(f"{status}: {body[:200]!r}")
            return
        *events, self._rest = (self._rest + body).split(b"\n\n")
        now_s = time.perf_counter()
        for text in events:
            event = _decode(text.removeprefix(b"data: "))
            if event.error is not None:
                self._fail(f"a stream ended with {event.error}")
            self._answer.add(event.token, now_s)

    def on_message_complete(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"the connection was lost: {error}")

    def _fail(self, reason: str) -> None:
        if not self._ended.done():
            self._ended.set_exception(RuntimeError(reason))


async def send(port: int, path: str, load: Load) -> list[Answer]:
    free: list[_Connection] = []
    loop = asyncio.get_running_loop()

    async def ask(request: Request, answer: Answer) -> None:
        if free:
            connection = free.pop()
        else:
            _, connection = await loop.create_connection(_Connection, "127.0.0.1", port)
        body = json.dumps({"prompt": request.prompt, "parameters": parameters(request)})
        head = (
            f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        await connection.ask((head + body).encode(), answer)
        free.append(connection)

    return await sent(load, ask)


def main() -> None:
    port, path = int(sys.argv[1]), sys.argv[2]
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    obey_loads(lambda load: send(port, path, load))


if __name__ == "__main__":
    main()
