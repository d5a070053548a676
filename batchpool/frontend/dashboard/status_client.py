"""Asks the supervisor for the pool's status, from the front end's own loop.

It uses a connection of its own to the pool's socket, as `batchpool status` does, so that a slow
reply delays none of the supervisor's messages to the front end. The connection is open while the
dashboard has viewers.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from batchpool.control.channel import Channel, Closed, close_all
from batchpool.control.edges import TO_CLIENT, FromClient, ToClient
from batchpool.control.messages import GetStatus, Refused, StatusReply
from batchpool.core.errors import NotReady, PoolError, PoolStopped

PATIENCE_S = 2.0  # a supervisor that is well answers within milliseconds


class StatusClient:
    """A client of the supervisor. path: of the pool's unix socket."""

    def __init__(self, path: str, patience_s: float = PATIENCE_S) -> None:
        self._path = path
        self._patience_s = patience_s
        self._channel: Channel | None = None

    async def status(self) -> dict[str, Any]:
        """The pool's status. Raises PoolStopped without a supervisor, NotReady without a reply in
        time."""
        try:
            if self._channel is None:
                self._channel = _connected(self._path)
            async with asyncio.timeout(self._patience_s):
                reply = await _ask(self._channel, GetStatus())
        except TimeoutError:
            self.close()  # a late reply would be taken for the next one
            raise NotReady("the supervisor does not answer") from None
        except asyncio.CancelledError:
            self.close()
            raise
        except (OSError, Closed, ValueError) as exc:
            self.close()
            raise PoolStopped(f"no pool answers at {self._path}: {exc}") from exc
        match reply:
            case StatusReply():
                return reply.status
            case Refused():
                raise PoolError(f"the supervisor answered {reply.error!r}")
        raise PoolError("the supervisor answered another question")

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def _connected(path: str) -> Channel:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    sock.setblocking(False)
    try:
        sock.connect(path)  # to a unix socket it is made at once, or not at all
    except OSError:
        sock.close()
        raise
    return Channel(sock)


async def _ask(channel: Channel, question: FromClient) -> ToClient:
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[None] = loop.create_future()
    channel.send(question)
    loop.add_reader(channel.fileno(), _set, arrived)
    try:
        await arrived
    finally:
        loop.remove_reader(channel.fileno())
    reply, fds = channel.receive(TO_CLIENT)
    close_all(fds)
    return reply


def _set(arrived: asyncio.Future[None]) -> None:
    if not arrived.done():
        arrived.set_result(None)
