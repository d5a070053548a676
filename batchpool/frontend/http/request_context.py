"""Visit: one request on the ASGI road, as its answer's X-Request-Id and its log lines need it.

Each ASGI request is a task of its own, so what answers it finds its visit with `current`, and
every log line of that task, whoever writes it, has the request's id.
"""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from contextvars import ContextVar
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batchpool.frontend.http.access_log import GONE, LEAST_ERROR, AccessLog, RequestOutcome
from batchpool.wire.request_id import REQUEST_ID, made_id, request_id

_ENDED = "batchpool.ended"
_current: ContextVar[RequestContext | None] = ContextVar("visit", default=None)


class RequestContext:
    """One request. model, rows: once they are known. code, error: the answer's, "ok" and "" of
    no error."""

    def __init__(self, scope: Scope, access: AccessLog) -> None:
        self.code = "ok"
        self.error = ""
        self.model = ""
        self.rows = 0
        self._begun_ns = time.monotonic_ns()
        self._scope = scope
        self._access = access
        self._headers = dict(scope["headers"])
        self._name = request_id(self._headers)
        self._status = 0
        self._is_told = False
        self._ended_ns = 0  # the answer was written, as far as it has any bytes
        self._bytes_in = self._bytes_out = 0

    @property
    def name(self) -> bytes:
        """The request's id; made if it has none yet, and then the answer has it too."""
        if not self._name:
            self._name = made_id()
        return self._name

    async def through(self, app: ASGIApp, receive: Receive, send: Send) -> None:
        """Let the application answer, and tell of it."""

        async def take() -> Message:
            message = await receive()
            self._bytes_in += len(message.get("body", b""))
            return message

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._begin_answer(message)
            elif message["type"] == "http.response.body":
                self._bytes_out += len(message.get("body", b""))
            await send(message)
            if message["type"] != "http.response.body" or message.get("body"):
                self._ended_ns = time.monotonic_ns()

        try:
            await app(self._scope, take if self._access.is_on else receive, answer)
        finally:
            self._tell()

    def _begin_answer(self, message: MutableMapping[str, Any]) -> None:
        status = self._status = message["status"]
        self._is_told = self._access.wants(status, self._name)
        if self._name or self._is_told or status >= LEAST_ERROR:
            message["headers"] = [*message["headers"], (REQUEST_ID, self.name)]

    def _tell(self) -> None:
        outcome = RequestOutcome(self._status, self.code, self.error, self._bytes_out)
        if not self._status:
            outcome, self._name = self._scope.get(_ENDED, (GONE, self._name))
            self._is_told = self._access.wants(outcome.status, self._name)
        if not self._is_told:
            return
        scope = self._scope
        self._access.tell(
            outcome,
            road="asgi",
            peer=(scope.get("client") or ("",))[0],
            method=scope["method"],
            path=scope.get("raw_path") or scope["path"].encode(),
            headers=self._headers,
            begun_ns=self._begun_ns,
            ended_ns=self._ended_ns or time.monotonic_ns(),
            name=self.name,
            model=self.model,
            rows=self.rows,
            bytes_in=self._bytes_in,
        )


async def visit(
    app: ASGIApp, access: AccessLog, scope: Scope, receive: Receive, send: Send
) -> None:
    """Answer one request by an application."""
    if scope["type"] != "http":
        await app(scope, receive, send)
        return
    begun = RequestContext(scope, access)
    _current.set(begun)
    await begun.through(app, receive, send)


def end(scope: MutableMapping[str, Any], outcome: RequestOutcome, name: bytes) -> None:
    """The connection itself has answered this request under this id; the visit goes on until it
    hears that nobody is there any more."""
    scope[_ENDED] = outcome, name


def ended(scope: MutableMapping[str, Any]) -> RequestOutcome:
    """What became of a request that the application has not answered."""
    outcome: RequestOutcome = scope.get(_ENDED, (GONE, b""))[0]
    return outcome


def current() -> RequestContext | None:
    """The visit of the task that asks; None outside of the ASGI road."""
    return _current.get()


def note(*, model: str = "", rows: int = 0, code: str = "", error: str = "") -> None:
    """Remember what becomes known of this task's visit."""
    found = _current.get()
    if found is not None:
        found.model = model or found.model
        found.rows = rows or found.rows
        found.code = code or found.code
        found.error = error or found.error


def surroundings() -> dict[str, str]:
    """The fields that every log line of this task gets."""
    found = _current.get()
    return {} if found is None else {"request_id": found.name.decode("latin-1")}
