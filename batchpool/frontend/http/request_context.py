"""The context of one request on the ASGI path: its id, its model and its access-log line.

Each ASGI request is a task of its own, so the code that answers it finds its context with
`current`, and every log line of that task carries the request's id.
"""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from contextvars import ContextVar
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batchpool.frontend.http.access_log import (
    GONE,
    LEAST_ERROR,
    AccessLog,
    LoggedRequest,
    RequestOutcome,
)
from batchpool.frontend.http.body_writer import BodyWriter
from batchpool.frontend.http.caller import Caller, Site
from batchpool.wire.request_id import REQUEST_ID, made_id, request_id

_OUTCOME = "batchpool.outcome"
_CALLER = "batchpool.caller"
_SITE = "batchpool.site"
_current: ContextVar[RequestContext | None] = ContextVar("request_context", default=None)


class RequestContext:
    """One request. model, rows, tokens: set once they are known. code, error: of its response; "ok"
    and "" for no error. writer: of its body; None where the server has none."""

    def __init__(self, scope: Scope, access: AccessLog) -> None:
        self.writer: BodyWriter | None = None
        self.code = "ok"
        self.error = ""
        self.model = ""
        self.rows = 0
        self.tokens = 0
        self._begun_ns = time.monotonic_ns()
        self._scope = scope
        self._access = access
        self._headers = dict(scope["headers"])
        self._request_id = request_id(self._headers)
        self._status = 0
        self._is_logged = False
        self._ended_ns = 0  # when the response's last bytes were written
        self._bytes_in = self._bytes_out = 0

    @property
    def request_id(self) -> bytes:
        """The request's id; a made one, which the response then carries, if it brought none."""
        if not self._request_id:
            self._request_id = made_id()
        return self._request_id

    @property
    def path(self) -> str:
        """The path without the query, and without the prefix under which a proxy shows it."""
        path: str = self._scope["path"]
        return path.removeprefix(self._scope.get("root_path", ""))

    async def run(self, app: ASGIApp, receive: Receive, send: Send) -> None:
        """Let the application answer, and write the request's access-log line."""

        async def counted_receive() -> Message:
            message = await receive()
            self._bytes_in += len(message.get("body", b""))
            return message

        async def observed_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._begin_response(message)
            elif message["type"] == "http.response.body":
                self._bytes_out += len(message.get("body", b""))
            await send(message)
            if message["type"] != "http.response.body" or message.get("body"):
                self._ended_ns = time.monotonic_ns()

        self.writer = BodyWriter.of(send, self._wrote)
        try:
            await app(
                self._scope, counted_receive if self._access.is_on else receive, observed_send
            )
        finally:
            self.writer = None
            self._log()

    def _wrote(self, n: int) -> None:
        self._bytes_out += n
        self._ended_ns = time.monotonic_ns()

    def _begin_response(self, message: MutableMapping[str, Any]) -> None:
        status = self._status = message["status"]
        self._is_logged = self._access.wants(status, self._request_id, self.path)
        if self._request_id or self._is_logged or status >= LEAST_ERROR:
            message["headers"] = [*message["headers"], (REQUEST_ID, self.request_id)]

    def _log(self) -> None:
        outcome = RequestOutcome(self._status, self.code, self.error, self._bytes_out)
        if not self._status:
            outcome, self._request_id = self._scope.get(_OUTCOME, (GONE, self._request_id))
            self._is_logged = self._access.wants(outcome.status, self._request_id)
        if self._is_logged:
            self._access.write(
                self._logged_request(), outcome, self._ended_ns or time.monotonic_ns()
            )

    def _logged_request(self) -> LoggedRequest:
        scope, caller = self._scope, caller_in(self._scope)
        return LoggedRequest(
            road="asgi",
            peer=caller.address,
            method=scope["method"],
            path=scope.get("raw_path") or scope["path"].encode(),
            headers=self._headers,
            begun_ns=self._begun_ns,
            request_id=self.request_id,
            model=self.model,
            rows=self.rows,
            bytes_in=self._bytes_in,
            key=caller.key,
            tokens=self.tokens,
        )


async def run_in_context(
    app: ASGIApp, access: AccessLog, scope: Scope, receive: Receive, send: Send
) -> None:
    """Call an ASGI application within a new `RequestContext`."""
    if scope["type"] != "http":
        await app(scope, receive, send)
        return
    context = RequestContext(scope, access)
    _current.set(context)
    await context.run(app, receive, send)


def set_caller(scope: MutableMapping[str, Any], caller: Caller, site: Site) -> None:
    """Record who sent this request, and the server as that caller sees it."""
    scope[_CALLER] = caller
    scope[_SITE] = site


def caller_in(scope: MutableMapping[str, Any]) -> Caller:
    """The caller of a request; its peer where nobody has recorded another."""
    caller: Caller | None = scope.get(_CALLER)
    return caller or Caller((scope.get("client") or ("",))[0])


def site_in(scope: MutableMapping[str, Any]) -> Site:
    """The server as the caller of this request sees it."""
    site: Site = scope[_SITE]
    return site


def set_outcome(scope: MutableMapping[str, Any], outcome: RequestOutcome, name: bytes) -> None:
    """Record that the connection itself has answered this request, with the id `name`.

    The application's task goes on until it receives the disconnect.
    """
    scope[_OUTCOME] = outcome, name


def outcome_of(scope: MutableMapping[str, Any]) -> RequestOutcome:
    """The outcome of a request that the application has not answered."""
    outcome: RequestOutcome = scope.get(_OUTCOME, (GONE, b""))[0]
    return outcome


def current() -> RequestContext | None:
    """The context of the running task; None outside of the ASGI path."""
    return _current.get()


def note(
    *, model: str = "", rows: int = 0, tokens: int = 0, code: str = "", error: str = ""
) -> None:
    """Add facts to the running task's context, if it has one."""
    context = _current.get()
    if context is not None:
        context.model = model or context.model
        context.rows = rows or context.rows
        context.tokens = tokens or context.tokens
        context.code = code or context.code
        context.error = error or context.error


def current_log_fields() -> dict[str, str]:
    """The fields that every log line of the running task gets."""
    context = _current.get()
    return {} if context is None else {"request_id": context.request_id.decode("latin-1")}
