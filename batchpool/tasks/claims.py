"""Tasks of the database that run: claimed, ended, queued again, taken over from the dead.

Everything here runs inside a transaction of the store.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from batchpool.tasks.account import Account
from batchpool.tasks.body_files import LONG_BYTES, BodyFiles
from batchpool.tasks.letter_box import LetterBox
from batchpool.tasks.record import (
    LOSSES_MOST,
    Again,
    ClaimedTask,
    Ended,
    Reclaimed,
    TaskState,
    Want,
)
from batchpool.tasks.task_rows import FINISH

_CLAIMED = (
    "id, claims, attempts, losses, rows, model, submitted_ms, input_file, answer, input, caller"
)
_DUE = (
    f"SELECT {_CLAIMED} FROM tasks WHERE state = 0 AND model = ? AND due_ms <= ?"
    " ORDER BY due_ms, n LIMIT ?"
)
_CLAIM = "UPDATE tasks SET state = 1, claims = claims + 1, owner = ?, started_ms = ? WHERE id = ?"
_IS_CLAIM = "id = ? AND state = 1 AND claims = ? AND owner = ?"


class Claims:
    """The claims of one owner, which is new with each process. ttl_ms: of a result."""

    def __init__(
        self,
        db: sqlite3.Connection,
        files: BodyFiles,
        account: Account,
        letters: LetterBox,
        ttl_ms: int,
    ) -> None:
        self._db = db
        self._files = files
        self._account = account
        self._letters = letters
        self._ttl_ms = ttl_ms
        self._owner = os.urandom(8)

    def take(self, want: Want, now_ms: int) -> list[ClaimedTask]:
        """Claim tasks whose time has come."""
        found: list[ClaimedTask] = []
        callers: list[str] = []
        size = 0
        for row in self._db.execute(_DUE, (want.model, now_ms, want.tasks)):
            task = self._claimed(row)
            size += len(task.input)
            if found and size > want.bytes:
                break
            found.append(task)
            callers.append(row[-1])
        self._db.executemany(_CLAIM, [(self._owner, now_ms, task.id) for task in found])
        for task, caller in zip(found, callers, strict=True):
            self._account.move(task.model, caller, TaskState.QUEUED, TaskState.RUNNING)
        return found

    def _claimed(self, row: Sequence[Any]) -> ClaimedTask:
        identifier, claims, attempts, losses, rows, model, submitted_ms, is_long, answer, body = (
            row[:10]
        )
        if is_long:
            body = self._files.read(f"{identifier}.in")
        return ClaimedTask(
            identifier, model, claims + 1, attempts, losses, rows, body, answer, submitted_ms
        )

    def take_over(self, now_ms: int) -> Reclaimed:
        """Queue again what other owners had claimed, and claim what was lost too often."""
        lost = self._db.execute(
            "UPDATE tasks SET state = 0, losses = losses + 1, due_ms = ?, owner = NULL"
            " WHERE state = 1 AND owner IS NOT ? RETURNING id, losses, model, caller",
            (now_ms, self._owner),
        ).fetchall()
        found = []
        for identifier, losses, model, caller in lost:
            if losses < LOSSES_MOST:
                self._account.move(model, caller, TaskState.RUNNING, TaskState.QUEUED)
                continue
            query = f"SELECT {_CLAIMED} FROM tasks WHERE id = ?"
            found.append(self._claimed(self._db.execute(query, (identifier,)).fetchone()))
            self._db.execute(_CLAIM, (self._owner, now_ms, identifier))
        return Reclaimed(len(lost), tuple(found))

    def end(self, end: Ended, now_ms: int) -> bool:
        """End a claimed task; False if it is no longer that claim's."""
        claimed = self._db.execute(
            f"SELECT model, caller, input_file FROM tasks WHERE {_IS_CLAIM}",
            (end.id, end.claim, self._owner),
        ).fetchone()
        if claimed is None:
            return False
        model, caller, has_file = claimed
        if end.is_letter:
            self._letters.add(end.id, end.code, end.error, end.facts, now_ms, int(end.counted))
        elif has_file:
            self._files.remove(f"{end.id}.in")
        answer = end.answer
        is_long = len(answer.body) > LONG_BYTES
        if is_long:
            self._files.write(f"{end.id}.out", answer.body)
        self._db.execute(
            FINISH,
            (
                int(end.state), int(end.counted), now_ms, now_ms + self._ttl_ms, end.code,
                end.error, answer.status, int(is_long), msgspec.msgpack.encode(answer.headers),
                None if is_long else answer.body, end.id,
            ),
        )  # fmt: skip
        self._account.move(model, caller, TaskState.RUNNING, end.state)
        return True

    def queue_again(self, task: Again) -> bool:
        """Queue a claimed task for a later time; False if it is no longer that claim's."""
        found = self._db.execute(
            "UPDATE tasks SET state = 0, due_ms = ?, attempts = attempts + ?, owner = NULL,"
            f" losses = 0 WHERE {_IS_CLAIM} RETURNING model, caller",
            (task.due_ms, int(task.counted), task.id, task.claim, self._owner),
        ).fetchall()
        for model, caller in found:
            self._account.move(model, caller, TaskState.RUNNING, TaskState.QUEUED)
        return bool(found)
