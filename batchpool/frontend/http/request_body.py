"""Upload: a request's body as it comes in over ASGI, and word of the caller's going.

The body is counted while it arrives, so that a limit holds for chunked bodies too. What is
left of a refused body is discarded as it arrives: the caller, who may still be sending, gets
to read its answer, and the connection stays usable.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from batchpool.core.errors import TooLarge
from batchpool.frontend.http.body_budget import BodyReservation
from batchpool.wire.request import Body, Headers

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class RequestBody:
    """One body. ended: all of it has come.  lost: the caller has closed the connection."""

    __slots__ = ("_receive", "awaited", "ended", "lost")

    def __init__(self, receive: Receive, headers: Headers) -> None:
        self._receive = receive
        announced = headers.get(b"content-length", b"0").strip(b"0")
        self.ended = not announced and b"transfer-encoding" not in headers
        self.lost = False
        # The caller sends nothing until it is told to go on, which the first read does.
        self.awaited = headers.get(b"expect", b"").lower() == b"100-continue"

    async def _next(self) -> bytes:
        """The next piece, empty at the end and when the caller has gone."""
        self.awaited = False
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.lost = True
            return b""
        self.ended = not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        return piece

    def is_over(self) -> bool:
        """Whether nothing more of the body will come."""
        return self.ended or self.lost

    async def read(self, most_bytes: int, held: BodyReservation) -> Body | None:
        """The whole body; None when the caller has gone. TooLarge beyond `most_bytes`, Overloaded
        where too much is held of all bodies; `held` counts it while it arrives."""
        first = b"" if self.is_over() else await self._next()
        body: bytes | bytearray = first
        if not self.is_over():
            body = bytearray(first)
            while len(body) <= most_bytes and not self.is_over():
                held.grow_to(len(body))
                body += await self._next()
        if self.lost:
            return None
        if len(body) > most_bytes:
            raise TooLarge(f"the body is larger than {most_bytes} bytes, the most that is taken")
        return body

    async def discard(self, most_bytes: int) -> None:
        """Take what is left of the body and drop it; give up after `most_bytes`."""
        while most_bytes > 0 and not self.is_over():
            most_bytes -= len(await self._next())

    async def until_lost(self) -> None:
        """Return when the caller has closed the connection. Call after the body has ended."""
        while not self.lost:
            await self._next()
