"""The task process as a front end asks it: one connection, many questions in flight.

A question whose connection breaks is asked again over the next one, since each of them may come
twice: a task bears a token, and the same token is the same task. So a task process that is killed
and replaced costs its callers a wait and nothing else, unless it stays away too long.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TypeVar, cast

from batchpool.control.edges import TASK_REPLIES, TaskReply, ToTasks
from batchpool.control.frames import FrameReader, frame_of
from batchpool.control.messages import Message
from batchpool.control.task_messages import (
    CollectResult,
    GetTaskStatus,
    LookAtTasks,
    TaskRefused,
    TaskResult,
    TaskStates,
    TaskStatus,
)
from batchpool.core.errors import InternalError, NotReady, PoolError, Retryable, all_errors

_LOG = logging.getLogger("batchpool.frontend")
_PATIENCE_S = 30.0
_STATUS_S = 1.0
_RETRY_S = 0.1
_ERRORS = {kind.code: kind for kind in reversed(all_errors())}

Reply = TypeVar("Reply", bound=Message)


class TaskLink(asyncio.Protocol):
    """The link of one front end. path: of the task process's socket. patience_s: how long a
    question waits for a process that answers it."""

    def __init__(self, path: str, patience_s: float = _PATIENCE_S) -> None:
        self._path = path
        self._patience_s = patience_s
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._frames = FrameReader(TASK_REPLIES)
        self._asked: dict[int, tuple[bytes, asyncio.Future[TaskReply]]] = {}
        self._count = 0

    async def ask(self, message: ToTasks, reply: type[Reply], wait_s: float = 0.0) -> Reply:
        """The reply to a message. wait_s: as long as the message itself says that it may wait.

        Raises the error of a refusal, and NotReady where nobody answers in time.
        """
        self._count += 1
        number = self._count
        frame = frame_of(number, message)
        future: asyncio.Future[TaskReply] = asyncio.get_running_loop().create_future()
        self._asked[number] = frame, future
        if self._transport is not None:
            self._transport.write(frame)
        else:
            self._connect()
        try:
            async with asyncio.timeout(self._patience_s + wait_s):
                found = await future
        except TimeoutError:
            raise NotReady(
                "the task process does not answer; a task that was sent may be kept or not: send it"
                " again with its Idempotency-Key"
            ) from None
        finally:
            del self._asked[number]
        if isinstance(found, TaskRefused):
            raise refusal(found)
        if not isinstance(found, reply):
            raise InternalError(f"the task process replied with {type(found).__name__}")
        return found

    async def result(self, task: str, principal: str, wait_s: float) -> TaskResult:
        """The result of a task, waited for so long. It counts as read only if the caller, for whom
        this runs, is still there when the task has ended."""
        if wait_s:
            look = LookAtTasks((task,), principal, int(wait_s * 1000))
            await self.ask(look, TaskStates, wait_s)
        return await self.ask(CollectResult(task, principal), TaskResult)

    async def status(self) -> TaskStatus | None:
        """The counts of all tasks; None where they cannot be had at once."""
        try:
            async with asyncio.timeout(_STATUS_S):
                return await self.ask(GetTaskStatus(), TaskStatus)
        except (TimeoutError, PoolError):
            return None

    # -- the connection -----------------------------------------------------------------

    def _connect(self) -> None:
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect_and_ask())

    async def _connect_and_ask(self) -> None:
        """Connect, again and again while somebody waits, and ask what is not answered."""
        loop = asyncio.get_running_loop()
        try:
            while self._asked and self._transport is None:
                try:
                    await loop.create_unix_connection(lambda: self, self._path)
                except OSError as exc:
                    _LOG.debug("no task process at %s: %s", self._path, exc)
                # Also after a connection that was made: it may break again at once.
                await asyncio.sleep(_RETRY_S)
        finally:
            self._connecting = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._frames = FrameReader(TASK_REPLIES)
        for frame, _ in self._asked.values():
            self._transport.write(frame)

    def data_received(self, data: bytes) -> None:
        try:
            for number, reply in self._frames.feed(data):
                asked = self._asked.get(number)
                if asked is not None and not asked[1].done():
                    asked[1].set_result(reply)
        except ValueError as exc:
            _LOG.error("the task process cannot be understood: %s", exc)
            assert self._transport is not None
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._asked:
            self._connect()

    def close(self) -> None:
        """Let go of the task process."""
        if self._connecting is not None:
            self._connecting.cancel()
        if self._transport is not None:
            self._transport.abort()


def refusal(refused: TaskRefused) -> PoolError:
    """The exception for a refusal."""
    kind = _ERRORS.get(refused.code, InternalError)
    if issubclass(kind, Retryable):
        return kind(refused.error, refused.retry_after_ms or 1000)
    return kind(refused.error)
