"""The socket of the task process: many askers, and many questions of each in flight."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from batchpool.control.edges import TO_TASKS, ToTasks
from batchpool.control.frames import FrameReader, frame_of
from batchpool.tasks.answers import TaskAnswers

_LOG = logging.getLogger("batchpool.tasks")


class _Connection(asyncio.Protocol):
    """One asker. It is trusted: the socket's file is for the pool's user and root alone."""

    def __init__(self, server: TaskServer) -> None:
        self._server = server
        self._frames = FrameReader(TO_TASKS)
        self._answers: set[asyncio.Task[None]] = set()
        self._transport: asyncio.Transport | None = None
        self._turn = asyncio.Lock()
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._server.connections.add(self)

    def data_received(self, data: bytes) -> None:
        try:
            for number, message in self._frames.feed(data):
                task = asyncio.create_task(self._answer(number, message))
                self._answers.add(task)
                task.add_done_callback(self._answers.discard)
        except ValueError as exc:
            _LOG.error("an asker is dropped that could not be understood: %s", exc)
            assert self._transport is not None
            self._transport.abort()

    async def _answer(self, number: int, message: ToTasks) -> None:
        reply = await self._server.answers.answer(message, self._long_result())
        if self._transport is not None:
            self._transport.write(frame_of(number, reply))

    @asynccontextmanager
    async def _long_result(self) -> AsyncIterator[None]:
        """The turn of one long result: the ones before have gone to the asker."""
        async with self._turn:
            await self._writable.wait()
            yield

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._server.connections.discard(self)
        self._server.changed.set()
        for task in self._answers:
            task.cancel()


class TaskServer:
    """Answers on a listening socket. connections: the askers. changed: set when one has gone."""

    def __init__(self, answers: TaskAnswers) -> None:
        self.answers = answers
        self.connections: set[_Connection] = set()
        self.changed = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def listen(self, listener: socket.socket) -> None:
        """Serve this socket from now on."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Connection(self), sock=listener)

    async def until_alone(self) -> None:
        """Take no new askers, and wait until those that are there have gone."""
        if self._server is not None:
            self._server.close()
        while self.connections:
            self.changed.clear()
            await self.changed.wait()
