"""A request's body as it comes in over ASGI, and the end of its connection.

The body is counted while it arrives, so that a limit holds for chunked bodies too. The rest of a
refused body is discarded as it arrives: the caller, which may still be sending, gets to read its
response, and the connection stays usable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from batchpool.core.errors import Overloaded, TooLarge
from batchpool.frontend.http.memory_budget import MemoryReservation
from batchpool.wire.request import Body, Headers

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class RequestBody:
    """One body. ended: all of it has come.  lost: the caller has closed the connection.

    expects_continue: the caller sends nothing until it gets 100 Continue, which the first read
    sends.
    """

    __slots__ = ("_receive", "ended", "expects_continue", "lost")

    def __init__(self, receive: Receive, headers: Headers) -> None:
        self._receive = receive
        announced = headers.get(b"content-length", b"0").strip(b"0")
        self.ended = not announced and b"transfer-encoding" not in headers
        self.lost = False
        self.expects_continue = headers.get(b"expect", b"").lower() == b"100-continue"

    async def _next(self) -> bytes:
        """The next piece, empty at the end and when the caller has gone."""
        self.expects_continue = False
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.lost = True
            return b""
        self.ended = not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        return piece

    def is_over(self) -> bool:
        """True if nothing more of the body will come."""
        return self.ended or self.lost

    async def read(
        self, max_bytes: int, reservation: MemoryReservation, advice: str = "send less at a time"
    ) -> Body | None:
        """The whole body; None when the caller has gone.

        reservation: counts the bytes while they arrive. Raises TooLarge beyond `max_bytes`, and
        Overloaded where the bodies of all requests take too much memory, or this one was given up
        for another caller's. advice: what helps whose body is too large.
        """
        first = b"" if self.is_over() else await self._next()
        body: bytes | bytearray = first
        if not self.is_over():
            body = bytearray(first)
            with _giving_up(reservation):
                while len(body) <= max_bytes and not self.is_over():
                    reservation.grow_to(len(body))
                    body += await self._next()
        if self.lost:
            return None
        if len(body) > max_bytes:
            raise TooLarge(
                f"the body is larger than {max_bytes} bytes, the most that is taken: {advice}"
            )
        return body

    async def next_piece(self) -> bytes:
        """The next bytes of a body that is read piece by piece; b"" at its end, and when the caller
        has gone."""
        while not self.is_over():
            if piece := await self._next():
                return piece
        return b""

    async def discard(self, max_bytes: int) -> None:
        """Take the rest of the body and drop it; stop after `max_bytes`."""
        while max_bytes > 0 and not self.is_over():
            max_bytes -= len(await self._next())

    async def until_lost(self) -> None:
        """Return when the caller has closed the connection. Call after the body has ended."""
        while not self.lost:
            await self._next()


@contextmanager
def _giving_up(reservation: MemoryReservation) -> Iterator[None]:
    """Let the block, which waits for the caller, be given up for other callers: it ends with the
    error that says so."""
    task = asyncio.current_task()
    given_up: list[Overloaded] = []

    def give_up(error: Overloaded) -> bool:
        assert task is not None
        given_up.append(error)
        return task.cancel()

    reservation.give_up = give_up
    try:
        yield
    except asyncio.CancelledError:
        if not given_up or task is None:
            raise
        task.uncancel()
        raise given_up[0] from None
    finally:
        reservation.keep()
