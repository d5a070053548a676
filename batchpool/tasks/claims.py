"""Tasks of the database that run: claimed, ended, queued again, taken over from the dead.

Everything here runs inside a transaction of the store.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
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
from batchpool.tasks.turns import Turns

_CLAIMED = (
    "n, id, claims, attempts, losses, rows, model, submitted_ms, input_file, answer, input, caller,"
    " turn"
)
NEXT = (
    f"SELECT {_CLAIMED} FROM tasks WHERE state = 0 AND model = ? AND turn IS NOT NULL"
    " ORDER BY turn, n LIMIT ?"
)
DUE = (
    "SELECT n, caller, rows FROM tasks WHERE state = 0 AND model = ? AND turn IS NULL"
    " AND due_ms <= ? ORDER BY due_ms, n LIMIT ?"
)
_CLAIM = "UPDATE tasks SET state = 1, claims = claims + 1, owner = ?, started_ms = ? WHERE n"
_IS_CLAIM = "state = 1 AND claims = ? AND owner = ?"
_END = f"{FINISH} AND {_IS_CLAIM}"
_QUEUED_AT_ONCE = 256
_QUEUED_TIMES = 16  # as many as are wanted
_HELD_MOST = 10_000


@dataclass(frozen=True, slots=True)
class _Held:
    """The row of a task that this owner has claimed."""

    n: int
    model: str
    caller: str
    has_file: bool


class Claims:
    """The claims of one owner, which is new with each process. ttl_ms: of a result."""

    def __init__(
        self,
        db: sqlite3.Connection,
        files: BodyFiles,
        account: Account,
        letters: LetterBox,
        turns: Turns,
        ttl_ms: int,
    ) -> None:
        self._db = db
        self._files = files
        self._account = account
        self._letters = letters
        self._turns = turns
        self._ttl_ms = ttl_ms
        self._owner = os.urandom(8)
        self._held: dict[str, _Held] = {}  # what is not here is looked up

    def take(self, want: Want, now_ms: int) -> list[ClaimedTask]:
        """Claim tasks whose time has come."""
        self._queue_due(want, now_ms)
        found: list[ClaimedTask] = []
        numbers: list[str] = []
        size, turn = 0, 0
        for row in self._db.execute(NEXT, (want.model, want.tasks)):
            task = self._claimed(row, now_ms)
            size += len(task.input)
            if found and size > want.bytes:
                break
            found.append(task)
            numbers.append(str(row[0]))
            turn = row[-1]
        if not found:
            return found
        self._turns.claimed(want.model, turn)
        self._db.execute(f"{_CLAIM} IN ({', '.join(numbers)})", (self._owner, now_ms))
        for task in found:
            caller = self._held[task.id].caller
            self._account.move(task.model, caller, TaskState.QUEUED, TaskState.RUNNING)
        return found

    def _queue_due(self, want: Want, now_ms: int) -> None:
        """Let tasks whose time has come join their callers' lines."""
        most = min(_QUEUED_AT_ONCE, _QUEUED_TIMES * want.tasks)
        due = self._db.execute(DUE, (want.model, now_ms, most)).fetchall()
        for n, caller, rows in due:
            turn = self._turns.join(want.model, caller, rows, is_idle=False)
            self._db.execute("UPDATE tasks SET turn = ? WHERE n = ?", (turn, n))

    def _claimed(self, row: Sequence[Any], now_ms: int) -> ClaimedTask:
        n, identifier, claims, attempts, losses, rows, model, submitted_ms = row[:8]
        is_long, answer, body, caller = row[8:12]
        if is_long:
            body = self._files.read_kept(f"{identifier}.in")
        if len(self._held) >= _HELD_MOST:
            self._held.clear()
        self._held[identifier] = _Held(n, model, caller, bool(is_long))
        return ClaimedTask(
            identifier, model, claims + 1, attempts, losses, rows, body, answer, submitted_ms,
            now_ms,
        )  # fmt: skip

    def take_over(self, most: int, now_ms: int) -> Reclaimed:
        """Queue again what other owners had claimed, so many tasks at most, and claim what was lost
        too often."""
        lost = self._db.execute(
            "UPDATE tasks SET state = 0, losses = losses + 1, due_ms = ?, turn = NULL, owner = NULL"
            " WHERE n IN (SELECT n FROM tasks"
            " WHERE state = 1 AND owner IS NOT ? LIMIT ?) RETURNING id, losses, model, caller",
            (now_ms, self._owner, most),
        ).fetchall()
        found = []
        for identifier, losses, model, caller in lost:
            if losses < LOSSES_MOST:
                self._account.move(model, caller, TaskState.RUNNING, TaskState.QUEUED)
                continue
            query = f"SELECT {_CLAIMED} FROM tasks WHERE id = ?"
            row = self._db.execute(query, (identifier,)).fetchone()
            found.append(self._claimed(row, now_ms))
            self._db.execute(f"{_CLAIM} = ?", (self._owner, now_ms, row[0]))
        return Reclaimed(len(lost), tuple(found))

    def end(self, ends: Sequence[Ended], now_ms: int) -> list[bool]:
        """End claimed tasks; False for one that is no longer that claim's."""
        return [self._end(end, now_ms) for end in ends]

    def _end(self, end: Ended, now_ms: int) -> bool:
        held = self._held.pop(end.id, None)
        if held is None or end.is_letter or held.has_file or len(end.answer.body) > LONG_BYTES:
            held = self._look_up(end)
            if held is None:
                return False
            self._move_bodies(end, held, now_ms)
        answer = end.answer
        is_long = len(answer.body) > LONG_BYTES
        ended = self._db.execute(
            _END,
            (
                int(end.state), int(end.counted), now_ms, now_ms + self._ttl_ms, end.code,
                end.error, answer.status, int(is_long), msgspec.msgpack.encode(answer.headers),
                None if is_long else answer.body, held.n, end.claim, self._owner,
            ),
        )  # fmt: skip
        if not ended.rowcount:
            return False
        self._account.move(held.model, held.caller, TaskState.RUNNING, end.state)
        return True

    def _look_up(self, end: Ended) -> _Held | None:
        """The row of a claimed task; None if it is no longer that claim's."""
        found = self._db.execute(
            f"SELECT n, model, caller, input_file FROM tasks WHERE id = ? AND {_IS_CLAIM}",
            (end.id, end.claim, self._owner),
        ).fetchone()
        return None if found is None else _Held(*found)

    def _move_bodies(self, end: Ended, held: _Held, now_ms: int) -> None:
        """Keep the input of a dead letter, or remove its file, and write a long result."""
        if end.is_letter:
            self._letters.add(end.id, end.code, end.error, end.facts, now_ms, int(end.counted))
        elif held.has_file:
            self._files.remove(f"{end.id}.in")
        if len(end.answer.body) > LONG_BYTES:
            self._files.write(f"{end.id}.out", end.answer.body)

    def queue_again(self, task: Again) -> bool:
        """Queue a claimed task for a later time; False if it is no longer that claim's."""
        self._held.pop(task.id, None)
        found = self._db.execute(
            "UPDATE tasks SET state = 0, due_ms = ?, turn = NULL, attempts = attempts + ?,"
            f" owner = NULL, losses = 0 WHERE id = ? AND {_IS_CLAIM} RETURNING model, caller",
            (task.due_ms, int(task.counted), task.id, task.claim, self._owner),
        ).fetchall()
        for model, caller in found:
            self._account.move(model, caller, TaskState.RUNNING, TaskState.QUEUED)
        return bool(found)
