"""Tasks of the database whose time is over: open ones fail, ended ones are dropped.

Everything here runs inside a transaction of the store.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from batchpool.tasks.account import Account
from batchpool.tasks.body_files import BodyFiles
from batchpool.tasks.letter_box import LetterBox
from batchpool.tasks.record import Dropped, TaskState
from batchpool.tasks.task_rows import EXPIRE, FINISH, expired_answer, size_of

_OVER = "SELECT n FROM tasks WHERE drop_ms <= ? ORDER BY drop_ms LIMIT ?"
_READ_OVER = "SELECT drop_ms, n FROM reads WHERE drop_ms <= ? ORDER BY drop_ms, n LIMIT ?"


class Expiry:
    """The ends of time in one database. ttl_ms: of a result. ended: gets the id of each open task
    that fails."""

    def __init__(
        self,
        db: sqlite3.Connection,
        files: BodyFiles,
        account: Account,
        letters: LetterBox,
        ttl_ms: int,
        ended: Callable[[str], None],
    ) -> None:
        self._db = db
        self._files = files
        self._account = account
        self._letters = letters
        self._ttl_ms = ttl_ms
        self._ended = ended

    def sweep(self, most: int, now_ms: int) -> Dropped:
        """End and drop so many tasks at most. more: there may be others."""
        expired = self._db.execute(EXPIRE, (now_ms, most)).fetchall()
        letters = [found for row in expired if (found := self._expire(row, now_ms))]
        read, looked_at = self._drop_read(most, now_ms)
        dropped = self._drop(_OVER, now_ms, most)
        more = most in (len(expired), looked_at, dropped)
        return Dropped(tuple(row[1] for row in expired), tuple(letters), read + dropped, more)

    def _drop_read(self, most: int, now_ms: int) -> tuple[int, int]:
        """Drop results that were read: their number, and that of the times that are over, some of
        which are those of tasks that have gone."""
        over = now_ms, most
        query = f"SELECT count(*), max(drop_ms) FROM ({_READ_OVER})"
        looked_at, last_ms = self._db.execute(query, over).fetchone()
        if not looked_at:
            return 0, 0
        dropped = self._drop(f"SELECT n FROM ({_READ_OVER})", *over)
        query = f"SELECT max(n) FROM ({_READ_OVER}) WHERE drop_ms = ?"
        (last,) = self._db.execute(query, (*over, last_ms)).fetchone()
        self._db.execute("DELETE FROM reads WHERE (drop_ms, n) <= (?, ?)", (last_ms, last))
        return dropped, looked_at

    def _drop(self, numbers: str, *over: int) -> int:
        """Drop ended tasks. numbers: a query for their rows, over: its values. What is read of them
        is in few rows: each costs the thread of the store a change of hands with the event loop."""
        counts = self._db.execute(
            "SELECT model, state, origin, count(*), sum(size), sum(body_file) FROM tasks"
            f" WHERE n IN ({numbers}) GROUP BY 1, 2, 3", over
        ).fetchall()  # fmt: skip
        if not counts:
            return 0
        if any(files for *_, files in counts):
            query = f"SELECT id FROM tasks WHERE body_file AND n IN ({numbers})"
            for (identifier,) in self._db.execute(query, over).fetchall():
                self._files.remove(f"{identifier}.out")
        self._db.execute(f"DELETE FROM tasks WHERE n IN ({numbers})", over)
        for model, state, origin, n, size, _ in counts:
            self._account.add(model, TaskState(state), origin, -n)
            self._account.shares.add(origin, -size)
        return sum(n for *_, n, _, _ in counts)

    def _expire(self, row: Sequence[Any], now_ms: int) -> tuple[str, str] | None:
        """End an open task whose time is up; (model, code) if it became a dead letter."""
        n, identifier, model, origin, state, own, has_file, size = row
        self._ended(identifier)
        code, error, answer = expired_answer(own=bool(own))
        if not own:
            self._letters.add(identifier, code, error, {}, now_ms, 0)
        elif has_file:
            self._files.remove(f"{identifier}.in")
        headers, own_size = msgspec.msgpack.encode(answer.headers), size_of(answer.body)
        self._db.execute(
            FINISH,
            (
                int(TaskState.FAILED), 0, now_ms, now_ms + self._ttl_ms, code, error,
                answer.status, 0, own_size, headers, answer.body, n,
            ),
        )  # fmt: skip
        self._account.move(model, origin, TaskState(state), TaskState.FAILED)
        self._account.shares.add(origin, own_size - size)
        return None if own else (model, code)
