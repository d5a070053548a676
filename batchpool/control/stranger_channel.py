"""The supervisor's end of a connection with a process that it does not trust.

A packet may bring descriptors, and the last close of a descriptor may wait: that of a TCP socket
for its linger time, that of a file for its file system. Clients have none to send, so a packet that
brings some is left in the socket, and a socket that holds such a packet is closed by a child
process that ends; nothing lingers in the end of a process, and nobody waits for it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import NoReturn

from batchpool.control.channel import MAX_PACKET_BYTES, Channel, Closed
from batchpool.control.edges import BadPacket

_CREDENTIALS_SPACE = socket.CMSG_SPACE(3 * 4)  # pid, uid and gid
_CLOSER_NS = 20_000_000
_NEVER_NS = 2**63 - 1


class UnwantedDescriptors(BadPacket):
    """A packet brings descriptors. It stays in the socket; nothing behind it can be read."""


class StrangerChannel(Channel):
    """A control channel that takes no descriptors and that can be closed without waiting."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, trusted=False)

    def receive_packet(self) -> tuple[bytes, list[int]]:
        """The next packet, never with descriptors: UnwantedDescriptors for one that has some;
        other errors as of `Channel.receive`."""
        if self._next_has_descriptors():
            raise UnwantedDescriptors(
                "a client's message brings no descriptors, and this one does; where the client is"
                " of another version of batchpool, install the same one on both sides"
            )
        return super().receive_packet()

    def _next_has_descriptors(self) -> bool:
        """True if the next packet brings descriptors. Looking at it installs none.

        False means that a packet without descriptors, or the end, was seen to be the next. All
        else raises as `Channel.receive` does: what comes after a look that saw nothing, or only the
        error of a peer that left, may bring descriptors.
        """
        _, _, flags = self._receive(1, 0, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        return bool(flags & socket.MSG_CTRUNC)

    def close(self) -> None:
        """Close the socket. What its peer has left in it makes nobody wait."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RD)  # from here on nothing is added
        if self._drain():
            self.sock.close()
        else:
            CLOSERS.close(self.sock)

    def _drain(self) -> bool:
        """Drop what waits in the socket; False before a packet that brings, or may bring,
        descriptors.

        A packet without a byte looks like the end but for the credentials of its sender, which the
        kernel adds to each packet where it is asked to.
        """
        try:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            while True:
                _, credentials, flags = self._receive(
                    1, _CREDENTIALS_SPACE, socket.MSG_PEEK | socket.MSG_DONTWAIT
                )
                if flags & socket.MSG_CTRUNC:
                    return False
                if not credentials:
                    return True
                self._receive(MAX_PACKET_BYTES, 0, socket.MSG_DONTWAIT)
        except Closed:
            return True
        except OSError:
            return False  # what is in it cannot be seen now


class _Closer:
    """A child process that is handed sockets and ends soon, by which it closes them."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        self._ours.setblocking(False)
        try:
            self.pid = os.fork()
        except OSError:
            self._ours.close()
            theirs.close()
            raise
        if self.pid == 0:
            _hold_until_the_end(theirs)
        theirs.close()
        self.ends_ns = time.monotonic_ns() + _CLOSER_NS

    def take(self, sock: socket.socket) -> None:
        """Hand a socket over. OSError if it takes no more."""
        socket.send_fds(self._ours, [b"."], [sock.fileno()])

    def end(self) -> None:
        """Let it end with what it holds."""
        self._ours.close()


def _hold_until_the_end(sock: socket.socket) -> NoReturn:
    """Receive descriptors until the other end is closed, then end the process."""
    try:
        fd = sock.fileno()
        os.closerange(3, fd)
        os.closerange(fd + 1, 1 << 20)
        while sock.recvmsg(1, socket.CMSG_SPACE(4))[0]:
            pass
    finally:
        os._exit(0)


class Closers:
    """The children that close sockets. One takes all sockets of some milliseconds: to make a child
    costs a hundred times as much as to hand a socket over."""

    def __init__(self) -> None:
        self._present: _Closer | None = None
        self._ending: list[int] = []  # pids of those that end, and were not reaped

    def close(self, sock: socket.socket) -> None:
        """Let a child hold a socket while it is closed here, and then end."""
        self.reap()
        for _ in range(2):
            try:
                if self._present is None:
                    self._present = _Closer()
                self._present.take(sock)
            except OSError:
                self._end_present()
            else:
                sock.close()
                return
        sock.detach()  # no process or descriptor is to be had: it stays open, and harms no more

    def _end_present(self) -> None:
        if self._present is not None:
            self._present.end()
            self._ending.append(self._present.pid)
            self._present = None

    def reap(self) -> int:
        """Let the present child end when it is time, and reap those that have ended.

        Returns when to call it next (CLOCK_MONOTONIC in ns).
        """
        now_ns = time.monotonic_ns()
        if self._present is not None and self._present.ends_ns <= now_ns:
            self._end_present()
        self._ending = [pid for pid in self._ending if not _has_ended(pid)]
        if self._present is not None:
            return self._present.ends_ns
        return now_ns + _CLOSER_NS if self._ending else _NEVER_NS


def _has_ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


CLOSERS = Closers()
