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

from batchpool.control.channel import MAX_PACKET_BYTES, Channel, Closed
from batchpool.control.edges import BadPacket

_CREDENTIALS_SPACE = socket.CMSG_SPACE(3 * 4)  # pid, uid and gid
_closers: list[int] = []  # pids of children that have not been reaped


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
            _close_in_child(self.sock)

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


def _close_in_child(sock: socket.socket) -> None:
    """Let a child process hold a socket while it is closed here, and then end."""
    reap_closers()
    try:
        read_fd, write_fd = os.pipe()
    except OSError:
        sock.detach()  # no descriptors are to be had: it stays open, and harms no more
        return
    try:
        pid = os.fork()
    except OSError:
        sock.detach()
        os.close(read_fd)
        os.close(write_fd)
        return
    if pid == 0:
        try:
            os.close(write_fd)
            os.read(read_fd, 1)
        finally:
            os._exit(0)
    _closers.append(pid)
    os.close(read_fd)
    sock.close()
    os.close(write_fd)


def reap_closers() -> None:
    """Reap the children that have closed sockets."""
    for pid in list(_closers):
        try:
            ended = os.waitpid(pid, os.WNOHANG)[0] == pid
        except ChildProcessError:
            ended = True
        if ended:
            _closers.remove(pid)
