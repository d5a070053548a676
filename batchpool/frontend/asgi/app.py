"""The Starlette application: routes, and the one way in which every answer is sent."""

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
from batchpool.frontend.dashboard.routes import page_routes
from batchpool.frontend.http.access_log import AccessLog
from batchpool.frontend.http.metrics import ASGI
from batchpool.frontend.http.request_body import RequestBody
from batchpool.frontend.http.request_context import ended, note, visit
from batchpool.frontend.http.response import HttpResponse, refusal
from batchpool.frontend.service.endpoint import VERSION, RequestHead
from batchpool.frontend.service.pool_view import Ask, PoolView

# How much of a body that was refused is taken and dropped so that the caller can read why.
# It costs no memory; a caller that goes on sending beyond that loses its connection.
_LEAST_DISCARD_BYTES = 256 * 2**20


def build_app(front: PoolView) -> Starlette:
    """The application of one front end."""
    discard = discard_bytes(front)
    routes = [Route(path, Infer(front, discard), methods=["POST"]) for path in _model("/infer")]
    questions: list[tuple[str, Ask]] = [
        ("/v2/health/live", front.live),
        ("/v2/health/ready", front.ready),
        ("/v2", front.server_metadata),
        *((path, front.model_ready) for path in _model("/ready")),
        *((path, front.model_config) for path in _model("/config")),
        *((path, front.model_metadata) for path in _model("")),
    ]
    if not front.has_page:
        questions.append(("/", front.root))
    routes += [Route(path, Question(ask, discard), methods=["GET"]) for path, ask in questions]
    if front.has_page:

        async def send_answer(answer: HttpResponse, upload: RequestBody, send: Send) -> None:
            await _send(answer, upload, send, discard)

        routes += page_routes(front, send_answer)
    routes.append(Route("/metrics", Metrics(front, discard), methods=["GET"]))

    async def refuse(request: Request, exc: Exception) -> Response:
        return _Sent(_refusal_of(request, exc), discard)

    refused = {HTTPException: refuse, PoolError: refuse, Exception: refuse}
    app = _App(front.access, routes=routes, exception_handlers=refused)
    app.router.redirect_slashes = False
    return app


class _App(Starlette):
    """It answers each request as a visit."""

    def __init__(self, access: AccessLog, **parts: Any) -> None:
        super().__init__(**parts)
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await visit(super().__call__, self._access, scope, receive, send)


def discard_bytes(front: PoolView) -> int:
    """How much of a refused body is taken and dropped."""
    return max(_LEAST_DISCARD_BYTES, 4 * front.max_body_bytes)


def _model(tail: str) -> tuple[str, str]:
    return f"/v2/models/{{model}}{tail}", f"/v2/models/{{model}}/versions/{{version}}{tail}"


def _refusal_of(request: Request, exc: Exception) -> HttpResponse:
    """What Starlette refuses, in our words. It logs by itself what nobody expected."""
    if isinstance(exc, PoolError):
        return refusal(exc)
    path = request.url.path
    if not isinstance(exc, HTTPException):
        return refusal(InternalError("internal error; the server's log has the details"))
    if exc.status_code == NotFound.status:
        return refusal(NotFound(f"there is nothing at {path!r}"))
    if exc.status_code == MethodNotAllowed.status:
        allowed = ", ".join(sorted((exc.headers or {}).get("Allow", "").split(", ")))
        text = f"{request.method} is not possible at {path!r}; use {allowed}"
        return refusal(MethodNotAllowed(text, allowed))
    return refusal(InvalidRequest(exc.detail))


class Question:
    """An endpoint that answers from what the front end knows, without reading a body."""

    def __init__(self, ask: Ask, discard_bytes: int) -> None:
        self._ask = ask
        self._discard_bytes = discard_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = self._ask(**scope["path_params"])
        except Exception as exc:
            answer = refusal(exc)
        upload = RequestBody(receive, _headers(scope))
        await _send(answer, upload, send, self._discard_bytes)


class Infer:
    """The infer endpoint."""

    def __init__(self, front: PoolView, discard_bytes: int) -> None:
        self._front = front
        self._discard_bytes = discard_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _headers(scope)
        upload = RequestBody(receive, headers)
        names = scope["path_params"]
        answer: HttpResponse | None
        peer = scope.get("client") or ("",)
        arrival = RequestHead.of(headers, peer[0])
        meter = self._front.meter(names["model"])
        try:
            endpoint = self._front.endpoint(names["model"], names.get("version", VERSION))
            note(model=names["model"])
            front = self._front
            answer = await infer(endpoint, arrival, upload, front.aside, front.bodies)
        except Exception as exc:
            answer = refusal(exc)
        if answer is None:
            meter.refused(ASGI, ended(scope).code)
            return
        if answer.code == "ok":
            meter.answered(ASGI, arrival.at_ns)
        else:
            meter.refused(ASGI, answer.code)
        await _send(answer, upload, send, self._discard_bytes)


class Metrics:
    """GET /metrics, made in the thread for long work."""

    def __init__(self, front: PoolView, discard_bytes: int) -> None:
        self._front = front
        self._discard_bytes = discard_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _headers(scope)
        try:
            accept = headers.get(b"accept", b"")
            answer = await self._front.aside.begin(self._front.scrape, accept)
        except Exception as exc:
            answer = refusal(exc)
        await _send(answer, RequestBody(receive, headers), send, self._discard_bytes)


class _Sent(Response):
    """An answer as Starlette's exception handling wants it."""

    def __init__(self, answer: HttpResponse, discard_bytes: int) -> None:
        self._answer = answer
        self._discard_bytes = discard_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _send(self._answer, RequestBody(receive, _headers(scope)), send, self._discard_bytes)


def _headers(scope: Mapping[str, Any]) -> dict[bytes, bytes]:
    return dict(scope["headers"])


async def _send(answer: HttpResponse, upload: RequestBody, send: Send, discard_bytes: int) -> None:
    """Send an answer at once, and after it take and drop what is left of the body.

    A caller that still waits for leave to send its body gets the answer instead, and the
    connection ends: nobody could say whether what follows is that body or the next request.
    """
    headers = answer.headers
    note(code=answer.code, error=answer.error)
    closing = upload.awaited and not upload.ended
    if closing:
        headers = [*headers, (b"connection", b"close")]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    whole = upload.is_over() or closing
    await send({"type": "http.response.body", "body": answer.body, "more_body": not whole})
    if not whole:
        await upload.discard(discard_bytes)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
