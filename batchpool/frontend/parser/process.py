"""The front end's side of its parser process.

Reading JSON keeps the interpreter from the first byte to the last, 12 ns a byte: the event loop
would stand still for half a second while a thread of its process reads 50 MB, and one caller could
have it stand still again and again. In a process of its own the reading holds nobody up.
"""

from __future__ import annotations

import socket
import subprocess
import threading
from multiprocessing.connection import Connection

from batchpool.core.errors import Overloaded
from batchpool.core.tensors.spec import ModelSpec
from batchpool.frontend.parser.messages import (
    ParseJob,
    encoded_spec,
    receive_reply,
    send_job,
)
from batchpool.process.python_command import python_command
from batchpool.shm.resource_errors import text_of
from batchpool.wire.request import Body, Headers, InferRequest

_RETRY_AFTER_MS = 1000
_END_S = 5.0


class ParserProcess:
    """Parses one body after another in a process that starts with the first of them.

    The process ends with this one, and is replaced when it has died. `parse` is called from one
    thread, `close` from any.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of the three below
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Of the process, if one was started."""
        process = self._process
        return None if process is None else process.pid

    def parse(self, spec: ModelSpec, headers: Headers, body: Body) -> InferRequest:
        """`Codec.parse` of this body: the same request or the same error, but no view of the body.

        Overloaded where no process can be started, or two of them died with this body.
        """
        job = ParseJob(encoded_spec(spec), dict(headers))
        for last in (False, True):
            connection = self._connected()
            try:
                send_job(connection, job, body)
                reply = receive_reply(connection, spec)
                break
            except (EOFError, OSError) as exc:
                self._end()
                if last:
                    raise _died(len(body)) from exc
        if isinstance(reply, Exception):
            try:
                raise reply
            finally:
                del reply  # else it and this frame, with the body, would hold one another
        return reply

    def _connected(self) -> Connection:
        with self._lock:
            if self._closed:
                raise Overloaded("the server is shutting down", _RETRY_AFTER_MS)
            if self._connection is None:
                try:
                    self._process, self._connection = _start()
                except OSError as exc:
                    raise Overloaded(
                        "no process can be started that parses long bodies:"
                        f" {text_of(exc)}; send it again, or as binary data, which needs none",
                        _RETRY_AFTER_MS,
                    ) from exc
            return self._connection

    def _end(self) -> None:
        with self._lock:
            process, connection = self._process, self._connection
            self._process = self._connection = None
        if connection is not None:
            connection.close()
        if process is not None:
            process.kill()
            process.wait(_END_S)

    def close(self) -> None:
        """End the process; a body that it parses is given up."""
        with self._lock:
            self._closed = True
            process = self._process
        if process is not None:
            process.kill()
            process.wait(_END_S)


def _died(size: int) -> Overloaded:
    return Overloaded(
        f"the process that parses long bodies ended twice while it parsed this one of {size}"
        " bytes, perhaps for want of memory; send it again, or as binary data, which takes less",
        _RETRY_AFTER_MS,
    )


def _start() -> tuple[subprocess.Popen[bytes], Connection]:
    ours, theirs = socket.socketpair()
    with theirs:
        fd = theirs.fileno()
        process = subprocess.Popen(
            [*python_command("batchpool.frontend.parser"), str(fd)],
            stdin=subprocess.DEVNULL,
            pass_fds=[fd],
        )
    return process, Connection(ours.detach())
