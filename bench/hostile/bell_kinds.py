"""Local clients that misuse their bells."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import threading
import time

from bench.hostile.kind import LARGEST, Kind, intruding, until_s

LISTENERS = 400
THREADS = 16


def never_hears(path: str, model: str) -> None:
    """Makes its end of its bell blocking and never looks at it, while rows come back."""
    with intruding(path, model) as intruder:
        os.set_blocking(intruder.bell_fd, True)
        end_s = until_s()
        while time.monotonic() < end_s:
            intruder.submit(4)
            time.sleep(0.002)
            intruder.reap()


def closes_its_bell(path: str, model: str) -> None:
    """Closes its end of its bell with rows under way, and goes on submitting."""
    with intruding(path, model) as intruder:
        intruder.submit(8)
        os.close(intruder.bell_fd)
        end_s = until_s()
        while time.monotonic() < end_s:
            intruder.submit(1)
            time.sleep(0.002)
            intruder.reap()


def listens_many_times(path: str, model: str) -> None:
    """Waits for its bell in as many epolls as it can, some of them in threads, so that a ring wakes
    them all."""
    with intruding(path, model) as intruder, contextlib.ExitStack() as held:
        ended = os.eventfd(0)
        epolls = []
        for _ in range(LISTENERS):
            epoll = held.enter_context(select.epoll())
            epoll.register(ended, select.EPOLLIN)
            try:
                epoll.register(intruder.bell_fd, select.EPOLLIN | select.EPOLLET)
            except OSError:
                break  # the kernel bounds the paths by which one ring may wake
            epolls.append(epoll)
        threads = [
            threading.Thread(target=wait_until, args=(epoll, ended)) for epoll in epolls[:THREADS]
        ]
        for thread in threads:
            thread.start()
        end_s = until_s()
        while time.monotonic() < end_s:
            intruder.submit(4)
            time.sleep(0.01)
            intruder.reap()
        os.eventfd_write(ended, 1)
        for thread in threads:
            thread.join()
        os.close(ended)


def wait_until(epoll: select.epoll, ended: int) -> None:
    """Wait in an epoll again and again, until `ended` is readable."""
    while all(fd != ended for fd, _ in epoll.poll()):
        pass


def changes_the_epoll_of_its_bell(path: str, model: str) -> None:
    """Adds eventfds of its own, always ready, takes them out, and looks without end."""
    with intruding(path, model) as intruder:
        epoll = select.epoll.fromfd(os.dup(intruder.bell_fd))
        ready = [os.eventfd(1) for _ in range(64)]
        end_s = until_s()
        while time.monotonic() < end_s:
            intruder.submit(1)
            for fd in ready:
                epoll.register(fd, select.EPOLLIN)
            for _ in range(100):
                epoll.poll(0)
            for fd in ready:
                epoll.unregister(fd)
            intruder.reap()
        epoll.close()
        for fd in ready:
            os.close(fd)


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
    never_hears, closes_its_bell, listens_many_times, changes_the_epoll_of_its_bell,
    spoils_the_bell_it_rings, rings_without_end, cancels_without_end,
)  # fmt: skip
