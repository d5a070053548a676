"""Processes that misuse the control socket."""

from __future__ import annotations

import array
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from batchpool.control.messages import GetStatus
from batchpool.core.errors import PoolError
from bench.hostile.intruder import Intruder, connected
from bench.hostile.kind import ROUND_S, Kind, NotStopped, intruding, until_s

LINGER_S = 5
_STATUS = msgspec.msgpack.encode(GetStatus())


def asks_without_end(path: str, model: str) -> None:
    """Asks for the status as fast as it can, and reads no answer."""
    connection = connected(path)
    sock = connection.channel.sock
    sock.setblocking(False)
    end_s = until_s()
    while time.monotonic() < end_s:
        try:
            sock.send(_STATUS)
        except BlockingIOError:
            time.sleep(0.0005)
        except OSError:
            break
    connection.channel.close()


def sends_nonsense(path: str, model: str) -> None:
    """Sends packets that are no messages, one connection each."""
    dice = random.Random()
    end_s = until_s()
    while time.monotonic() < end_s:
        connection = connected(path)
        for raw in (dice.randbytes(dice.randrange(1, 4000)), b"", b"\x81\xa2op\xa6reload", _STATUS):
            try:
                connection.channel.sock.send(raw)
            except OSError:
                break
        time.sleep(0.01)
        connection.channel.close()


def sends_descriptors(path: str, model: str) -> None:
    """Sends sockets whose last close waits, with a message and behind others, and leaves."""
    end_s = until_s()
    while time.monotonic() < end_s:
        for first in ([], [_STATUS], [b"", b""], [b""] * 100):
            connection = connected(path)
            sock = connection.channel.sock
            try:
                for raw in first:
                    sock.send(raw)
                with lingering() as fds:
                    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
                    sock.sendmsg([_STATUS], [rights])
            except OSError:
                pass  # it was refused at once
            connection.channel.close()
        time.sleep(0.02)


@contextmanager
def lingering() -> Iterator[list[int]]:
    """TCP sockets with unsent bytes, whose last close waits for LINGER_S."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))
        sock.connect(server.getsockname())
        peer, _ = server.accept()
        _PEERS.append(peer)
        del _PEERS[:-50]
        sock.setblocking(False)
        try:
            while True:
                sock.send(bytes(1 << 16))
        except BlockingIOError:
            pass
        fd = sock.detach()
        try:
            yield [fd]
        finally:
            # At once, so that the one on its way is the last; where that is over already, this one
            # is, and waits.
            threading.Thread(target=os.close, args=[fd], daemon=True).start()


_PEERS: list[socket.socket] = []


def never_attaches(path: str, model: str) -> None:
    """Opens connections until it gets no more, says nothing, and holds them."""
    held = []
    try:
        for _ in range(80):
            held.append(connected(path))
        time.sleep(ROUND_S)
    finally:
        for connection in held:
            connection.channel.close()


def takes_every_place(path: str, model: str) -> None:
    """Attaches until it is refused, with a lane each, and holds them."""
    held: list[Intruder] = []
    try:
        for _ in range(40):
            held.append(Intruder(path, model))
    except (PoolError, OSError):
        time.sleep(ROUND_S)
        raise
    else:
        raise NotStopped(f"one process attached {len(held)} times")
    finally:
        for intruder in held:
            intruder.close()


def comes_and_goes(path: str, model: str) -> None:
    """Attaches, opens a lane, submits and leaves, as fast as it can."""
    end_s = until_s()
    while time.monotonic() < end_s:
        with intruding(path, model) as intruder:
            intruder.submit(4)


SOCKET_KINDS: tuple[Kind, ...] = (
    asks_without_end, sends_nonsense, sends_descriptors, never_attaches, takes_every_place,
    comes_and_goes,
)  # fmt: skip
