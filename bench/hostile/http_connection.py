"""Plain connections of hostile HTTP callers, and the requests that they send."""

from __future__ import annotations

import functools
import json
import os
import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_WAIT_S = 5.0
_ALMOST_ALL = 1 << 16


def source(alias: int = 0) -> str:
    """An address that this process calls from: its own, so that nobody shares its turns. alias: 0
    to 9, for another one."""
    return f"127.{77 + alias}.{os.getpid() // 250 % 250}.{os.getpid() % 250 + 1}"


def connect(port: str, *, receive_bytes: int = 0, alias: int = 0) -> socket.socket:
    """A connection to the port. receive_bytes: of its receive buffer; 0 for the usual one. alias:
    of the address that it comes from."""
    sock = socket.socket()
    try:
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.bind((source(alias), 0))
        sock.settimeout(_WAIT_S)
        sock.connect(("127.0.0.1", int(port)))
    except BaseException:
        sock.close()
        raise
    return sock


@contextmanager
def connected(port: str, *, receive_bytes: int = 0) -> Iterator[socket.socket]:
    """A connection that is closed at the end."""
    sock = connect(port, receive_bytes=receive_bytes)
    try:
        yield sock
    finally:
        sock.close()


def flood(sock: socket.socket, sent: bytes, end_s: float, *, reads: bool) -> bytes:
    """Send the same bytes again and again until `end_s`; the last bytes that came back.

    reads: take what comes back meanwhile.
    """
    sock.setblocking(False)
    left, tail = memoryview(sent), b""
    while time.monotonic() < end_s:
        readable, writable, _ = select.select([sock] if reads else [], [sock], [], 0.05)
        if readable:
            came = sock.recv(1 << 18)
            if not came:
                return tail
            tail = (tail + came)[-_ALMOST_ALL:]
        if writable:
            left = left[sock.send(left) :]
            if not left:
                left = memoryview(sent)
    return tail


def all_until_closed(sock: socket.socket) -> bytes:
    """Everything that comes until the server closes the connection, or nothing more comes."""
    came = []
    try:
        while piece := sock.recv(1 << 18):
            came.append(piece)
    except (TimeoutError, ConnectionError):
        pass
    return b"".join(came)


def answers_in(received: bytes) -> list[int]:
    """The statuses of all responses, in their order."""
    return [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]]


def message(path: str, body: bytes = b"", method: str = "POST", **fields: str) -> bytes:
    """A request with Content-Length; `_` in the name of a field stands for `-`."""
    given = {"Host": "pool", "Content-Length": f"{len(body)}"}
    given |= {name.replace("_", "-"): text for name, text in fields.items()}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {text}" for name, text in given.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def infer_path(model: str) -> str:
    return f"/v2/models/{model}/infer"


@functools.cache
def infer_body(port: str, model: str) -> bytes:
    """The JSON of a right request of one row of zeros."""
    with connected(port) as sock:
        sock.sendall(message(f"/v2/models/{model}", method="GET", Connection="close"))
        described = json.loads(all_until_closed(sock).partition(b"\r\n\r\n")[2])
    inputs: list[dict[str, Any]] = []
    for tensor in described["inputs"]:
        shape = [1, *(size if size > 0 else 1 for size in tensor["shape"][1:])]
        data: Any = 0
        for size in reversed(shape):
            data = [data] * size
        inputs.append({**tensor, "shape": shape, "data": data})
    return json.dumps({"inputs": inputs}).encode()
