"""Rows of the table of tasks: the statements that are used for each task, and rows as values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from batchpool.control.task_messages import TaskForm
from batchpool.core.errors import DeadlineExceeded, Expired, PoolError
from batchpool.tasks.byte_shares import RECORD_BYTES
from batchpool.tasks.record import NewTask, TaskAnswer, TaskState

T = TypeVar("T")
FORM = "id, state, model, attempts, submitted_ms, started_ms, finished_ms, code, error"
_COLUMNS = (
    "id, model, state, rows, caller, origin, principal, key, fingerprint, submitted_ms, due_ms,"
    " turn, deadline_ms, own_deadline, input_file, size, answer, input"
)
INSERT = f"INSERT INTO tasks ({_COLUMNS}) VALUES "
INSERTED = "(?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # one row of it
# The same of a task that is claimed as it comes.
INSERT_RUNNING = f"INSERT INTO tasks ({_COLUMNS}, claims, owner, started_ms) VALUES "
INSERTED_RUNNING = "(?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?)"
FINISH = (
    "UPDATE tasks SET state = ?, attempts = attempts + ?, finished_ms = ?, drop_ms = ?, code = ?,"
    " error = ?, status = ?, body_file = ?, size = ?, headers = ?, body = ?, input = NULL,"
    " input_file = 0 WHERE n = ?"
)
# As FINISH, of several tasks at once: the rows of VALUES are attempts, code, error, status,
# body_file, size, headers, body and n.
_FINISH_ALL = (
    "UPDATE tasks SET state = ?, finished_ms = ?, drop_ms = ?, attempts = attempts + column1,"
    " code = column2, error = column3, status = column4, body_file = column5, size = column6,"
    " headers = column7, body = column8, input = NULL, input_file = 0 FROM (VALUES {})"
    " WHERE n = column9"
)
AT_ONCE = (64, 32, 16, 8, 4, 2, 1)  # rows of one statement; each of these stays prepared
FINISH_ALL = {
    n: _FINISH_ALL.format(", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?)"] * n)) for n in AT_ONCE
}
EXPIRE = (
    "SELECT n, id, model, origin, state, own_deadline, input_file, size FROM tasks"
    " WHERE state < 2 AND deadline_ms <= ? LIMIT ?"
)
# A failed task is no result that somebody has got: it keeps its time.
_COLLECTED = "INSERT OR IGNORE INTO reads SELECT ?, n FROM tasks WHERE state = 2 AND id IN ({})"
COLLECTED = {n: _COLLECTED.format(", ".join("?" * n)) for n in AT_ONCE}
_HEADERS = msgspec.msgpack.Decoder(tuple[tuple[bytes, bytes], ...])


def in_parts(entries: Sequence[T]) -> Iterator[Sequence[T]]:
    """The entries in parts of as many as a statement takes."""
    at = 0
    for n in AT_ONCE:
        while len(entries) - at >= n:
            yield entries[at : at + n]
            at += n


def insert_values(
    task: NewTask, due_ms: int, turn: int | None, *, is_long: bool
) -> tuple[Any, ...]:
    """The values of INSERTED. turn: None for a task that does not wait. is_long: its input is in a
    file."""
    return (
        *(task.id, task.model, task.rows, task.caller, task.holder, task.principal),
        *(task.key or None, task.fingerprint, task.submitted_ms, due_ms, turn),
        *(task.deadline_ms, int(task.own_deadline), int(is_long), size_of(task.input)),
        *(task.answer, None if is_long else task.input),
    )


def size_of(body: bytes) -> int:
    """The bytes of a task that count for its origin. body: its input, or its result."""
    return RECORD_BYTES + len(body)


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
