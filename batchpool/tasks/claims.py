"""Tasks of the database that run: claimed, ended, queued again, taken over from the dead.

Everything here runs inside a transaction of the store.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from batchpool.tasks.account import Account
from batchpool.tasks.body_files import LONG_BYTES, BodyFiles
from batchpool.tasks.byte_shares import RECORD_BYTES
from batchpool.tasks.fresh_tasks import FreshTasks
from batchpool.tasks.judgement import LONGEST_MS
from batchpool.tasks.letter_box import LetterBox
from batchpool.tasks.record import (
    LOSSES_MOST,
    Again,
    ClaimedTask,
    Ended,
    NewTask,
    Reclaimed,
    TaskState,
    Want,
)
from batchpool.tasks.task_rows import AT_ONCE, FINISH_ALL, in_parts, size_of
from batchpool.tasks.turns import Head, Turns

_CLAIMED = (
    "n, id, claims, attempts, losses, rows, model, submitted_ms, input_file, answer, input, origin,"
    " size"
)
# The tasks at the front of some origins' lines, of each in one row: every row that is read costs
# the thread of the store a change of hands with the event loop.
_HEADS = (
    "SELECT (SELECT group_concat(n || ' ' || turn || ' ' || rows || ' ' || bytes, ' ') FROM"
    f" (SELECT n, turn, rows, size - {RECORD_BYTES} AS bytes FROM tasks WHERE state = 0"
    " AND model = ?1 AND origin = column1 AND turn IS NOT NULL ORDER BY turn, n"
    " LIMIT ?2 OFFSET ?3)) FROM (VALUES {})"
)
HEADS = {n: _HEADS.format(", ".join(f"(?{4 + i})" for i in range(n))) for n in AT_ONCE}
DUE = (
    "SELECT n, origin, caller, rows FROM tasks WHERE state = 0 AND model = ? AND turn IS NULL"
    " AND due_ms <= ? ORDER BY due_ms, n LIMIT ?"
)
_CLAIM = "UPDATE tasks SET state = 1, claims = claims + 1, owner = ?, started_ms = ? WHERE n"
_CLAIM_ALL = {n: f"{_CLAIM} IN ({', '.join('?' * n)})" for n in AT_ONCE}
_ROWS = {n: f"SELECT {_CLAIMED} FROM tasks WHERE n IN ({', '.join('?' * n)})" for n in AT_ONCE}
_IS_CLAIM = "state = 1 AND claims = ? AND owner = ?"
_QUEUED_AT_ONCE = 256
_QUEUED_TIMES = 16  # as many as are wanted
_HELD_MOST = 10_000


class _Held(NamedTuple):
    """The row of a task that this owner has claimed, and the number of the claim."""

    n: int
    claim: int
    model: str
    origin: str
    has_file: bool
    size: int


class Claims:
    """The claims of one owner, which is new with each process. ttl_ms: of a result."""

    def __init__(
        self,
        db: sqlite3.Connection,
        files: BodyFiles,
        account: Account,
        letters: LetterBox,
        turns: Turns,
        fresh: FreshTasks,
        ttl_ms: int,
    ) -> None:
        self._db = db
        self._files = files
        self._account = account
        self._letters = letters
        self._turns = turns
        self._fresh = fresh
        self._ttl_ms = ttl_ms
        self._owner = os.urandom(8)
        self._held: dict[str, _Held] = {}  # running; what is not here is looked up
        self._begun: dict[str, list[ClaimedTask]] = {}  # by model, until they are taken

    @property
    def owner(self) -> bytes:
        """The name in the rows of its claims."""
        return self._owner

    def may_begin(self, want: Want, tasks: Sequence[NewTask]) -> bool:
        """True if these new tasks are all that a claim would find, and not more than it takes."""
        return (
            len(tasks) <= want.tasks
            and not self._account.queued(want.model)
            and sum([len(task.input) for task in tasks]) <= want.bytes
        )

    def begin(self, first: int, tasks: Sequence[NewTask], now_ms: int) -> None:
        """New tasks run from now on, as the rows from `first` on say."""
        for n, task in enumerate(tasks, first):
            is_long = len(task.input) > LONG_BYTES
            self._hold(task.id, _Held(n, 1, task.model, task.holder, is_long, size_of(task.input)))
            self._begun.setdefault(task.model, []).append(_first_claim(task, now_ms))

    def begun(self, model: str) -> list[ClaimedTask]:
        """The tasks that have begun since the last call."""
        return self._begun.pop(model, [])

    def take(self, want: Want, now_ms: int) -> list[ClaimedTask]:
        """Claim tasks whose time has come."""
        if not self._account.queued(want.model):
            return []
        self._queue_due(want, now_ms)
        read = partial(self._heads, want.model)
        heads = self._turns.take(want.model, want.tasks, want.bytes, read)
        if not heads:
            return []
        numbers = [head.n for head in heads]
        found = self._from_memory(numbers, now_ms) or self._from_rows(numbers, now_ms)
        for part in in_parts(numbers):
            self._db.execute(_CLAIM_ALL[len(part)], (self._owner, now_ms, *part))
        origins = Counter([self._held[task.id].origin for task in found])
        for origin, n in origins.items():
            self._account.move(want.model, origin, TaskState.QUEUED, TaskState.RUNNING, n)
        return found

    def _heads(self, model: str, origins: Sequence[str], most: int, skip: int) -> list[list[Head]]:
        """The tasks at the front of these origins' lines, as `Turns` reads them."""
        found: list[list[Head]] = []
        for part in in_parts(origins):
            rows = self._db.execute(HEADS[len(part)], (model, most, skip, *part)).fetchall()
            found += [_heads_in(listed) for (listed,) in rows]
        return found

    def _from_memory(self, numbers: Sequence[int], now_ms: int) -> list[ClaimedTask] | None:
        """The tasks of these rows, where all of them are in memory."""
        tasks = self._fresh.take(numbers)
        if tasks is None:
            return None
        found = []
        for n, task in zip(numbers, tasks, strict=True):
            self._hold(task.id, _Held(n, 1, task.model, task.holder, False, size_of(task.input)))
            found.append(_first_claim(task, now_ms))
        return found

    def _from_rows(self, numbers: Sequence[int], now_ms: int) -> list[ClaimedTask]:
        """The tasks of these rows."""
        rows = {
            row[0]: row
            for part in in_parts(numbers)
            for row in self._db.execute(_ROWS[len(part)], tuple(part))
        }
        return [self._claimed(rows[n], now_ms) for n in numbers]

    def _hold(self, identifier: str, held: _Held) -> None:
        if len(self._held) >= _HELD_MOST:
            self._held.clear()
        self._held[identifier] = held

    def forget(self, identifier: str) -> None:
        """A task runs no more, or not by a claim that counts."""
        self._held.pop(identifier, None)

    def forget_all(self) -> None:
        """A transaction is undone, so that nothing is known for certain."""
        self._held.clear()
        self._begun.clear()

    def _queue_due(self, want: Want, now_ms: int) -> None:
        """Let tasks whose time has come join their callers' lines."""
        most = min(_QUEUED_AT_ONCE, _QUEUED_TIMES * want.tasks)
        due = self._db.execute(DUE, (want.model, now_ms, most)).fetchall()
        for n, origin, caller, rows in due:
            turn = self._turns.join(want.model, origin, caller, rows)
            self._db.execute("UPDATE tasks SET turn = ? WHERE n = ?", (turn, n))

    def _claimed(self, row: Sequence[Any], now_ms: int) -> ClaimedTask:
        n, identifier, claims, attempts, losses, rows, model, submitted_ms = row[:8]
        is_long, answer, body, origin, size = row[8:13]
        if is_long:
            body = self._files.read_kept(f"{identifier}.in")
        self._hold(identifier, _Held(n, claims + 1, model, origin, bool(is_long), size))
        return ClaimedTask(
            identifier, model, claims + 1, attempts, losses, rows, body, answer, submitted_ms,
            now_ms,
        )  # fmt: skip

    def take_over(self, most: int, now_ms: int) -> Reclaimed:
        """Queue again what other owners had claimed, so many tasks at most, and claim what was lost
        too often. What would wait longer than any task does, since the machine's clock was set back
        while no process ran, is tried again now."""
        self._db.execute(
            "UPDATE tasks SET due_ms = ? WHERE state = 0 AND turn IS NULL AND due_ms > ?",
            (now_ms, now_ms + LONGEST_MS),
        )
        lost = self._db.execute(
            "UPDATE tasks SET state = 0, losses = losses + 1, due_ms = ?, turn = NULL, owner = NULL"
            " WHERE n IN (SELECT n FROM tasks"
            " WHERE state = 1 AND owner IS NOT ? LIMIT ?) RETURNING id, losses, model, origin",
            (now_ms, self._owner, most),
        ).fetchall()
        found = []
        for identifier, losses, model, origin in lost:
            if losses < LOSSES_MOST:
                self._account.move(model, origin, TaskState.RUNNING, TaskState.QUEUED)
                continue
            query = f"SELECT {_CLAIMED} FROM tasks WHERE id = ?"
            row = self._db.execute(query, (identifier,)).fetchone()
            found.append(self._claimed(row, now_ms))
            self._db.execute(f"{_CLAIM} = ?", (self._owner, now_ms, row[0]))
        return Reclaimed(len(lost), tuple(found))

    def end(self, ends: Sequence[Ended], now_ms: int) -> list[bool]:
        """End claimed tasks; False for one that is no longer that claim's."""
        found = []
        ended: list[tuple[TaskState, tuple[Any, ...]]] = []
        moves: Counter[tuple[str, str, TaskState]] = Counter()
        for end in ends:
            held = self._held.get(end.id)
            if held is None or held.claim != end.claim:
                self._write(ended, now_ms)  # one of these may be the same task
                held = self._look_up(end)
            found.append(held is not None)
            if held is None:
                continue
            self.forget(end.id)
            self._move_bodies(end, held, now_ms)
            moves[held.model, held.origin, end.state] += 1
            self._account.shares.add(held.origin, size_of(end.answer.body) - held.size)
            ended.append((end.state, _ended_row(end, held.n)))
        self._write(ended, now_ms)
        for (model, origin, state), n in moves.items():
            self._account.move(model, origin, TaskState.RUNNING, state, n)
        return found

    def _write(self, ended: list[tuple[TaskState, tuple[Any, ...]]], now_ms: int) -> None:
        """Write the ends of rows, each with its state, and forget them."""
        for state, rows in groupby(ended, key=itemgetter(0)):
            for part in in_parts([row for _, row in rows]):
                values = [int(state), now_ms, now_ms + self._ttl_ms, *chain.from_iterable(part)]
                self._db.execute(FINISH_ALL[len(part)], values)
        ended.clear()

    def _look_up(self, end: Ended) -> _Held | None:
        """The row of a claimed task; None if it is no longer that claim's."""
        found = self._db.execute(
            "SELECT n, claims, model, origin, input_file, size FROM tasks"
            f" WHERE id = ? AND {_IS_CLAIM}",
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
        self.forget(task.id)
        found = self._db.execute(
            "UPDATE tasks SET state = 0, due_ms = ?, turn = NULL, attempts = attempts + ?,"
            f" owner = NULL, losses = 0 WHERE id = ? AND {_IS_CLAIM} RETURNING model, origin",
            (task.due_ms, int(task.counted), task.id, task.claim, self._owner),
        ).fetchall()
        for model, origin in found:
            self._account.move(model, origin, TaskState.RUNNING, TaskState.QUEUED)
        return bool(found)


def _heads_in(listed: str | None) -> list[Head]:
    """The tasks that HEADS has found for one origin; None is none."""
    if listed is None:
        return []
    words = map(int, listed.split())
    return list(map(Head, words, words, words, words))


def _first_claim(task: NewTask, now_ms: int) -> ClaimedTask:
    """A task that no claim had before."""
    return ClaimedTask(
        task.id, task.model, 1, 0, 0, task.rows, task.input, task.answer, task.submitted_ms, now_ms
    )


def _ended_row(end: Ended, n: int) -> tuple[Any, ...]:
    """The values of FINISH_ALL for one task."""
    answer = end.answer
    is_long = len(answer.body) > LONG_BYTES
    return (
        int(end.counted), end.code, end.error, answer.status, int(is_long), size_of(answer.body),
        msgspec.msgpack.encode(answer.headers), None if is_long else answer.body, n,
    )  # fmt: skip
