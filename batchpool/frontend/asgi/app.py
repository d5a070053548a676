"""The Starlette application: its routes, and the responses to exceptions."""

from __future__ import annotations

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
from batchpool.frontend.asgi.batches import batch_routes
from batchpool.frontend.asgi.embeddings import Embeddings
from batchpool.frontend.asgi.entrance import Entrance
from batchpool.frontend.asgi.files import file_routes
from batchpool.frontend.asgi.generate import Generate
from batchpool.frontend.asgi.infer import infer
from batchpool.frontend.asgi.protocol_routes import model_paths, protocol_routes
from batchpool.frontend.asgi.queries import Query
from batchpool.frontend.asgi.sending import (
    SentResponse,
    checked,
    count_end,
    headers_of,
    send_response,
)
from batchpool.frontend.asgi.submission import Submission
from batchpool.frontend.asgi.tasks import task_routes
from batchpool.frontend.asgi.texts import Texts
from batchpool.frontend.dashboard.broadcaster import Broadcaster
from batchpool.frontend.dashboard.routes import page_routes
from batchpool.frontend.http.request_body import RequestBody
from batchpool.frontend.http.request_context import caller_in, note, site_in
from batchpool.frontend.http.request_head import RequestHead
from batchpool.frontend.http.response import HttpResponse, error_response
from batchpool.frontend.service.body_limits import discard_bytes
from batchpool.frontend.service.http_endpoint import VERSION
from batchpool.frontend.service.pool_view import PoolView
from batchpool.wire.preferences import PREFER, async_preference
from batchpool.wire.text_routes import TEXT_ROUTES


def build_app(view: PoolView, broadcaster: Broadcaster | None) -> Starlette:
    """The application of one front end. broadcaster: of the dashboard; None serves none."""
    discard = discard_bytes(view.max_body_bytes)
    routes = [Route(path, Infer(view, discard), methods=["POST"]) for path in model_paths("/infer")]
    for tail, streams in (("/generate", False), ("/generate_stream", True)):
        generate = Generate(view, discard, streams=streams)
        routes += [Route(path, generate, methods=["POST"]) for path in model_paths(tail)]
    routes += protocol_routes(view, discard)
    routes += task_routes(view, discard)
    routes += [
        Route("/v1/models", Query(view.openai.models, discard), methods=["GET"]),
        Route("/v1/models/{model}", Query(view.openai.model, discard), methods=["GET"]),
        Route("/v1/embeddings", Embeddings(view, discard), methods=["POST"]),
    ]
    routes += [
        Route(path, Texts(view, discard, route), methods=["POST"])
        for path, route in TEXT_ROUTES.items()
    ]
    routes += file_routes(view, discard) + batch_routes(view, discard)
    if broadcaster is None:
        routes.append(Route("/", Query(view.metadata.root, discard), methods=["GET"]))
    else:

        async def send_page(response: HttpResponse, request_body: RequestBody, send: Send) -> None:
            await send_response(response, request_body, send, discard)

        routes += page_routes(view, broadcaster, send_page)
    routes.append(Route("/metrics", Metrics(view, discard), methods=["GET"]))

    where = "" if broadcaster is None else "; /openapi.json tells what there is"

    async def respond(request: Request, exc: Exception) -> Response:
        return SentResponse(_error_of(request, exc, where), discard)

    handled = {HTTPException: respond, PoolError: respond, Exception: respond}
    app = _App(view, discard, routes=routes, exception_handlers=handled)
    app.router.redirect_slashes = False
    return app


class _App(Starlette):
    """A Starlette application behind the front end's gate."""

    def __init__(self, view: PoolView, discard_bytes: int, **parts: Any) -> None:
        super().__init__(**parts)

        async def refuse(error: PoolError, scope: Scope, receive: Receive, send: Send) -> None:
            request_body = RequestBody(receive, headers_of(scope))
            await send_response(error_response(error), request_body, send, discard_bytes)

        self._entrance = Entrance(view, super().__call__, refuse)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._entrance(scope, receive, send)


def _error_of(request: Request, exc: Exception, where: str) -> HttpResponse:
    """The JSON response for an exception of Starlette, which logs the unexpected ones by itself.
    where: the end of a message about a path that is not there."""
    if isinstance(exc, PoolError):
        return error_response(exc)
    path = request.url.path
    if not isinstance(exc, HTTPException):
        return error_response(InternalError("internal error; the server's log has the details"))
    if exc.status_code == NotFound.status:
        return error_response(NotFound(f"there is nothing at {path!r}{where}"))
    if exc.status_code == MethodNotAllowed.status:
        allowed = ", ".join(sorted((exc.headers or {}).get("Allow", "").split(", ")))
        text = f"{request.method} is not possible at {path!r}; use {allowed}"
        return error_response(MethodNotAllowed(text, allowed))
    return error_response(InvalidRequest(exc.detail))


class Infer:
    """The route of infer requests."""

    def __init__(self, view: PoolView, discard_bytes: int) -> None:
        self._view = view
        self._discard_bytes = discard_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        request_body = RequestBody(receive, headers)
        parameters = scope["path_params"]
        view, model = self._view, parameters["model"]
        response: HttpResponse | None
        head = RequestHead.of(headers, caller_in(scope))
        metrics = view.endpoints.metrics(model)
        try:
            endpoint = view.endpoints.find(model, parameters.get("version", VERSION))
            note(model=model)
            preference = None
            if PREFER in headers and view.tasks is not None:
                preference = async_preference(scope["headers"])
            if preference is not None and view.tasks is not None:
                fields, prefix = scope["headers"], site_in(scope).prefix
                call = Submission(view.tasks, endpoint, head, preference, fields, prefix)
                response = await call.run(request_body, view.background, view.memory)
            else:
                response = await infer(endpoint, head, request_body, view.background, view.memory)
            response = checked(response)
        except Exception as exc:
            response = error_response(exc)
        count_end(metrics, response, scope, head.at_ns)
        if response is not None:
            await send_response(response, request_body, send, self._discard_bytes)


class Metrics:
    """GET /metrics, made in a thread of its own."""

    def __init__(self, view: PoolView, discard_bytes: int) -> None:
        self._view = view
        self._discard_bytes = discard_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        try:
            accept = headers.get(b"accept", b"")
            view, flow = self._view, caller_in(scope).flow
            tasks = None if view.tasks is None else await view.tasks.status()
            response = await view.scrapes.run(flow, view.scrape, accept, tasks)
        except Exception as exc:
            response = error_response(exc)
        await send_response(response, RequestBody(receive, headers), send, self._discard_bytes)
