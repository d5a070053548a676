"""The Starlette application: its routes, and the sending of every response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from batchpool.core.errors import (
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    PoolError,
)
from batchpool.frontend.asgi.infer import infer
from batchpool.frontend.dashboard.broadcaster import Broadcaster
from batchpool.frontend.dashboard.routes import page_routes
from batchpool.frontend.http.access_log import AccessLog
from batchpool.frontend.http.request_body import RequestBody
from batchpool.frontend.http.request_context import note, outcome_of, run_in_context
from batchpool.frontend.http.request_counters import ASGI
from batchpool.frontend.http.request_head import RequestHead, flow_of
from batchpool.frontend.http.response import HttpResponse, error_response
from batchpool.frontend.service.body_limits import discard_bytes
from batchpool.frontend.service.http_endpoint import VERSION
from batchpool.frontend.service.metadata import Ask
from batchpool.frontend.service.pool_view import PoolView


def build_app(view: PoolView, broadcaster: Broadcaster | None) -> Starlette:
    """The application of one front end. broadcaster: of the dashboard; None serves none."""
    discard = discard_bytes(view.max_body_bytes)
    metadata = view.metadata
    routes = [Route(path, Infer(view, discard), methods=["POST"]) for path in _model("/infer")]
    queries: list[tuple[str, Ask]] = [
        ("/v2/health/live", metadata.live),
        ("/v2/health/ready", metadata.ready),
        ("/v2", metadata.server_metadata),
        *((path, metadata.model_ready) for path in _model("/ready")),
        *((path, metadata.model_config) for path in _model("/config")),
        *((path, metadata.model_metadata) for path in _model("")),
    ]
    if broadcaster is None:
        queries.append(("/", metadata.root))
    routes += [Route(path, Query(ask, discard), methods=["GET"]) for path, ask in queries]
    if broadcaster is not None:

        async def send_response(
            response: HttpResponse, request_body: RequestBody, send: Send
        ) -> None:
            await _send(response, request_body, send, discard)

        routes += page_routes(view, broadcaster, send_response)
    routes.append(Route("/metrics", Metrics(view, discard), methods=["GET"]))

    async def respond(request: Request, exc: Exception) -> Response:
        return _Sent(_error_of(request, exc), discard)

    handled = {HTTPException: respond, PoolError: respond, Exception: respond}
    app = _App(view.access, routes=routes, exception_handlers=handled)
    app.router.redirect_slashes = False
    return app


class _App(Starlette):
    """A Starlette application that runs each request in a `RequestContext`."""

    def __init__(self, access: AccessLog, **parts: Any) -> None:
        super().__init__(**parts)
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await run_in_context(super().__call__, self._access, scope, receive, send)


def _model(tail: str) -> tuple[str, str]:
    return f"/v2/models/{{model}}{tail}", f"/v2/models/{{model}}/versions/{{version}}{tail}"


def _error_of(request: Request, exc: Exception) -> HttpResponse:
    """The JSON response for an exception of Starlette, which logs the unexpected ones by itself."""
    if isinstance(exc, PoolError):
        return error_response(exc)
    path = request.url.path
    if not isinstance(exc, HTTPException):
        return error_response(InternalError("internal error; the server's log has the details"))
    if exc.status_code == NotFound.status:
        return error_response(NotFound(f"there is nothing at {path!r}"))
    if exc.status_code == MethodNotAllowed.status:
        allowed = ", ".join(sorted((exc.headers or {}).get("Allow", "").split(", ")))
        text = f"{request.method} is not possible at {path!r}; use {allowed}"
        return error_response(MethodNotAllowed(text, allowed))
    return error_response(InvalidRequest(exc.detail))


class Query:
    """A route that responds from the front end's own state, without reading a body."""

    def __init__(self, ask: Ask, discard_bytes: int) -> None:
        self._ask = ask
        self._discard_bytes = discard_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = self._ask(**scope["path_params"])
        except Exception as exc:
            response = error_response(exc)
        request_body = RequestBody(receive, _headers(scope))
        await _send(response, request_body, send, self._discard_bytes)


class Infer:
    """The route of infer requests."""

    def __init__(self, view: PoolView, discard_bytes: int) -> None:
        self._view = view
        self._discard_bytes = discard_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _headers(scope)
        request_body = RequestBody(receive, headers)
        parameters = scope["path_params"]
        view, model = self._view, parameters["model"]
        response: HttpResponse | None
        peer = scope.get("client") or ("",)
        head = RequestHead.of(headers, peer[0])
        metrics = view.endpoints.metrics(model)
        try:
            endpoint = view.endpoints.find(model, parameters.get("version", VERSION))
            note(model=model)
            response = await infer(endpoint, head, request_body, view.background, view.memory)
        except Exception as exc:
            response = error_response(exc)
        if response is None:
            metrics.count_error(ASGI, outcome_of(scope).code)
            return
        if response.code == "ok":
            metrics.count_ok(ASGI, head.at_ns)
        else:
            metrics.count_error(ASGI, response.code)
        await _send(response, request_body, send, self._discard_bytes)


class Metrics:
    """GET /metrics, made in a thread of its own."""

    def __init__(self, view: PoolView, discard_bytes: int) -> None:
        self._view = view
        self._discard_bytes = discard_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _headers(scope)
        try:
            accept = headers.get(b"accept", b"")
            peer = scope.get("client") or ("",)
            flow = flow_of(peer[0].encode())
            response = await self._view.scrapes.run(flow, self._view.scrape, accept)
        except Exception as exc:
            response = error_response(exc)
        await _send(response, RequestBody(receive, headers), send, self._discard_bytes)


class _Sent(Response):
    """An `HttpResponse` in the shape that Starlette's exception handling returns."""

    def __init__(self, response: HttpResponse, discard_bytes: int) -> None:
        self._response = response
        self._discard_bytes = discard_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_body = RequestBody(receive, _headers(scope))
        await _send(self._response, request_body, send, self._discard_bytes)


def _headers(scope: Mapping[str, Any]) -> dict[bytes, bytes]:
    return dict(scope["headers"])


async def _send(
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
