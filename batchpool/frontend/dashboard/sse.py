"""Events: GET /events, the snapshots of a front end to one viewer as server-sent events.

A viewer that reads slowly gets the newest snapshot when it has taken the last one, never a
queue of them. What is sent:

    retry: 1000                  once, first: how soon to come again, in ms
    data: {...}                  a snapshot, at once and then every second
    event: end / data: "why"     the last one: this front end takes its leave
    : beat                       when there has been no snapshot for some seconds
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.types import Receive, Scope, Send

from batchpool.core.errors import PoolError
from batchpool.frontend.dashboard.assets import SECURITY
from batchpool.frontend.dashboard.broadcaster import Broadcaster, event
from batchpool.frontend.http.request_body import RequestBody
from batchpool.frontend.http.response import HttpResponse, found, refusal

BEAT_S = 5.0
RETRY_MS = 1000
_FIELDS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would keep it back
    *SECURITY,
]

SendAnswer = Callable[[HttpResponse, RequestBody, Send], Awaitable[None]]


class EventStream:
    """The endpoint. send_answer: how an answer that is no stream is sent."""

    def __init__(self, broadcast: Broadcaster, send_answer: SendAnswer) -> None:
        self._broadcast = broadcast
        self._send_answer = send_answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        upload = RequestBody(receive, dict(scope["headers"]))
        if scope["method"] == "HEAD":
            await self._send_answer(found(_FIELDS, b""), upload, send)
            return
        try:
            self._broadcast.join()
        except PoolError as exc:
            await self._send_answer(refusal(exc), upload, send)
            return
        lost = asyncio.create_task(upload.until_lost())
        sending = asyncio.create_task(self._send_all(send))
        try:
            await asyncio.wait((lost, sending), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            lost.cancel()
            sending.cancel()
            self._broadcast.leave()

    async def _send_all(self, send: Send) -> None:
        async def write(piece: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": piece, "more_body": more})

        broadcast = self._broadcast
        await send({"type": "http.response.start", "status": 200, "headers": _FIELDS})
        await write(b"retry: %d\n\n" % RETRY_MS)
        seen = broadcast.count - bool(broadcast.latest)  # at first another viewer's will do
        while not broadcast.ended:
            if not await broadcast.after(seen, BEAT_S):
                await write(b": beat\n\n")
            elif broadcast.count > seen:
                seen = broadcast.count
                await write(broadcast.latest)
        await write(event(broadcast.ended, "end"), more=False)
