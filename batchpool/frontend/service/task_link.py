"""The task process as a front end asks it: one connection, many questions in flight.

A question whose connection breaks is asked again over the next one, since each of them may come
twice: a task bears a token, and the same token is the same task. So a task process that is killed
and replaced costs its callers a wait and nothing else, unless it stays away too long.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from batchpool.control.edges import TASK_REPLIES, TaskReply, ToTasks
from batchpool.control.frames import FrameReader, frame_of, frame_pieces
from batchpool.control.messages import Message
from batchpool.control.task_messages import (
    CollectResult,
    GetTaskStatus,
    MarkRead,
    TaskRefused,
    TaskResult,
    TaskStatus,
)
from batchpool.core.errors import InternalError, NotReady, PoolError, Retryable, all_errors
from batchpool.wire.left_out import LONG_BYTES, LeftOut, Piece

_LOG = logging.getLogger("batchpool.frontend")
_PATIENCE_S = 30.0
_STATUS_S = 1.0
_RETRY_S = 0.1
_ERRORS = {kind.code: kind for kind in reversed(all_errors())}

_READ_S = 0.1
_NO_ANSWER = (
    "the task process does not answer; a task that was sent may be kept or not: send it again with"
    " its Idempotency-Key"
)

Reply = TypeVar("Reply", bound=Message)
# Answered in one turn of the loop, which then reads its other connections: a commit of the task
# process answers hundreds of questions at once.
_AT_ONCE = 8

Listener = Callable[[TaskReply | PoolError], None]


class _Asked:
    """A question that is not answered. until_s: its asker gives up then, by the loop's clock."""

    __slots__ = ("frame", "listener", "until_s")

    def __init__(self, frame: Sequence[Piece], listener: Listener, until_s: float) -> None:
        self.frame = frame
        self.listener = listener
        self.until_s = until_s


# methods: questions, and the callbacks of the one connection that carries them
class TaskLink(asyncio.Protocol):
    """The link of one front end. path: of the task process's socket. patience_s: how long a
    question waits for a process that answers it."""

    def __init__(self, path: str, patience_s: float = _PATIENCE_S) -> None:
        self._path = path
        self._patience_s = patience_s
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._frames = FrameReader(TASK_REPLIES)
        self._replies: deque[tuple[int, TaskReply]] = deque()  # that are not given on yet
        self._asked: dict[int, _Asked] = {}
        self._count = 0
        self._outgoing: list[Piece] = []  # of this turn of the loop
        self._read: list[str] = []  # tasks whose results have been read
        self._sweeping: asyncio.TimerHandle | None = None

    def send(
        self,
        message: ToTasks,
        listener: Listener,
        wait_s: float = 0.0,
        left_out: LeftOut | None = None,
    ) -> int:
        """Ask a question; its number, for `forget`. listener: gets the reply, or the error of a
        refusal, or NotReady where nobody answers in time. wait_s: as long as the message itself
        says that it may wait. left_out: of the message; sent from where it is, and not copied."""
        loop = asyncio.get_running_loop()
        self._count += 1
        number = self._count
        frame: Sequence[Piece]
        if left_out is None:
            frame = (frame_of(number, message),)
        else:
            frame = frame_pieces(number, message, left_out)
        until_s = loop.time() + self._patience_s + wait_s
        self._asked[number] = _Asked(frame, listener, until_s)
        if self._transport is None:
            self._connect()
        else:
            if not self._outgoing:
                loop.call_soon(self._flush)
            self._outgoing += frame
        if self._sweeping is None:
            self._sweeping = loop.call_later(self._every_s(), self._sweep)
        return number

    def forget(self, number: int) -> None:
        """The asker has gone: its question needs no answer."""
        self._asked.pop(number, None)

    def _flush(self) -> None:
        """Write the questions of one turn of the loop together. Those that have no connection any
        more are asked over the next one."""
        outgoing, self._outgoing = self._outgoing, []
        self._write(outgoing)

    def _write(self, pieces: list[Piece]) -> None:
        if self._transport is None:
            return
        if sum(map(len, pieces)) <= LONG_BYTES:
            self._transport.write(b"".join(pieces))
        else:
            self._transport.writelines(pieces)

    async def ask(
        self,
        message: ToTasks,
        reply: type[Reply],
        wait_s: float = 0.0,
        left_out: LeftOut | None = None,
    ) -> Reply:
        """The reply to a message; raises what `send` gives its listener."""
        future: asyncio.Future[TaskReply] = asyncio.get_running_loop().create_future()

        def listener(found: TaskReply | PoolError) -> None:
            if isinstance(found, PoolError):
                future.set_exception(found)
            else:
                future.set_result(found)

        number = self.send(message, listener, wait_s, left_out)
        try:
            found = await future
        finally:
            self.forget(number)
        return expected(found, reply)

    async def result(self, task: str, principal: str, wait_s: float) -> TaskResult:
        """The result of a task, waited for so long. It counts as read with `mark_read`."""
        message = CollectResult(task, principal, int(wait_s * 1000))
        return await self.ask(message, TaskResult, wait_s)

    def mark_read(self, task: str) -> None:
        """The caller of a task has its result. Told a little later, for many at once."""
        if not self._read:
            asyncio.get_running_loop().call_later(_READ_S, self._send_read)
        self._read.append(task)

    def _send_read(self) -> None:
        ids, self._read = self._read, []
        if ids:
            self.send(MarkRead(tuple(ids)), _ignore)

    def _every_s(self) -> float:
        return min(1.0, self._patience_s)

    def _sweep(self) -> None:
        """Give up the questions whose time is over."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        over = [number for number, asked in self._asked.items() if asked.until_s <= now_s]
        for number in over:
            self._asked.pop(number).listener(NotReady(_NO_ANSWER))
        self._sweeping = loop.call_later(self._every_s(), self._sweep) if self._asked else None

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
        self._outgoing.clear()
        self._write([piece for asked in self._asked.values() for piece in asked.frame])

    def data_received(self, data: bytes) -> None:
        try:
            came = list(self._frames.feed(data))
        except ValueError as exc:
            _LOG.error("the task process cannot be understood: %s", exc)
            assert self._transport is not None
            self._transport.abort()
            return
        is_idle = not self._replies
        self._replies += came
        if is_idle and came:
            self._give_on()

    def _give_on(self) -> None:
        """Give on some replies, and the others in the next turns of the loop."""
        try:
            for _ in range(min(_AT_ONCE, len(self._replies))):
                number, reply = self._replies.popleft()
                asked = self._asked.pop(number, None)
                if asked is not None:
                    asked.listener(refusal(reply) if isinstance(reply, TaskRefused) else reply)
        finally:
            if self._replies:
                asyncio.get_running_loop().call_soon(self._give_on)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._asked:
            self._connect()

    def close(self) -> None:
        """Let go of the task process."""
        self._send_read()
        self._flush()
        for timer in (self._connecting, self._sweeping):
            if timer is not None:
                timer.cancel()
        self._asked.clear()
        if self._transport is not None:
            self._transport.close()


def expected(found: TaskReply, reply: type[Reply]) -> Reply:
    """The reply as one of the kind that its message has; InternalError for another."""
    if not isinstance(found, reply):
        raise InternalError(f"the task process replied with {type(found).__name__}")
    return found


def _ignore(_: TaskReply | PoolError) -> None:
    """For a question whose answer says nothing."""


def refusal(refused: TaskRefused) -> PoolError:
    """The exception for a refusal."""
    kind = _ERRORS.get(refused.code, InternalError)
    error: PoolError
    if issubclass(kind, Retryable):
        error = kind(refused.error, refused.retry_after_ms or 1000)
    else:
        error = kind(refused.error)
    error.param = refused.param or None
    return error
