"""Questions to the supervisor over the pool's socket, from the front end's own loop.

A question uses a connection of its own, as `batchpool status` does, so that a slow reply delays
none of the supervisor's messages to the front end.
"""

from __future__ import annotations

import asyncio
import socket

from batchpool.control.channel import Channel, close_all
from batchpool.control.edges import TO_CLIENT, FromClient, ToClient


def connected(path: str) -> Channel:
    """A connection to the pool's unix socket, which does not block. OSError if it is refused."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    sock.setblocking(False)
    try:
        sock.connect(path)  # to a unix socket it is made at once, or not at all
    except OSError:
        sock.close()
        raise
    return Channel(sock)


async def ask(channel: Channel, question: FromClient) -> ToClient:
    """Ask and wait for the reply. OSError, Closed or ValueError where none can come."""
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
