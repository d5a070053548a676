"""The page's routes.

/              the live page for browsers, a JSON object for everybody else
/events        its stream
/docs          a page of the API, made from
/openapi.json  the API as an OpenAPI document, for the server as the caller addresses it
/page/NAME     their files
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from batchpool.core.errors import NotFound
from batchpool.frontend.dashboard.assets import SECURITY, asset, names
from batchpool.frontend.dashboard.sse import EventStream, SendAnswer
from batchpool.frontend.http.request_body import RequestBody
from batchpool.frontend.http.response import HttpResponse, json_answer, refusal
from batchpool.frontend.service.pool_view import PoolView, package_version
from batchpool.wire.openapi import document

_HOST = re.compile(rb"[A-Za-z0-9.-]+(:\d+)?|\[[0-9A-Fa-f:.]+\](:\d+)?")
_VARY = (b"vary", b"accept")

Headers = Mapping[bytes, bytes]


def page_routes(front: PoolView, send_answer: SendAnswer) -> list[Route]:
    """send_answer: how an answer is sent, whatever the caller still sends."""

    def root(headers: Headers) -> HttpResponse:
        wants_page = b"text/html" in headers.get(b"accept", b"")
        answer = _asset("index.html", headers) if wants_page else front.root()
        return HttpResponse(answer.status, [*answer.headers, _VARY], answer.body)

    def openapi(headers: Headers) -> HttpResponse:
        facts = front.session.models.values()
        most_rows = {model.spec.name: model.max_batch for model in facts}
        specs = [model.spec for model in facts]
        server_url = _server_url(headers, front.session.server["port"])
        answer = json_answer(document(specs, package_version(), server_url, most_rows))
        fields = [*answer.headers, (b"cache-control", b"no-cache"), *SECURITY]
        return HttpResponse(answer.status, fields, answer.body)

    served = set(names())

    def named(headers: Headers, name: str) -> HttpResponse:
        if name not in served:
            raise NotFound(f"there is nothing at {f'/page/{name}'!r}")
        return _asset(name, headers)

    answers: dict[str, Callable[..., HttpResponse]] = {
        "/": root,
        "/docs": lambda headers: _asset("docs.html", headers),
        "/openapi.json": openapi,
        "/page/{name}": named,
    }
    routes = [
        Route(path, Read(answer, send_answer), methods=["GET"]) for path, answer in answers.items()
    ]
    return [*routes, Route("/events", EventStream(front.broadcast, send_answer), methods=["GET"])]


def _asset(name: str, headers: Headers) -> HttpResponse:
    return asset(name, headers.get(b"if-none-match", b""))


def _server_url(headers: Headers, port: int) -> str:
    """The server as the caller addresses it, if that is an address and nothing else."""
    host = headers.get(b"host", b"")
    if not _HOST.fullmatch(host):
        return f"http://localhost:{port}"
    return f"http://{host.decode()}"


class Read:
    """An endpoint that answers by the request's headers and path, without reading a body."""

    def __init__(self, answer: Callable[..., HttpResponse], send_answer: SendAnswer) -> None:
        self._answer = answer
        self._send_answer = send_answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        try:
            answer = self._answer(headers, **scope["path_params"])
        except Exception as exc:
            answer = refusal(exc)
        await self._send_answer(answer, RequestBody(receive, headers), send)
