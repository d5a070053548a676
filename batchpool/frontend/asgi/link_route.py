"""Routes whose answers come from the task process, over its link: tasks, files and batches."""

from __future__ import annotations

from abc import ABC, abstractmethod

from starlette.types import Receive, Scope, Send

from batchpool.frontend.asgi.sending import checked, headers_of, send_response
from batchpool.frontend.http.memory_budget import MemoryReservation
from batchpool.frontend.http.request_body import RequestBody
from batchpool.frontend.http.response import HttpResponse, error_response
from batchpool.frontend.service.pool_view import PoolView
from batchpool.wire.encoding import decode_body
from batchpool.wire.request import Body, Headers

_MOST_BYTES = 64 * 1024


class LinkRoute(ABC):
    """Sends what `_respond` gives, or the response of the error that it raises."""

    def __init__(self, view: PoolView, discard_bytes: int) -> None:
        self._view = view
        self._discard_bytes = discard_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_body = RequestBody(receive, headers_of(scope))
        response: HttpResponse | None
        try:
            response = checked(await self._respond(scope, request_body, send))
        except Exception as exc:
            response = error_response(exc)
        if response is not None:
            await send_response(response, request_body, send, self._discard_bytes)

    @abstractmethod
    async def _respond(
        self, scope: Scope, request_body: RequestBody, send: Send
    ) -> HttpResponse | None:
        """The response; None when the caller has gone or has it."""

    async def _read(self, request_body: RequestBody, headers: Headers, flow: int) -> Body | None:
        """A small body, whole and decoded; None when the caller has gone. flow: the caller's."""
        reservation = MemoryReservation(self._view.memory, flow)
        try:
            body = await request_body.read(_MOST_BYTES, reservation)
        finally:
            reservation.release()
        return None if body is None else decode_body(headers, body, _MOST_BYTES)
