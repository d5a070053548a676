"""Questions to a pool's task process over its socket, for the command line."""

from __future__ import annotations

import os
import socket
import time
from typing import TypeVar

from batchpool.client.connection import cannot_connect
from batchpool.control.edges import TASK_REPLIES, ToTasks
from batchpool.control.frames import FrameReader, frame_of
from batchpool.control.messages import Message
from batchpool.control.task_messages import TaskRefused
from batchpool.core.config.paths import task_socket_path
from batchpool.core.errors import InternalError, InvalidRequest, PoolStopped

Reply = TypeVar("Reply", bound=Message)
_PIECE_BYTES = 1 << 20


class TaskQuestions:
    """A connection to the task process of the pool with this socket.

    Raises PoolStopped where nobody answers: there is no pool, it keeps no tasks, or it belongs to
    another user.
    """

    def __init__(self, pool_socket: str, timeout_s: float = 30.0) -> None:
        path = task_socket_path(pool_socket)
        self._timeout_s = timeout_s
        self._path = path
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._sock.connect(path)
        except OSError as exc:
            self._sock.close()
            if isinstance(exc, FileNotFoundError) and not os.path.lexists(pool_socket):
                raise PoolStopped(cannot_connect(pool_socket, exc)) from None
            raise PoolStopped(
                f"no tasks are kept at {path}: {exc.strerror}; a pool keeps them with tasks = true"
                " in [server], and shows them to root and to the user it runs as"
            ) from None
        self._count = 0

    def __enter__(self) -> TaskQuestions:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def ask(self, message: ToTasks, reply: type[Reply]) -> Reply:
        """The reply to one message. Raises InvalidRequest for a message that cannot be written,
        PoolStopped where no reply comes, and InternalError with the text of a refusal."""
        self._count += 1
        try:
            frame = frame_of(self._count, message)
        except (OverflowError, UnicodeEncodeError) as exc:  # words that are no text, as b"\xff"
            raise InvalidRequest(f"this cannot be asked: {exc}") from None
        frames = FrameReader(TASK_REPLIES)
        until_s = time.monotonic() + self._timeout_s
        try:
            self._sock.settimeout(self._timeout_s)
            self._sock.sendall(frame)
            while True:
                self._sock.settimeout(max(0.01, until_s - time.monotonic()))
                piece = self._sock.recv(_PIECE_BYTES)
                if not piece:
                    raise PoolStopped(f"the task process at {self._path} has ended")
                for number, found in frames.feed(piece):
                    if number != self._count:
                        continue
                    if isinstance(found, TaskRefused):
                        raise InternalError(found.error)
                    if not isinstance(found, reply):
                        raise InternalError(f"the task process replied {type(found).__name__}")
                    return found
        except OSError as exc:
            if isinstance(exc, PoolStopped):
                raise
            raise PoolStopped(f"the task process at {self._path} does not answer: {exc}") from exc
