"""The kinds of routes besides infer, by what their responses are made from.

Query      the front end's own state, at once; a body is dropped
SlowQuery  work in a thread, in turn with other callers; a body is dropped
Command    a short body
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.types import Receive, Scope, Send

from batchpool.frontend.asgi.sending import headers_of, send_response
from batchpool.frontend.http.memory_budget import MemoryBudget, MemoryReservation
from batchpool.frontend.http.request_body import RequestBody
from batchpool.frontend.http.request_context import caller_in
from batchpool.frontend.http.response import HttpResponse, error_response
from batchpool.frontend.service.metadata import Ask

_MOST_COMMAND_BYTES = 64 * 1024

AskSlowly = Callable[..., Awaitable[HttpResponse]]
Act = Callable[..., Awaitable[HttpResponse]]


def _allow() -> None:
    """For commands that are open to every caller."""


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
        request_body = RequestBody(receive, headers_of(scope))
        await send_response(response, request_body, send, self._discard_bytes)


class SlowQuery:
    """A route whose response takes a while: `ask(flow, **path_params)`, by the caller's flow."""

    def __init__(self, ask: AskSlowly, discard_bytes: int) -> None:
        self._ask = ask
        self._discard_bytes = discard_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._ask(caller_in(scope).flow, **scope["path_params"])
        except Exception as exc:
            response = error_response(exc)
        request_body = RequestBody(receive, headers_of(scope))
        await send_response(response, request_body, send, self._discard_bytes)


class Command:
    """A route that takes a body of at most 64 KiB: `act(body, **path_params)`.

    check: raises why it is refused, before the body is read. memory: counts the body.
    """

    def __init__(
        self,
        act: Act,
        memory: MemoryBudget,
        discard_bytes: int,
        check: Callable[[], None] = _allow,
    ) -> None:
        self._act = act
        self._memory = memory
        self._discard_bytes = discard_bytes
        self._check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_body = RequestBody(receive, headers_of(scope))
        reservation = MemoryReservation(self._memory, caller_in(scope).flow)
        try:
            self._check()
            try:
                body = await request_body.read(_MOST_COMMAND_BYTES, reservation)
            finally:
                reservation.release()
            if body is None:
                return
            response = await self._act(body, **scope["path_params"])
        except Exception as exc:
            response = error_response(exc)
        await send_response(response, request_body, send, self._discard_bytes)
