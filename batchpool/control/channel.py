"""The control channel: msgpack messages with descriptors over a unix SOCK_SEQPACKET socket.

One message is one packet, so there is no framing to lose. A message is a map with the key
"op"; descriptors ride along as SCM_RIGHTS. Nothing is ever unpickled.

A message that is too long for a packet, as the facts of models with thousands of tensors, stands
in a memfd, and the packet says so: {op: "aside"}, with the memfd in front of its descriptors. Only
what the pool says is taken so: whoever is not trusted cannot make others read what they like.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgpack

from batchpool.shm.resource_errors import is_shortage, text_of

MAX_PACKET_BYTES = 128 * 1024  # the kernel's default send buffer takes about 208 KiB
MAX_MESSAGE_BYTES = 64 * 2**20
MAX_FDS = 64
_FDS_SPACE = socket.CMSG_SPACE((1 + MAX_FDS) * 4)
_ASIDE = "aside"


class Closed(ConnectionError):
    """The other end is gone."""


class Channel:
    """One end of a control connection. trusted: whether the other end may say long things."""

    def __init__(self, sock: socket.socket, *, trusted: bool = True) -> None:
        self.sock = sock
        self._trusted = trusted

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send one message; Closed if the peer is gone, BlockingIOError if it cannot be sent now:
        the peer does not read, or the kernel is short of something."""
        raw = msgpack.packb(message)
        if len(raw) > MAX_MESSAGE_BYTES:
            raise ValueError(f"control message of {len(raw)} bytes; at most {MAX_MESSAGE_BYTES}")
        if len(fds) > MAX_FDS:
            raise ValueError(f"control message with {len(fds)} descriptors; at most {MAX_FDS}")
        if len(raw) > MAX_PACKET_BYTES or not self._send(raw, fds):
            with _aside(raw) as fd:
                self._send(msgpack.packb({"op": _ASIDE}), [fd, *fds])

    def _send(self, raw: bytes, fds: Sequence[int]) -> bool:
        """Send one packet; False if the buffers of this machine are too small for it."""
        try:
            socket.send_fds(self.sock, [raw], list(fds))
        except OSError as exc:
            if exc.errno == errno.EMSGSIZE:
                return False
            raise _what(exc) from None
        return True

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        """The next message and its descriptors; the caller owns those.

        Closed at the end, BlockingIOError when a non-blocking socket has none or the kernel is
        short of memory, ValueError for what is no message.
        """
        raw, ancillary, flags = self._receive()
        fds = _descriptors(ancillary)
        if not raw:
            close_all(fds)
            raise Closed("control connection closed by the other side")
        try:
            if flags & socket.MSG_CTRUNC and len(fds) <= MAX_FDS:
                raise ValueError(text_of(OSError("its descriptors did not come")))
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise ValueError("it was cut off, or its descriptors were")
            message = _message(raw)
            if message["op"] == _ASIDE:
                if not self._trusted or not fds:
                    raise ValueError(f"at most {MAX_PACKET_BYTES} bytes are taken here")
                message = _message(_read(fds[0]))
                os.close(fds.pop(0))
        except Exception as exc:
            close_all(fds)
            raise ValueError(f"bad control message: {exc}") from exc
        return message, fds

    def _receive(self) -> tuple[bytes, Sequence[tuple[int, int, bytes]], int]:
        for last in (False, True):
            try:
                raw, ancillary, flags, _ = self.sock.recvmsg(
                    MAX_PACKET_BYTES, _FDS_SPACE, socket.MSG_CMSG_CLOEXEC
                )
            except OSError as exc:
                if exc.errno != errno.ECONNRESET or last:
                    raise _what(exc) from None
                # Told once, and before what the peer said at last.
            else:
                break
        return raw, ancillary, flags

    def close(self) -> None:
        self.sock.close()


def _what(exc: OSError) -> OSError:
    """What an error of the socket means: to be tried again, or the end."""
    if isinstance(exc, BlockingIOError):
        return exc
    if is_shortage(exc):
        return BlockingIOError(exc.errno, f"not now: {text_of(exc)}")
    return Closed(f"control connection lost: {exc.strerror}")


def _message(raw: bytes) -> dict[str, Any]:
    message = msgpack.unpackb(raw, strict_map_key=True)
    if not isinstance(message, dict) or not isinstance(message.get("op"), str):
        raise ValueError("a control message is a map with the text 'op'")
    return message


@contextlib.contextmanager
def _aside(raw: bytes) -> Iterator[int]:
    """A memfd that holds this; BlockingIOError if there is no room for it now."""
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
    """Close descriptors, whatever becomes of each."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
