"""The control channel: msgpack messages with descriptors over a unix SOCK_SEQPACKET socket.

One message is one packet, so there is no framing to lose. A message is a map with the key
"op"; descriptors ride along as SCM_RIGHTS. Nothing is ever unpickled.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
from collections.abc import Sequence
from typing import Any

import msgpack

MAX_MESSAGE_BYTES = 128 * 1024  # the kernel's default send buffer takes about 208 KiB
MAX_FDS = 64
_FDS_SPACE = socket.CMSG_SPACE(MAX_FDS * 4)


class Closed(ConnectionError):
    """The other end is gone."""


class Channel:
    """One end of a control connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send one message; Closed if the peer is gone, BlockingIOError if it does not read."""
        raw = msgpack.packb(message)
        if len(raw) > MAX_MESSAGE_BYTES:
            raise ValueError(f"control message of {len(raw)} bytes; at most {MAX_MESSAGE_BYTES}")
        if len(fds) > MAX_FDS:
            raise ValueError(f"control message with {len(fds)} descriptors; at most {MAX_FDS}")
        try:
            socket.send_fds(self.sock, [raw], list(fds))
        except BlockingIOError:
            raise
        except OSError as exc:
            raise Closed(f"control connection lost: {exc.strerror}") from exc

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        """The next message and its descriptors; the caller owns those.

        Closed at the end, BlockingIOError when a non-blocking socket has none, ValueError
        for what is no message.
        """
        try:
            raw, ancillary, flags, _ = self.sock.recvmsg(
                MAX_MESSAGE_BYTES, _FDS_SPACE, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            raise
        except OSError as exc:
            raise Closed(f"control connection lost: {exc.strerror}") from exc
        fds = _descriptors(ancillary)
        if not raw:
            close_all(fds)
            raise Closed("control connection closed by the other side")
        try:
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise ValueError("it was cut off, or its descriptors were")
            message = msgpack.unpackb(raw, strict_map_key=True)
            if not isinstance(message, dict) or not isinstance(message.get("op"), str):
                raise ValueError("a control message is a map with the text 'op'")
        except Exception as exc:
            close_all(fds)
            raise ValueError(f"bad control message: {exc}") from exc
        return message, fds

    def close(self) -> None:
        self.sock.close()


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


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors, whatever becomes of each."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
