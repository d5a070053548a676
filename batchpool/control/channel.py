"""The control channel: msgpack messages with descriptors over a unix SOCK_SEQPACKET socket.

One message is one packet. Descriptors travel with it as SCM_RIGHTS. Messages are decoded into the
structs of `batchpool/control/messages.py`; nothing is ever unpickled.

A message that is too long for a packet, as the specs of models with thousands of tensors, is
written into a memfd, and the packet says so: {op: "aside"}, with the memfd in front of its
descriptors. Only the pool's own processes may send such packets: a client that is not trusted could
make the supervisor read any file.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from batchpool.control.edges import BadPacket, Edge, InvalidMessage
from batchpool.control.messages import Message
from batchpool.shm.resource_errors import is_shortage, text_of

Received = TypeVar("Received")

MAX_PACKET_BYTES = 128 * 1024  # the kernel's default send buffer takes about 208 KiB
MAX_MESSAGE_BYTES = 64 * 2**20
MAX_FDS = 64
_FDS_SPACE = socket.CMSG_SPACE((1 + MAX_FDS) * 4)


class _Aside(Message, frozen=True, tag="aside"):
    """The message itself is in a memfd."""


_ASIDE = msgspec.msgpack.encode(_Aside())


class Closed(ConnectionError):
    """The other end is gone."""


class Channel:
    """One end of a control connection. trusted: the other end may send messages in memfds."""

    def __init__(self, sock: socket.socket, *, trusted: bool = True) -> None:
        self.sock = sock
        self._trusted = trusted

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send one message; see `send_packet`."""
        self.send_packet(msgspec.msgpack.encode(message), fds)

    def send_packet(self, raw: bytes, fds: Sequence[int] = ()) -> None:
        """Send an encoded message. Closed if the peer is gone, BlockingIOError if it cannot be sent
        now: the peer does not read, or the kernel is short of something. ValueError if the message
        or the number of its descriptors is over the limits."""
        if len(raw) > MAX_MESSAGE_BYTES:
            raise ValueError(f"control message of {len(raw)} bytes; at most {MAX_MESSAGE_BYTES}")
        if len(fds) > MAX_FDS:
            raise ValueError(f"control message with {len(fds)} descriptors; at most {MAX_FDS}")
        if len(raw) > MAX_PACKET_BYTES or not self._send(raw, fds):
            with _aside(raw) as fd:
                self._send(_ASIDE, [fd, *fds])

    def _send(self, raw: bytes, fds: Sequence[int]) -> bool:
        """Send one packet; False if the buffers of this machine are too small for it."""
        try:
            socket.send_fds(self.sock, [raw], list(fds))
        except OSError as exc:
            if exc.errno == errno.EMSGSIZE:
                return False
            raise _translated(exc) from None
        return True

    def receive(self, edge: Edge[Received]) -> tuple[Received, list[int]]:
        """The next message and its descriptors; the caller owns those.

        Closed at the end, BlockingIOError when a non-blocking socket has none or the kernel is
        short of memory. InvalidMessage for a packet that is no message of this edge, BadPacket for
        any other; the descriptors are closed then.
        """
        raw, fds = self.receive_packet()
        try:
            return edge.decode(raw, len(fds)), fds
        except InvalidMessage as exc:
            close_all(fds)
            raise InvalidMessage(f"bad control message: {exc}") from None
        except Exception as exc:
            close_all(fds)
            raise BadPacket(f"bad control message: {exc}") from exc

    def receive_packet(self) -> tuple[bytes, list[int]]:
        """The next packet and its descriptors, not decoded; errors as of `receive`."""
        raw, ancillary, flags = self._receive(MAX_PACKET_BYTES, _FDS_SPACE, socket.MSG_CMSG_CLOEXEC)
        fds = _descriptors(ancillary)
        if not raw:
            close_all(fds)
            raise Closed("control connection closed by the other side")
        try:
            if flags & socket.MSG_CTRUNC and len(fds) <= MAX_FDS:
                raise ValueError(text_of(OSError("its descriptors did not come")))
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise ValueError("it was cut off, or its descriptors were")
            if raw == _ASIDE:
                if not self._trusted or not fds:
                    raise ValueError(f"at most {MAX_PACKET_BYTES} bytes are taken here")
                raw = _read(fds[0])
                os.close(fds.pop(0))
        except Exception as exc:
            close_all(fds)
            raise BadPacket(f"bad control message: {exc}") from exc
        return raw, fds

    def _receive(
        self, most_bytes: int, ancillary_bytes: int, how: int
    ) -> tuple[bytes, Sequence[tuple[int, int, bytes]], int]:
        """The bytes, ancillary data and flags of the next packet, as recvmsg returns them."""
        for last in (False, True):
            try:
                raw, ancillary, flags, _ = self.sock.recvmsg(most_bytes, ancillary_bytes, how)
            except OSError as exc:
                if exc.errno != errno.ECONNRESET or last:
                    raise _translated(exc) from None
                # The kernel reports this once, before the last packets that the peer sent.
            else:
                break
        return raw, ancillary, flags

    def is_closed_by_peer(self) -> bool:
        """True if the peer has closed the connection, and nothing that it sent is left."""
        try:
            return not self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError as exc:
            return exc.errno == errno.ECONNRESET

    def close(self) -> None:
        self.sock.close()


def _translated(exc: OSError) -> OSError:
    """The error to raise: BlockingIOError if it may work later, Closed for the end."""
    if isinstance(exc, BlockingIOError):
        return exc
    if is_shortage(exc):
        return BlockingIOError(exc.errno, f"not now: {text_of(exc)}")
    return Closed(f"control connection lost: {exc.strerror}")


@contextlib.contextmanager
def _aside(raw: bytes) -> Iterator[int]:
    """A memfd that holds these bytes; BlockingIOError if there is no memory for it now."""
    try:
        fd = os.memfd_create("batchpool-message", os.MFD_CLOEXEC)
    except OSError as exc:
        raise BlockingIOError(exc.errno, f"not now: {text_of(exc)}") from exc
    try:
        try:
            written = os.pwrite(fd, raw, 0)
        except OSError as exc:
            raise BlockingIOError(exc.errno, f"not now: {text_of(exc)}") from exc
        if written < len(raw):
            raise BlockingIOError(errno.ENOMEM, "not now: out of memory")
        yield fd
    finally:
        os.close(fd)


def _read(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    if size > MAX_MESSAGE_BYTES:
        raise ValueError(f"{size} bytes; at most {MAX_MESSAGE_BYTES} are taken")
    return os.pread(fd, size, 0)


def _descriptors(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    # Not socket.recv_fds: Python 3.11 drops its flags, and every child would inherit these.
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    return fds.tolist()


def pair() -> tuple[Channel, Channel]:
    """Two connected ends, close-on-exec."""
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Channel(a), Channel(b)


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors; errors are ignored."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
