"""The socket of the task process: many askers, and many questions of each in flight."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

from batchpool.control.edges import TO_TASKS, TaskReply, ToTasks
from batchpool.control.frames import FrameReader, frame_of
from batchpool.control.task_messages import CollectResult, SubmitTask, TaskResult
from batchpool.tasks.answers import TaskAnswers, refused
from batchpool.tasks.collecting import Reply

_SMALL_BYTES = 4096  # of a result that is sent at once
_TURN_BYTES = 1 << 20  # of larger results that are written in one turn of the loop
_LOG = logging.getLogger("batchpool.tasks")


class _Connection(asyncio.Protocol):
    """One asker. It is trusted: the socket's file is for the pool's user and root alone."""

    def __init__(self, server: TaskServer) -> None:
        self._server = server
        self._frames = FrameReader(TO_TASKS)
        self._collecting = server.answers.collecting(self._long_result)
        self._answers: set[asyncio.Task[None]] = set()
        self._replies: list[tuple[int, TaskReply]] = []  # of this turn of the loop
        self._results: deque[tuple[int, TaskReply]] = deque()  # larger ones, while they wait
        self._flush_is_due = False
        self._transport: asyncio.Transport | None = None
        self._turn = asyncio.Lock()
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._server.connections.add(self)

    def data_received(self, data: bytes) -> None:
        new: list[tuple[int, SubmitTask]] = []
        results: list[tuple[CollectResult, Reply]] = []
        try:
            for number, message in self._frames.feed(data):
                if type(message) is SubmitTask:
                    new.append((number, message))
                elif type(message) is CollectResult:
                    results.append((message, partial(self._reply_result, number)))
                else:
                    self._start(self._answer(number, message))
        except ValueError as exc:
            _LOG.error("an asker is dropped that could not be understood: %s", exc)
            assert self._transport is not None
            self._transport.abort()
            return
        if new:
            self._start(self._submit(new))
        if results:
            self._collecting.collect(results)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _submit(self, new: Sequence[tuple[int, SubmitTask]]) -> None:
        """Answer new tasks that came in one read, which share their way to the store."""
        replies = await self._server.answers.submit([message for _, message in new])
        for (number, _), reply in zip(new, replies, strict=True):
            self._reply(number, reply)

    async def _answer(self, number: int, message: ToTasks) -> None:
        self._reply(number, await self._server.answers.answer(message, self._long_result))

    def _reply_result(self, number: int, found: TaskResult | BaseException) -> None:
        self._reply(number, refused(found) if isinstance(found, BaseException) else found)

    def _reply(self, number: int, reply: TaskReply) -> None:
        """Send a reply, together with all others of this turn of the loop. Results that are not
        small wait until the asker has taken those before: thousands may ask for one, of which there
        is one copy until then, and other questions do not wait behind them."""
        is_small = not isinstance(reply, TaskResult) or len(reply.body) <= _SMALL_BYTES
        (self._replies if is_small else self._results).append((number, reply))
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flush_is_due:
            self._flush_is_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        if self._transport is None:
            return
        frames = [frame_of(number, reply) for number, reply in self._replies]
        self._replies.clear()
        size = 0
        while self._results and size < _TURN_BYTES and self._writable.is_set():
            frames.append(frame_of(*self._results.popleft()))
            size += len(frames[-1])
        if frames:
            self._transport.write(b"".join(frames))
        if self._results and self._writable.is_set():
            self._flush_soon()

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
        if self._results:
            self._flush_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._replies.clear()
        self._results.clear()
        self._server.connections.discard(self)
        self._server.changed.set()
        self._collecting.close()
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
