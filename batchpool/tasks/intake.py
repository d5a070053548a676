"""New tasks on their way into the database: known ones, limits, and rows that go in together.

Everything here runs inside a transaction of the store. A statement takes up to 64 rows, since each
one costs the thread of the store a change of hands with the event loop.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence

from batchpool.control.task_messages import TaskForm
from batchpool.tasks.account import Account
from batchpool.tasks.body_files import LONG_BYTES, BodyFiles
from batchpool.tasks.claims import Claims
from batchpool.tasks.fresh_tasks import FreshTasks
from batchpool.tasks.record import NewTask, Put, PutOutcome, StoreLimits, TaskState
from batchpool.tasks.task_rows import (
    AT_ONCE,
    FORM,
    INSERT,
    INSERT_RUNNING,
    INSERTED,
    INSERTED_RUNNING,
    form_of,
    in_parts,
    insert_values,
    size_of,
)
from batchpool.tasks.turns import Turns

_INSERTS = {n: INSERT + ", ".join([INSERTED] * n) for n in AT_ONCE}
_RUNNING_INSERTS = {n: INSERT_RUNNING + ", ".join([INSERTED_RUNNING] * n) for n in AT_ONCE}
_QUEUED = TaskState.QUEUED.label


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
        fresh: FreshTasks,
        claims: Claims,
        limits: StoreLimits,
        committed_bytes: Callable[[], int],
    ) -> None:
        self._db = db
        self._files = files
        self._account = account
        self._turns = turns
        self._fresh = fresh
        self._claims = claims
        self._limits = limits
        self._committed_bytes = committed_bytes
        self.new_bytes = 0

    def put(
        self, tasks: Sequence[NewTask], now_ms: int, *, room: bool, at_once: bool = False
    ) -> list[Put]:
        """The outcome for each. room: the disk takes new ones. at_once: they run from now on."""
        found: list[Put] = []
        for part in in_parts(tasks):
            found += self._put_together(part, now_ms, room=room, at_once=at_once)
        return found

    def _put_together(
        self, tasks: Sequence[NewTask], now_ms: int, *, room: bool, at_once: bool
    ) -> list[Put]:
        """Add all of them with one statement, or one after another where one of them is known or
        meets a limit."""
        if len(tasks) > 1 and room and self._fit(tasks):
            try:
                self._add(tasks, now_ms, at_once=at_once)
            except sqlite3.IntegrityError:  # of an id or a key; nothing of the statement is there
                pass
            else:
                return [self._new(task) for task in tasks]
        return [self._put(task, now_ms, room=room, at_once=at_once) for task in tasks]

    def _fit(self, tasks: Sequence[NewTask]) -> bool:
        """True if these tasks are surely below every limit."""
        size = sum([size_of(task.input) for task in tasks])
        kept = self._committed_bytes() + self.new_bytes
        if kept + size >= self._limits.bytes:
            return False
        if not all(self._has_share(o, size, kept) for o in {t.holder for t in tasks}):
            return False
        if max([len(task.input) for task in tasks]) > LONG_BYTES:
            return False
        return self._account.open + len(tasks) < self._limits.open // 2

    def _has_share(self, origin: str, size: int, kept: int) -> bool:
        """True if an origin may have so many bytes more. kept: bytes of all."""
        shares, limits = self._account.shares, self._limits
        return shares.has_room(origin, size, kept, limits.bytes, limits.share)

    def _put(self, task: NewTask, now_ms: int, *, room: bool, at_once: bool) -> Put:
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
        kept = self._committed_bytes() + self.new_bytes
        if kept >= self._limits.bytes:
            return Put(PutOutcome.BYTES_FULL)
        if not self._has_share(task.holder, size_of(task.input), kept):
            return Put(PutOutcome.BYTES_SHARE_FULL)
        if lack := self._account.lack(task.holder, self._limits.open):
            return Put(lack)
        self.add(task, now_ms, at_once=at_once)
        return self._new(task)

    def _new(self, task: NewTask) -> Put:
        form = TaskForm(task.id, _QUEUED, task.model, 0, task.submitted_ms)
        return Put(PutOutcome.NEW, form, task.principal)

    def add(self, task: NewTask, now_ms: int, *, at_once: bool = False) -> None:
        """Add one task, whatever the limits."""
        if len(task.input) > LONG_BYTES:
            self._files.write(f"{task.id}.in", task.input)
        self._add((task,), now_ms, at_once=at_once)

    def _add(self, tasks: Sequence[NewTask], now_ms: int, *, at_once: bool) -> None:
        values: list[object] = []
        origins: Counter[tuple[str, str]] = Counter()
        held: Counter[str] = Counter()
        for task in tasks:
            is_long = len(task.input) > LONG_BYTES
            holder = task.holder
            if at_once:  # nothing waits, so they are before nobody
                values += insert_values(task, now_ms, None, is_long=is_long)
                values += self._claims.owner, now_ms
            else:
                turn = self._turns.join(task.model, holder, task.caller, task.rows)
                values += insert_values(task, now_ms, turn, is_long=is_long)
            origins[task.model, holder] += 1
            held[holder] += size_of(task.input)
        statements = _RUNNING_INSERTS if at_once else _INSERTS
        inserted = self._db.execute(statements[len(tasks)], values)
        assert inserted.lastrowid is not None
        first = inserted.lastrowid - len(tasks) + 1
        if at_once:
            self._claims.begin(first, tasks, now_ms)
        else:
            self._fresh.add(first, tasks)
        state = TaskState.RUNNING if at_once else TaskState.QUEUED
        for (model, origin), n in origins.items():
            self._account.add(model, state, origin, n)
        for origin, size in held.items():
            self._account.shares.add(origin, size)
        sizes = [len(task.input) for task in tasks]
        self.new_bytes += sum([size for size in sizes if size <= LONG_BYTES])
