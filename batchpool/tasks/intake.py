"""New tasks on their way into the database: known ones, limits, and rows that go in together.

Everything here runs inside a transaction of the store. A statement takes up to 32 rows, since each
one costs the thread of the store a change of hands with the event loop.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from batchpool.control.task_messages import TaskForm
from batchpool.tasks.account import Account
from batchpool.tasks.body_files import LONG_BYTES, BodyFiles
from batchpool.tasks.record import NewTask, Put, PutOutcome, StoreLimits, TaskState
from batchpool.tasks.task_rows import FORM, INSERT, INSERTED, form_of, insert_values
from batchpool.tasks.turns import Turns

_AT_ONCE = (32, 8, 1)  # few sizes, so that the connection keeps the statements prepared
_INSERTS = {n: INSERT + ", ".join([INSERTED] * n) for n in _AT_ONCE}


class Intake:
    """Takes new tasks. committed_bytes: of everything that the store has committed, files included.

    new_bytes: of the inputs in rows that came since the store has counted its bytes.
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        files: BodyFiles,
        account: Account,
        turns: Turns,
        limits: StoreLimits,
        committed_bytes: Callable[[], int],
    ) -> None:
        self._db = db
        self._files = files
        self._account = account
        self._turns = turns
        self._limits = limits
        self._committed_bytes = committed_bytes
        self.new_bytes = 0

    def put(self, tasks: Sequence[NewTask], now_ms: int, *, room: bool) -> list[Put]:
        """The outcome for each. room: the disk takes new ones."""
        found: list[Put] = []
        at = 0
        for n in _AT_ONCE:
            while len(tasks) - at >= n:
                found += self._put_together(tasks[at : at + n], now_ms, room=room)
                at += n
        return found

    def _put_together(self, tasks: Sequence[NewTask], now_ms: int, *, room: bool) -> list[Put]:
        """Add all of them with one statement, or one after another where one of them is known or
        meets a limit."""
        if len(tasks) > 1 and room and self._fit(tasks):
            try:
                self._add(tasks, now_ms)
            except sqlite3.IntegrityError:  # of an id or a key; nothing of the statement is there
                pass
            else:
                return [self._new(task) for task in tasks]
        return [self._put(task, now_ms, room=room) for task in tasks]

    def _fit(self, tasks: Sequence[NewTask]) -> bool:
        """True if these tasks are surely below every limit."""
        size = sum(len(task.input) for task in tasks)
        if self._committed_bytes() + self.new_bytes + size >= self._limits.bytes:
            return False
        if max(len(task.input) for task in tasks) > LONG_BYTES:
            return False
        return self._account.open + len(tasks) < self._limits.open // 2

    def _put(self, task: NewTask, now_ms: int, *, room: bool) -> Put:
        query = f"SELECT {FORM}, principal, fingerprint FROM tasks WHERE id = ?"
        if task.key:
            found = self._db.execute(f"{query} OR key = ?", (task.id, task.key)).fetchone()
        else:
            found = self._db.execute(query, (task.id,)).fetchone()
        if found is not None:
            if task.key and found[-1] != task.fingerprint:
                return Put(PutOutcome.MISMATCH)
            return Put(PutOutcome.KNOWN, form_of(found), found[-2])
        if not room:
            return Put(PutOutcome.DISK_FULL)
        if self._committed_bytes() + self.new_bytes >= self._limits.bytes:
            return Put(PutOutcome.BYTES_FULL)
        if lack := self._account.lack(task.caller, self._limits.open):
            return Put(lack)
        self.add(task, now_ms)
        return self._new(task)

    def _new(self, task: NewTask) -> Put:
        form = TaskForm(task.id, TaskState.QUEUED.label, task.model, 0, task.submitted_ms)
        return Put(PutOutcome.NEW, form, task.principal)

    def add(self, task: NewTask, now_ms: int) -> None:
        """Add one task, whatever the limits."""
        if len(task.input) > LONG_BYTES:
            self._files.write(f"{task.id}.in", task.input)
        self._add((task,), now_ms)

    def _add(self, tasks: Sequence[NewTask], now_ms: int) -> None:
        values: list[object] = []
        for task in tasks:
            is_long = len(task.input) > LONG_BYTES
            is_idle = not self._account.has_open(task.caller)
            turn = self._turns.join(task.model, task.caller, task.rows, is_idle=is_idle)
            values += insert_values(task, now_ms, turn, is_long=is_long)
        self._db.execute(_INSERTS[len(tasks)], values)
        for task in tasks:
            self.new_bytes += 0 if len(task.input) > LONG_BYTES else len(task.input)
            self._account.add(task.model, TaskState.QUEUED, task.caller)
