"""Tasks and results of the database as callers see them: nothing here changes a row."""

from __future__ import annotations

import sqlite3

from batchpool.control.task_messages import TaskForm
from batchpool.tasks.body_files import BodyFiles
from batchpool.tasks.record import KeptResult, KeptTask, TaskAnswer, TaskState
from batchpool.tasks.task_rows import FORM, form_of, headers_of

_LOOK = f"SELECT {FORM}, principal FROM tasks WHERE id = ?"
_COLLECT = (
    f"SELECT {FORM}, state, principal, status, headers, body_file, body FROM tasks WHERE id = ?"
)


_LATEST = 100_000  # of so many numbers of tasks the listed ones are found


class Lookups:
    """Reads tasks by their ids, and the latest ones."""

    def __init__(self, db: sqlite3.Connection, files: BodyFiles) -> None:
        self._db = db
        self._files = files

    def task(self, identifier: str) -> KeptTask | None:
        """A task as it is now; None for one that is not there."""
        row = self._db.execute(_LOOK, (identifier,)).fetchone()
        return None if row is None else KeptTask(form_of(row), row[-1])

    def result(self, identifier: str) -> KeptResult | None:
        """A task with its answer, but for a long body; None for one that is not there."""
        row = self._db.execute(_COLLECT, (identifier,)).fetchone()
        if row is None:
            return None
        state, principal, status, headers, is_long, body = row[-6:]
        if not TaskState(state).has_ended:
            return KeptResult(form_of(row), principal, None)
        answer = TaskAnswer(status, headers_of(headers), body or b"")
        return KeptResult(form_of(row), principal, answer, bool(is_long))

    def body(self, identifier: str) -> bytes | None:
        """The long body of a result; None if it is not there any more."""
        query = "SELECT 1 FROM tasks WHERE id = ? AND body_file"
        if self._db.execute(query, (identifier,)).fetchone() is None:
            return None
        try:
            return self._files.read(f"{identifier}.out")
        except FileNotFoundError:  # somebody has removed it; the store is well otherwise
            return None

    def latest(self, state: str, model: str, most: int) -> list[TaskForm]:
        """The latest tasks, newest first. state, model: of these alone; "" for all."""
        numbers = [kind.value for kind in TaskState if not state or kind.label == state]
        rows = self._db.execute(
            f"SELECT {FORM} FROM tasks WHERE state IN ({', '.join('?' * len(numbers))})"
            " AND (? = '' OR model = ?) AND n > (SELECT coalesce(max(n), 0) FROM tasks) - ?"
            " ORDER BY n DESC LIMIT ?",
            (*numbers, model, model, _LATEST, most),
        )
        return [form_of(row) for row in rows.fetchall()]
