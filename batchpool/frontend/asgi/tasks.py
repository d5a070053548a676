"""The routes of tasks: their states, their results, and taking them back.

GET    /v2/tasks/ID[?wait_s=N]           the state; waits for the end of an open one
GET    /v2/tasks/ID/result[?wait_s=N]    the answer that the request would have had; HEAD its head
DELETE /v2/tasks/ID                      takes back an open task, drops one that has ended
POST   /v2/tasks/query                   the states of many
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Any
from urllib.parse import parse_qs

import msgspec
from starlette.routing import Route
from starlette.types import Scope, Send

from batchpool.control.task_messages import (
    CancelTask,
    LookAtTasks,
    TaskStates,
)
from batchpool.core.errors import InvalidRequest, NotSupported
from batchpool.frontend.asgi.link_route import LinkRoute
from batchpool.frontend.asgi.sending import checked, headers_of
from batchpool.frontend.asgi.unless_lost import unless_lost
from batchpool.frontend.http.request_body import RequestBody
from batchpool.frontend.http.request_context import caller_in, site_in
from batchpool.frontend.http.response import HttpResponse
from batchpool.frontend.service.pool_view import PoolView
from batchpool.frontend.service.task_answers import (
    TASKS,
    dropped_response,
    result_response,
    state_response,
    states_response,
)
from batchpool.frontend.service.task_link import TaskLink
from batchpool.wire.preferences import MOST_WAIT_S
from batchpool.wire.request import brief

_MOST_IDS = 1000
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")  # float() takes digits of other scripts, too


class _Query(msgspec.Struct, forbid_unknown_fields=True):
    ids: Annotated[list[str], msgspec.Meta(min_length=1, max_length=_MOST_IDS)]


_QUERY = msgspec.json.Decoder(_Query)


def task_routes(view: PoolView, discard_bytes: int) -> list[Route]:
    """The routes of one front end. discard_bytes: the most that is dropped of an unread body."""

    def route(path: str, act: Act, *methods: str) -> Route:
        return Route(path, TaskRoute(view, act, discard_bytes), methods=methods)

    return [
        route(f"{TASKS}/query", _query, "POST"),
        route(f"{TASKS}/{{task}}", _one, "GET", "DELETE"),
        route(f"{TASKS}/{{task}}/result", _result, "GET"),
    ]


class TaskRequest:
    """One request about tasks. body: of one that has a body."""

    def __init__(self, scope: Scope, link: TaskLink, request_body: RequestBody) -> None:
        self.link = link
        self.method: str = scope["method"]
        self.task: str = scope["path_params"].get("task", "")
        self.principal = caller_in(scope).key
        self.prefix = site_in(scope).prefix
        self.accept_encoding = headers_of(scope).get(b"accept-encoding")
        self.query: bytes = scope["query_string"]
        self.request_body = request_body
        self.body: Any = b""

    def wait_s(self) -> float:
        """The seconds that the caller waits. Raises InvalidRequest for what is no such time."""
        values = parse_qs(self.query.decode("latin-1"), keep_blank_values=True)
        text = values.get("wait_s", ["0"])[-1]
        seconds = float(text) if _SECONDS.fullmatch(text) else -1.0
        if not 0 <= seconds <= MOST_WAIT_S:
            raise InvalidRequest(
                f"wait_s is {brief(text)}; seconds from 0 to {MOST_WAIT_S} were expected"
            )
        return seconds


Act = Callable[[TaskRequest], Awaitable[HttpResponse | None]]


class TaskRoute(LinkRoute):
    """A route about tasks; `act` gives its response, None when the caller has gone."""

    def __init__(self, view: PoolView, act: Act, discard_bytes: int) -> None:
        super().__init__(view, discard_bytes)
        self._act = act

    async def _respond(
        self, scope: Scope, request_body: RequestBody, send: Send
    ) -> HttpResponse | None:
        link = self._view.tasks
        if link is None:
            raise NotSupported(
                "this server keeps no tasks; tasks = true in [server] of its configuration, or"
                " --tasks, starts it with them"
            )
        request = TaskRequest(scope, link, request_body)
        body = await self._read(request_body, headers_of(scope), caller_in(scope).flow)
        if body is None:
            return None
        request.body = body
        return await self._act(request)


async def _one(request: TaskRequest) -> HttpResponse | None:
    """GET and DELETE of a task."""
    if request.method == "DELETE":
        cancel = CancelTask(request.task, request.principal)
        return dropped_response((await request.link.ask(cancel, TaskStates)).tasks[0])
    wait_s = request.wait_s()
    look = LookAtTasks((request.task,), request.principal, int(wait_s * 1000))
    asking = request.link.ask(look, TaskStates, wait_s)
    found = await unless_lost(request.request_body, asking)
    return None if found is None else state_response(found.tasks[0], request.prefix)


async def _result(request: TaskRequest) -> HttpResponse | None:
    """GET of a task's result."""
    wait_s = request.wait_s()
    asking = request.link.result(request.task, request.principal, wait_s)
    found = await unless_lost(request.request_body, asking)
    if found is None:
        return None
    response = checked(result_response(found, request.prefix, request.accept_encoding))
    if found.status and request.method == "GET":  # HEAD leaves the body here
        request.link.mark_read(request.task)
    return response


async def _query(request: TaskRequest) -> HttpResponse:
    """POST of many ids."""
    try:
        query = _QUERY.decode(request.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidRequest(
            f'the body is no {{"ids": [...]}} with 1 to {_MOST_IDS} ids: {exc}'
        ) from None
    look = LookAtTasks(tuple(query.ids), request.principal)
    found = await request.link.ask(look, TaskStates)
    return states_response(found.tasks, request.prefix)
