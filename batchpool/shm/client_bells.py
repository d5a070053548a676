"""The bells between the pool and one local client, whom the pool does not trust.

Either way the pool does only what cannot wait and cannot fail, whatever the client does to its ends
(fill, drain, close, change flags, wait in them a thousand times, hand them on):

    client -> batcher   an eventfd. The batcher neither reads nor writes it: it waits by an
                        edge-triggered epoll, in which each ring counts once. The file's flags,
                        which both sides share, and its counter mean nothing to such a wait.
    batcher -> client   an eventfd that the client never gets. It is handed an epoll that waits for
                        it, edge-triggered: it hears and forgets rings by looking at its epoll, and
                        can neither read nor fill the eventfd, nor change its flags. Nobody reads
                        it: 2**64 - 2 rings fit in.

The pool's own processes share eventfds (`batchpool/shm/doorbell.py`).
"""

from __future__ import annotations

import importlib.util
import os
import select
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from batchpool.shm.doorbell import Doorbell


@dataclass(frozen=True)
class ClientBellFds:
    """rung_by_pool: an eventfd. heard_by_client: an epoll that waits for it. rung_by_client: an
    eventfd."""

    rung_by_pool: int
    heard_by_client: int
    rung_by_client: int


def make_client_bells() -> ClientBellFds:
    """New bells for one local client, all close-on-exec. Raises OSError without a descriptor."""
    with ExitStack() as undo:
        made = []
        for _ in range(2):
            made.append(Doorbell().fd)
            undo.callback(os.close, made[-1])
        with select.epoll() as epoll:
            epoll.register(made[0], select.EPOLLIN | select.EPOLLET)
            heard = os.dup(epoll.fileno())
        undo.pop_all()
    return ClientBellFds(made[0], heard, made[1])


class HeardBell:
    """A local client's end of the bell that the pool rings. Takes over the epoll's descriptor.

    fd: readable when the pool has rung; for poll and asyncio.
    """

    __slots__ = ("_epoll", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._epoll = _epoll_class().fromfd(fd)

    def clear(self) -> None:
        """Forget the rings so far. Look at the counters after this, not before."""
        self._epoll.poll(0, 1)

    def close(self) -> None:
        self._epoll.close()
        self.fd = -1


def _epoll_class() -> Any:
    """select.epoll, also where gevent or eventlet have taken it out of the module: looking at an
    epoll without waiting is what they need not replace."""
    if hasattr(select, "epoll"):
        return select.epoll
    spec = importlib.util.find_spec("select")
    assert spec is not None
    assert spec.loader is not None
    unpatched = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(unpatched)
    return unpatched.epoll
