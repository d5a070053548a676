"""One request about files or batches: its caller, its path and its query, and the routes of them.

Every route answers 501 where the pool keeps no files.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

from starlette.types import Scope, Send

from batchpool.core.errors import InvalidRequest, NotSupported
from batchpool.frontend.asgi.link_route import LinkRoute
from batchpool.frontend.asgi.sending import headers_of
from batchpool.frontend.http.request_body import RequestBody
from batchpool.frontend.http.request_context import caller_in
from batchpool.frontend.http.response import HttpResponse
from batchpool.frontend.service.pool_view import PoolView
from batchpool.frontend.service.task_link import TaskLink
from batchpool.wire.openai_members import about
from batchpool.wire.request import brief


class BatchRequest:
    """principal: the name of the caller's key, "" without keys. caller: whose share of the store
    its files take: its key, else its address, which nobody may choose. id: in the path. body: of a
    request whose route reads it whole. is_sent: the response was sent piece by piece."""

    def __init__(
        self, view: PoolView, link: TaskLink, scope: Scope, request_body: RequestBody, send: Send
    ) -> None:
        caller = caller_in(scope)
        self.view = view
        self.link = link
        self.method: str = scope["method"]
        self.headers = headers_of(scope)
        self.id: str = scope["path_params"].get("id", "")
        self.principal = caller.key
        self.caller = f"key {caller.key}" if caller.key else f"address {caller.origin}"
        self.flow = caller.flow
        self.request_body = request_body
        self.send = send
        self.body: Any = b""
        self.is_sent = False
        query: bytes = scope["query_string"]
        self._query = parse_qs(query.decode("latin-1"), keep_blank_values=True)

    def text(self, name: str, default: str = "") -> str:
        """A text of the query."""
        return self._query.get(name, [default])[-1]

    def choice(self, name: str, default: str, *others: str) -> str:
        """One of a few texts of the query. InvalidRequest for another."""
        found = self.text(name, default)
        if found not in (default, *others):
            expected = " or ".join((default, *others))
            raise about(name, InvalidRequest(f"{name} is {brief(found)}; {expected} was expected"))
        return found

    def number(self, name: str, default: int, most: int) -> int:
        """A whole number of the query, from 1. InvalidRequest for what is none."""
        text = self.text(name, str(default))
        value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
        if not 1 <= value <= most:
            error = f"{name} is {brief(text)}; a whole number from 1 to {most} was expected"
            raise about(name, InvalidRequest(error))
        return value


Act = Callable[[BatchRequest], Awaitable[HttpResponse | None]]


class BatchRoute(LinkRoute):
    """A route about files or batches; `act` gives its response, None when the caller has gone or
    has the response. reads_body: `act` reads the body itself."""

    def __init__(
        self, view: PoolView, act: Act, discard_bytes: int, *, reads_body: bool = False
    ) -> None:
        super().__init__(view, discard_bytes)
        self._act = act
        self._reads_body = reads_body

    async def _respond(
        self, scope: Scope, request_body: RequestBody, send: Send
    ) -> HttpResponse | None:
        link = self._view.batches
        if link is None:
            raise NotSupported(
                "this server keeps no files and runs no batches; tasks = true and batches = true in"
                " [server] of its configuration, or --tasks --batches, start it with them"
            )
        request = BatchRequest(self._view, link, scope, request_body, send)
        if not self._reads_body:
            body = await self._read(request_body, request.headers, request.flow)
            if body is None:
                return None
            request.body = body
        return await self._act(request)
