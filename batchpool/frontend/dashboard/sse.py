"""GET /events: the snapshots of a front end to one viewer, as server-sent events.

A viewer that reads slowly gets the newest snapshot when it has taken the last one, never a
queue of them. What is sent:

    retry: 1000                  once, first: the delay before reconnecting, in ms
    data: {...}                  a snapshot, at once and then every second
    event: end / data: "reason"  last: this front end stops
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
from batchpool.frontend.http.response import HttpResponse, error_response, ok_response

BEAT_S = 5.0
RETRY_MS = 1000
_FIELDS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would buffer the stream
    *SECURITY,
]

SendResponse = Callable[[HttpResponse, RequestBody, Send], Awaitable[None]]


class EventStream:
    """The route. send_response: sends a response that is no stream."""

    def __init__(self, broadcaster: Broadcaster, send_response: SendResponse) -> None:
        self._broadcaster = broadcaster
        self._send_response = send_response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_body = RequestBody(receive, dict(scope["headers"]))
        if scope["method"] == "HEAD":
            await self._send_response(ok_response(_FIELDS, b""), request_body, send)
            return
        address = (scope.get("client") or ("",))[0]
        try:
            self._broadcaster.join(address)
        except PoolError as exc:
            await self._send_response(error_response(exc), request_body, send)
            return
        lost = asyncio.create_task(request_body.until_lost())
        sending = asyncio.create_task(self._send_all(send))
        try:
            await asyncio.wait((lost, sending), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            lost.cancel()
            sending.cancel()
            self._broadcaster.leave(address)

    async def _send_all(self, send: Send) -> None:
        async def write(piece: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": piece, "more_body": more})

        broadcaster = self._broadcaster
        await send({"type": "http.response.start", "status": 200, "headers": _FIELDS})
        await write(b"retry: %d\n\n" % RETRY_MS)
        seen = broadcaster.count - bool(
            broadcaster.latest
        )  # at first one that was made for another viewer
        while not broadcaster.ended:
            if not await broadcaster.after(seen, BEAT_S):
                await write(b": beat\n\n")
            elif broadcaster.count > seen:
                seen = broadcaster.count
                await write(broadcaster.latest)
        await write(event(broadcaster.ended, "end"), more=False)
