"""Sends responses over ASGI, and takes the rest of a request's body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from batchpool.core.errors import Overloaded
from batchpool.frontend.http.request_body import RequestBody
from batchpool.frontend.http.request_context import current, note, outcome_of
from batchpool.frontend.http.request_counters import ASGI, RequestCounters
from batchpool.frontend.http.response import LONG_BODY_BYTES, HttpResponse


def headers_of(scope: Mapping[str, Any]) -> dict[bytes, bytes]:
    """The headers of a request, with lower-case names."""
    return dict(scope["headers"])


def checked(response: HttpResponse | None) -> HttpResponse | None:
    """A response, which is returned. Raises Overloaded for a long one that the caller of the
    running task may not take just now."""
    context = current()
    writer = None if context is None else context.writer
    if response is not None and len(response.body) > LONG_BODY_BYTES and writer is not None:
        writer.check_response(len(response.body))
    return response


def may_take(response: HttpResponse) -> bool:
    """False for a long response that the caller of the running task may not take just now."""
    try:
        checked(response)
    except Overloaded:
        return False
    return True


def count_end(
    metrics: RequestCounters, response: HttpResponse | None, scope: Scope, begun_ns: int
) -> None:
    """Count a request that ends with this response; None: its caller has gone."""
    if response is not None and response.code == "ok":
        metrics.count_ok(ASGI, begun_ns)
    else:
        code = outcome_of(scope).code if response is None else response.code
        metrics.count_error(ASGI, code, begun_ns)


async def send_response(
    response: HttpResponse, request_body: RequestBody, send: Send, discard_bytes: int
) -> None:
    """Send a response at once, and then take and drop the rest of the request's body.

    A caller that still waits for 100 Continue gets the response instead, and the connection ends:
    the bytes that follow could be that body or the next request.
    """
    headers = response.headers
    note(code=response.code, error=response.error)
    closing = request_body.expects_continue and not request_body.ended
    if closing:
        headers = [*headers, (b"connection", b"close")]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    whole = request_body.is_over() or closing
    await send({"type": "http.response.body", "body": response.body, "more_body": not whole})
    if not whole:
        await request_body.discard(discard_bytes)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class SentResponse(Response):
    """An `HttpResponse` in the shape that Starlette's exception handling returns."""

    def __init__(self, response: HttpResponse, discard_bytes: int) -> None:
        self._response = response
        self._discard_bytes = discard_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_body = RequestBody(receive, headers_of(scope))
        await send_response(self._response, request_body, send, self._discard_bytes)
