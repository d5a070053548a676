"""The bells between the pool and one local client, whom the pool does not trust.

Either way the pool does only what cannot wait and cannot fail for others, whatever the client does
to its ends (fill, drain, shut down, close, change flags, hand on):

    client -> batcher   an eventfd. The batcher neither reads nor writes it: it waits by an
                        edge-triggered epoll, in which each ring counts once. The file's flags,
                        which both sides share, and its counter mean nothing to such a wait.
    batcher -> client   a pair of connected sockets, which are two open files with flags of their
                        own. The pool's end sends single bytes, non-blocking by the call. It is
                        shut down for receiving before the client has the other end, so that the
                        client cannot queue descriptors in it, whose last close may wait.

Front ends and workers, which are the pool's own, share eventfds (`batchpool/shm/doorbell.py`).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_CLEAR_BYTES = 512  # more than a socket of the default size holds; an eventfd gives eight


@dataclass(frozen=True)
class ClientBellFds:
    """rung_by_pool, heard_by_client: the ends of the socket pair. rung_by_client: the eventfd."""

    rung_by_pool: int
    heard_by_client: int
    rung_by_client: int


def make_client_bells() -> ClientBellFds:
    """New bells for one local client, all close-on-exec. Raises OSError without a descriptor."""
    rung_by_client = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError:
        os.close(rung_by_client)
        raise
    ours.shutdown(socket.SHUT_RD)
    theirs.setblocking(False)
    return ClientBellFds(ours.detach(), theirs.detach(), rung_by_client)


class ClientBell:
    """The pool's end of the bell of one local client. Takes over the descriptor.

    lost: called once with the reason when it cannot be rung any more, because the client has closed
    its end or shut it down.
    """

    __slots__ = ("_is_lost", "_lost", "_send", "_sock")

    def __init__(self, fd: int, lost: Callable[[str], None] = lambda why: None) -> None:
        self._lost = lost
        self._is_lost = False
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fd)
        self._send = self._sock.send

    def ring(self) -> None:
        """Wake the client. Never waits and never raises."""
        try:
            self._send(b"\1", _FLAGS)
        except BlockingIOError:
            pass  # hundreds of unheard rings: it is ringing already
        except ConnectionError as exc:
            if not self._is_lost:
                self._is_lost = True
                self._lost(exc.strerror or str(exc))
        except OSError:
            pass  # the kernel is short of memory; the client looks at its counters without a ring

    def close(self) -> None:
        self._sock.close()


class HeardBell:
    """The end of a bell that the pool rings for a client: a socket, or a front end's eventfd."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def clear(self) -> None:
        """Forget the rings so far. Look at the counters after this, not before."""
        try:  # noqa: SIM105 - contextlib.suppress costs as much as the call itself
            os.read(self.fd, _CLEAR_BYTES)
        except BlockingIOError:
            pass

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
