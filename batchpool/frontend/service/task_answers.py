"""The answers to requests about tasks, as HTTP responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from batchpool.control.task_messages import TaskForm, TaskResult
from batchpool.core.errors import Expired, NotFound, PoolError, TaskCancelled
from batchpool.frontend.http.response import HttpResponse
from batchpool.wire.encoding import encode_answer
from batchpool.wire.request import HeaderList

TASKS = "/v2/tasks"
_OPEN = ("queued", "running")
_RETRY_AFTER = (b"retry-after", b"1")
_NO_STORE = (b"cache-control", b"no-store")
_LEAST_COMPRESSED_BYTES = 1024


def task_object(task: TaskForm, prefix: str = "") -> dict[str, Any]:
    """The JSON object of a task. prefix: of every path, as a proxy shows it."""
    if not task.model:
        return {"id": task.id, "state": task.state}
    found: dict[str, Any] = {
        "id": task.id,
        "state": task.state,
        "model_name": task.model,
        "attempts": task.attempts,
        "submitted_at": task.submitted_ms / 1000,
    }
    if task.started_ms:
        found["started_at"] = task.started_ms / 1000
    if task.finished_ms:
        found["finished_at"] = task.finished_ms / 1000
    if task.code:
        found |= {"error": task.error, "code": task.code}
    if task.state in ("done", "failed"):
        found["result_url"] = f"{prefix}{TASKS}/{task.id}/result"
    return found


def missing(task: TaskForm) -> PoolError | None:
    """The error of a task that is not there; None for one that is."""
    if task.state == "expired":
        return Expired(f"task {task.id[:10]}… ended, and its result was kept for its time")
    if task.state == "not_found":
        return NotFound(
            f"there is no task {task.id[:10]!r}…: it never was, or its result was collected or"
            " dropped"
        )
    return None


def accepted_response(task: TaskForm, prefix: str, *, replayed: bool) -> HttpResponse:
    """202: the task is kept."""
    more: HeaderList = [
        (b"location", f"{prefix}{TASKS}/{task.id}".encode()),
        (b"preference-applied", b"respond-async"),
    ]
    if replayed:
        more.append((b"idempotency-replayed", b"true"))
    return _json(202, task_object(task, prefix), [*more, _RETRY_AFTER])


def state_response(task: TaskForm, prefix: str) -> HttpResponse:
    """200 with the state of a task; raises the error of one that is not there."""
    if (error := missing(task)) is not None:
        raise error
    more = [_RETRY_AFTER] if task.state in _OPEN else []
    return _json(200, task_object(task, prefix), more)


def states_response(tasks: Sequence[TaskForm], prefix: str) -> HttpResponse:
    """200 with the states of many tasks, in their order."""
    return _json(200, {"tasks": [task_object(task, prefix) for task in tasks]}, [])


def result_response(result: TaskResult, prefix: str, accept_encoding: bytes | None) -> HttpResponse:
    """The answer that the request would have had, 202 while it is open; raises the error of one
    that is not there or was taken back."""
    task = result.task
    if (error := missing(task)) is not None:
        raise error
    if task.state in _OPEN:
        location = (b"location", f"{prefix}{TASKS}/{task.id}".encode())
        return _json(202, task_object(task, prefix), [location, _RETRY_AFTER])
    if not result.status:
        raise TaskCancelled(f"task {task.id[:10]}… was cancelled and has no result")
    headers, body = list(result.headers), result.body
    if accept_encoding and len(body) >= _LEAST_COMPRESSED_BYTES:
        headers, body = encode_answer(accept_encoding, headers, body)
    code = task.code or "ok"
    return HttpResponse(result.status, [*headers, _NO_STORE], body, code, task.error)


def dropped_response(task: TaskForm) -> HttpResponse:
    """204: the task was taken back, or its result dropped."""
    if (error := missing(task)) is not None:
        raise error
    return HttpResponse(204, [], b"")


def _json(status: int, content: Mapping[str, Any], more: HeaderList) -> HttpResponse:
    body = msgspec.json.encode(content)
    fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    return HttpResponse(status, [*fields, _NO_STORE, *more], body)
