"""Writes pieces of a response whose body has begun, at once, around ASGI's `send`.

`send` is a coroutine, so that each piece takes a task that wakes up, and goes through every
layer of the application. A stream of tokens has a piece for each token. It begins and ends by
`send`, and between these a piece may be written here, whenever nothing keeps the caller from taking
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class BodyWriter:
    """The writer of one response. cycle: uvicorn's state of the request. wrote: told how many bytes
    of the body were written."""

    def __init__(self, cycle: RequestResponseCycle, wrote: Callable[[int], None]) -> None:
        self._cycle: Any = cycle
        self._wrote = wrote

    @classmethod
    def of(cls, send: object, wrote: Callable[[int], None]) -> BodyWriter | None:
        """That of the request which uvicorn's own `send` answers; None for another `send`."""
        cycle = getattr(send, "__self__", None)
        return cls(cycle, wrote) if isinstance(cycle, RequestResponseCycle) else None

    @property
    def is_open(self) -> bool:
        """True while a piece may be written: a chunked body has begun and not ended, and the caller
        is there and takes what it gets."""
        cycle = self._cycle
        return bool(
            cycle.chunked_encoding
            and cycle.response_started
            and not cycle.response_complete
            and not cycle.disconnected
            and not cycle.flow.write_paused
            and not cycle.transport.is_closing()
        )

    def check_response(self, size: int) -> None:
        """As of the connection. For one of another server, as in a test, nothing is checked."""
        connection = self._cycle.transport.get_protocol()
        if hasattr(connection, "check_response"):
            connection.check_response(size)

    def write(self, piece: bytes) -> None:
        """Write a piece, not empty, as a chunk of its own. Only while `is_open`."""
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self._wrote(len(piece))
