"""Rows of the table of tasks: the statements that are used for each task, and rows as values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from batchpool.control.task_messages import TaskForm
from batchpool.core.errors import DeadlineExceeded, Expired, PoolError
from batchpool.tasks.record import NewTask, TaskAnswer, TaskState

FORM = "id, state, model, attempts, submitted_ms, started_ms, finished_ms, code, error"
INSERT = (
    "INSERT INTO tasks (id, model, state, rows, caller, principal, key, fingerprint, submitted_ms,"
    " due_ms, turn, deadline_ms, own_deadline, input_file, answer, input) VALUES "
)
INSERTED = "(?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # one row of it
FINISH = (
    "UPDATE tasks SET state = ?, attempts = attempts + ?, finished_ms = ?, drop_ms = ?, code = ?,"
    " error = ?, status = ?, body_file = ?, headers = ?, body = ?, input = NULL, input_file = 0"
    " WHERE n = ?"
)
EXPIRE = (
    "SELECT n, id, model, caller, state, own_deadline, input_file FROM tasks"
    " WHERE state < 2 AND deadline_ms <= ? LIMIT ?"
)
COLLECTED = "UPDATE tasks SET drop_ms = min(drop_ms, ?) WHERE id = ? AND state = 2"
_HEADERS = msgspec.msgpack.Decoder(tuple[tuple[bytes, bytes], ...])


def insert_values(task: NewTask, due_ms: int, turn: int, *, is_long: bool) -> tuple[Any, ...]:
    """The values of INSERTED. is_long: its input is in a file."""
    return (
        *(task.id, task.model, task.rows, task.caller, task.principal),
        *(task.key or None, task.fingerprint, task.submitted_ms, due_ms, turn),
        *(task.deadline_ms, int(task.own_deadline), int(is_long), task.answer),
        None if is_long else task.input,
    )


def form_of(row: Sequence[Any]) -> TaskForm:
    """The task of a row that begins with FORM."""
    return TaskForm(row[0], TaskState(row[1]).label, *row[2:9])


def headers_of(packed: bytes | None) -> tuple[tuple[bytes, bytes], ...]:
    """The headers of an answer."""
    return _HEADERS.decode(packed) if packed else ()


def error_answer(error: PoolError) -> TaskAnswer:
    """The HTTP answer of an error, as it is given to a request that waits."""
    body = msgspec.json.encode(error.body())
    fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    fields += [(name.lower().encode(), value.encode()) for name, value in error.headers().items()]
    return TaskAnswer(error.status, tuple(fields), body)


def expired_answer(*, own: bool) -> tuple[str, str, TaskAnswer]:
    """(code, error, answer) of a task whose time is up. own: it was the caller's limit."""
    error: PoolError
    if own:
        error = DeadlineExceeded("the task was not done within its X-Request-Timeout-Ms")
    else:
        error = Expired("the task was not done within task_max_age_s")
    return error.code, error.message, error_answer(error)
