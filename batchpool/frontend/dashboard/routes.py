"""The routes of the dashboard.

/              the live page for browsers, a JSON object for other clients
/events        the page's stream of snapshots
/docs          a page of the API, made from /openapi.json
/openapi.json  the API as an OpenAPI document, for the server as the caller addresses it
/page/NAME     the files of both pages
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from batchpool.core.errors import NotFound
from batchpool.frontend.dashboard.assets import SECURITY, asset, names
from batchpool.frontend.dashboard.broadcaster import Broadcaster
from batchpool.frontend.dashboard.sse import EventStream, SendResponse
from batchpool.frontend.http.caller import Site
from batchpool.frontend.http.proxies import is_authority
from batchpool.frontend.http.request_body import RequestBody
from batchpool.frontend.http.request_context import site_in
from batchpool.frontend.http.response import HttpResponse, error_response, json_response
from batchpool.frontend.service.metadata import package_version
from batchpool.frontend.service.pool_view import PoolView
from batchpool.wire.openapi import document

_VARY = (b"vary", b"accept")


class Asked(NamedTuple):
    """A request for a page. site: the server as its caller addresses it."""

    headers: Mapping[bytes, bytes]
    site: Site


def page_routes(
    view: PoolView, broadcaster: Broadcaster, send_response: SendResponse
) -> list[Route]:
    """The routes of one front end. send_response: sends a response, and discards request bodies."""

    def root(asked: Asked) -> HttpResponse:
        wants_page = b"text/html" in asked.headers.get(b"accept", b"")
        response = _asset("index.html", asked) if wants_page else view.metadata.root()
        return HttpResponse(response.status, [*response.headers, _VARY], response.body)

    def openapi(asked: Asked) -> HttpResponse:
        facts = view.session.models.values()
        most_rows = {model.spec.name: model.max_batch for model in facts}
        specs = [model.spec for model in facts]
        server_url = _server_url(asked.site, view.session.server["port"])
        response = json_response(document(specs, package_version(), server_url, most_rows))
        fields = [*response.headers, (b"cache-control", b"no-cache"), *SECURITY]
        return HttpResponse(response.status, fields, response.body)

    served = set(names())

    def named(asked: Asked, name: str) -> HttpResponse:
        if name not in served:
            raise NotFound(f"there is nothing at {f'/page/{name}'!r}")
        return _asset(name, asked)

    responses: dict[str, Callable[..., HttpResponse]] = {
        "/": root,
        "/docs": lambda asked: _asset("docs.html", asked),
        "/openapi.json": openapi,
        "/page/{name}": named,
    }
    routes = [
        Route(path, Read(respond, send_response), methods=["GET"])
        for path, respond in responses.items()
    ]
    return [*routes, Route("/events", EventStream(broadcaster, send_response), methods=["GET"])]


def _asset(name: str, asked: Asked) -> HttpResponse:
    return asset(name, asked.headers.get(b"if-none-match", b""))


def _server_url(site: Site, port: int) -> str:
    """The server's URL as the caller addresses it; localhost if its Host header is malformed."""
    host = site.host if is_authority(site.host) else f"localhost:{port}"
    return f"{site.scheme}://{host}{site.prefix}"


class Read:
    """A route that responds by the request's headers and path, without reading a body."""

    def __init__(self, respond: Callable[..., HttpResponse], send_response: SendResponse) -> None:
        self._respond = respond
        self._send_response = send_response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        try:
            response = self._respond(Asked(headers, site_in(scope)), **scope["path_params"])
        except Exception as exc:
            response = error_response(exc)
        await self._send_response(response, RequestBody(receive, headers), send)
