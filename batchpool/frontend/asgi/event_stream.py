"""Server-sent events as the response to one request.

    head         goes out with the first piece, so that what is refused before has its own status
    data: ...    one write for all events of one piece
    : \\n\\n       a comment after some seconds of silence, which keeps proxies from giving up
    the end      after the last piece; an error after the first is one event, the last

A caller that reads slowly makes `send` wait, and with it the source of the pieces: nothing is
queued here. A source that does not wait may write beside that (`write_now`) while the caller takes
what it gets. One that takes no byte for `ConnectionLimits.stall_s` is cut by its connection, which
looks here as if it had gone.
https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.types import Send

from batchpool.frontend.http.body_writer import BodyWriter
from batchpool.frontend.http.request_body import RequestBody
from batchpool.frontend.http.request_context import current, note
from batchpool.frontend.http.response import HttpResponse, error_response

BEAT_S = 15.0
_BEAT = b": \n\n"
_FIELDS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would buffer the stream
]

Pieces = AsyncGenerator[bytes, None]


def event(content: bytes) -> bytes:
    """One event. content: JSON or another text of one line."""
    return b"data: %s\n\n" % content


class EventStream:
    """The response to one request whose body has come. send: of ASGI.

    lost: called at once when the caller goes; it is to end the wait for the next piece. ended: told
    of how it ended, as of `run`, just before the last bytes go out. beat_s: the silence before a
    comment, BEAT_S if None.
    """

    def __init__(
        self,
        request_body: RequestBody,
        send: Send,
        *,
        lost: Callable[[], None],
        ended: Callable[[HttpResponse | None], None] = lambda end: None,
        beat_s: float | None = None,
    ) -> None:
        self._request_body = request_body
        self._send = send
        self._lost = lost
        self._ended = ended
        self._beat_s = BEAT_S if beat_s is None else beat_s
        self._begun = self._writing = False
        self._wrote_s = 0.0
        context = current()
        self._writer: BodyWriter | None = None if context is None else context.writer

    def may_write_now(self) -> bool:
        """True if `write_now` is possible: the head is out, nothing is being sent, and the caller
        takes what it gets."""
        writer = self._writer
        return writer is not None and self._begun and not self._writing and writer.is_open

    def write_now(self, piece: bytes) -> None:
        """Send a piece, of one event or several, without waiting. Only where `may_write_now`, and
        while the source of `run` has nothing to give."""
        assert self._writer is not None, "may_write_now was not asked"
        self._writer.write(piece)
        self._wrote_s = time.monotonic()

    async def run(self, pieces: Pieces) -> HttpResponse | None:
        """Send all pieces, each of them one event or several, and the end.

        Returns how it ended, for `count_end`: the 200 response, whose body is not kept, or that of
        the error within the stream, whose body was the last event; None when the caller has gone.
        Raises an error that comes before the first piece, when nothing was sent.
        """
        watch = asyncio.create_task(self._watch())
        try:
            return await self._send_all(pieces)
        finally:
            watch.cancel()

    async def _send_all(self, pieces: Pieces) -> HttpResponse | None:
        error = None
        async with aclosing(pieces):
            try:
                async for piece in pieces:
                    if self._request_body.lost:
                        break
                    await self._write(piece)
            except Exception as exc:
                if not self._begun and not self._request_body.lost:
                    raise
                error = error_response(exc)
        if self._request_body.lost:
            self._ended(None)
            return None
        end = error or HttpResponse(200, [], b"")
        note(code=end.code, error=end.error)
        self._ended(end)
        await self._write(event(error.body) if error else b"", more=False)
        return end

    async def _write(self, piece: bytes, *, more: bool = True) -> None:
        self._writing = True
        if not self._begun:
            self._begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": [*_FIELDS]})
        await self._send({"type": "http.response.body", "body": piece, "more_body": more})
        self._writing = not more  # no comment follows the end
        self._wrote_s = time.monotonic()

    async def _watch(self) -> None:
        """Notice that the caller has gone; write comments while there is nothing else."""
        leaving = asyncio.create_task(self._request_body.until_lost())
        wait_s = self._beat_s
        try:
            while not (await asyncio.wait((leaving,), timeout=wait_s))[0]:
                silent_s = time.monotonic() - self._wrote_s
                if self._begun and not self._writing and silent_s >= self._beat_s:
                    await self._write(_BEAT)
                    silent_s = 0.0
                wait_s = max(self._beat_s - silent_s, self._beat_s / 10)
            self._lost()
        finally:
            leaving.cancel()
