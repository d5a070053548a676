"""The entrance of the ASGI path, which every request passes before its route: gate and CORS.

    caller and site   who sent it and how that caller addresses the server, also behind a proxy
    CORS              answers a browser's question before it asks (preflight), and marks every
                      answer to a page of an allowed site, errors included
    gate              refuses what may not come in

The fast path leaves to this one what it would refuse, and requests of browsers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from batchpool.core.config.network_names import ANY
from batchpool.core.errors import Forbidden, PoolError
from batchpool.frontend.http.caller import Caller
from batchpool.frontend.http.request_context import run_in_context, set_caller, site_in
from batchpool.frontend.http.request_counters import ASGI
from batchpool.frontend.http.response import error_response
from batchpool.frontend.service.pool_view import PoolView
from batchpool.wire.request import HEADER_LENGTH, brief

Refuse = Callable[[PoolError, Scope, Receive, Send], Awaitable[None]]

_PEER = "batchpool.peer"
_METHODS = ("DELETE", "GET", "HEAD", "POST")
# What a script of another site may read of an answer beside its body.
_EXPOSED = (
    *(HEADER_LENGTH.decode(), "retry-after", "retry-after-ms", "x-request-id"),
    *("location", "preference-applied", "idempotency-replayed"),
)


class Entrance:
    """The entrance of one front end. app: the routes behind it. refuse: sends an error."""

    def __init__(self, view: PoolView, app: ASGIApp, refuse: Refuse) -> None:
        self._view = view
        self._app = app
        self._refuse = refuse
        self._edition = 0
        self._inner: ASGIApp = self._gated

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gate = self._view.gate
        if scope["type"] == "http":
            client = scope.get("client") or ("", 0)
            peer = Caller(client[0])
            headers, scheme = dict(scope["headers"]), scope["scheme"]
            caller, site = gate.caller(peer, scope["headers"]), gate.site(peer, headers, scheme)
            scope["client"] = caller.address, client[1] if caller is peer else 0
            scope["scheme"], scope["root_path"] = site.scheme, site.prefix
            set_caller(scope, caller, site)
            scope[_PEER] = peer
            if self._edition != gate.edition:
                self._edition = gate.edition
                allowed = gate.origins.allowed
                self._inner = _Cors(self._gated, allowed) if allowed else self._gated
        await run_in_context(self._inner, self._view.access, scope, receive, send)

    async def _gated(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            view, headers = self._view, dict(scope["headers"])
            path = scope.get("raw_path") or scope["path"].encode()
            try:
                caller = view.gate.admit(scope[_PEER], path, scope["headers"], headers)
                set_caller(scope, caller, site_in(scope))
                view.gate.origins.check(scope["method"], headers, site_in(scope))
            except PoolError as exc:
                endpoint = view.endpoints.by_path.get(path)
                if endpoint is not None:
                    endpoint.metrics.count_error(ASGI, exc.code)
                await self._refuse(exc, scope, receive, send)
                return
        await self._app(scope, receive, send)


class _Cors(CORSMiddleware):
    """Starlette's CORS, whose refusals are JSON as all others. origins: those that are allowed."""

    def __init__(self, app: ASGIApp, origins: tuple[str, ...]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=_METHODS,
            allow_headers=("*",),
            expose_headers=_EXPOSED,
            # A page of the wide net may ask a server of a private one if it is listed by name.
            allow_private_network=ANY not in origins,
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code == 200:
            return response
        reason = bytes(response.body).decode()
        error = error_response(
            Forbidden(
                f"{reason}: pages of {brief(request_headers['origin'])} may not send this; the"
                " configuration lists origins in cors_origins"
            )
        )
        fields = {
            name: value
            for name, value in response.headers.items()
            if name not in ("content-length", "content-type")
        }
        fields["content-type"] = "application/json"
        return Response(error.body, error.status, fields)
