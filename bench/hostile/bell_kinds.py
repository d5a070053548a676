"""Local clients that misuse their bells."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Callable

from bench.hostile.intruder import Intruder
from bench.hostile.kind import LARGEST, Kind, NotStopped, intruding, until_s


def never_hears(path: str, model: str) -> None:
    """Makes its end of its bell blocking and never reads it, while rows come back."""
    with intruding(path, model) as intruder:
        os.set_blocking(intruder.bell_fd, True)
        end_s = until_s()
        while time.monotonic() < end_s:
            intruder.submit(4)
            time.sleep(0.002)
            intruder.reap()


def _loses_bell(intruder: Intruder, lose: Callable[[], None]) -> None:
    intruder.submit(8)
    lose()
    give_up_s = time.monotonic() + 20
    while not intruder.is_dropped():
        intruder.submit(1)
        time.sleep(0.01)
        if time.monotonic() > give_up_s:
            raise NotStopped("a client without a bell was not dropped")


def closes_its_bell(path: str, model: str) -> None:
    """Closes its end of its bell with rows under way."""
    with intruding(path, model) as intruder:
        _loses_bell(intruder, lambda: os.close(intruder.bell_fd))


def shuts_its_bell(path: str, model: str) -> None:
    """Shuts its end of its bell down with rows under way."""
    with intruding(path, model) as intruder:
        sock = socket.socket(fileno=os.dup(intruder.bell_fd))
        _loses_bell(intruder, lambda: sock.shutdown(socket.SHUT_RDWR))
        sock.close()


def spoils_the_bell_it_rings(path: str, model: str) -> None:
    """Makes the batcher's wake-up blocking, fills it to its limit and reads it again."""
    with intruding(path, model) as intruder:
        fd = intruder.wake_fd
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        end_s = until_s()
        while time.monotonic() < end_s:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~os.O_NONBLOCK)
            intruder.submit(1)
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_NONBLOCK)
            for step in (lambda: os.eventfd_write(fd, LARGEST - 1), lambda: os.eventfd_read(fd)):
                with contextlib.suppress(BlockingIOError):
                    step()
            time.sleep(0.002)
            intruder.reap()


def rings_without_end(path: str, model: str) -> None:
    """Rings as fast as it can, without a row."""
    with intruding(path, model) as intruder:
        end_s = until_s()
        while time.monotonic() < end_s:
            for _ in range(1000):
                intruder.ring()


def cancels_without_end(path: str, model: str) -> None:
    """Counts cancelled rows that there are not, and rings."""
    with intruding(path, model) as intruder:
        end_s = until_s()
        while time.monotonic() < end_s:
            intruder.lane_client.lane.cancels.raise_by(1)
            intruder.ring()


BELL_KINDS: tuple[Kind, ...] = (
    never_hears, closes_its_bell, shuts_its_bell, spoils_the_bell_it_rings, rings_without_end,
    cancels_without_end,
)  # fmt: skip
