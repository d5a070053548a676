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
from batchpool.tasks.task_rows import EXPIRE, FINISH, expired_answer

_OVER = "SELECT n FROM tasks WHERE drop_ms <= ? ORDER BY drop_ms LIMIT ?"


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
        dropped = self._drop(most, now_ms)
        more = most in (len(expired), dropped)
        return Dropped(tuple(row[1] for row in expired), tuple(letters), dropped, more)

    def _drop(self, most: int, now_ms: int) -> int:
        """Drop ended tasks. What is read of them is in few rows: each costs the thread of the store
        a change of hands with the event loop."""
        over = now_ms, most
        counts = self._db.execute(
            "SELECT model, state, caller, count(*), sum(body_file) FROM tasks"
            f" WHERE n IN ({_OVER}) GROUP BY 1, 2, 3", over
        ).fetchall()  # fmt: skip
        if not counts:
            return 0
        if any(files for *_, files in counts):
            query = f"SELECT id FROM tasks WHERE body_file AND n IN ({_OVER})"
            for (identifier,) in self._db.execute(query, over).fetchall():
                self._files.remove(f"{identifier}.out")
        self._db.execute(f"DELETE FROM tasks WHERE n IN ({_OVER})", over)
        for model, state, caller, n, _ in counts:
            self._account.add(model, TaskState(state), caller, -n)
        return sum(n for *_, n, _ in counts)

    def _expire(self, row: Sequence[Any], now_ms: int) -> tuple[str, str] | None:
        """End an open task whose time is up; (model, code) if it became a dead letter."""
        n, identifier, model, caller, state, own, has_file = row
        self._ended(identifier)
        code, error, answer = expired_answer(own=bool(own))
        if not own:
            self._letters.add(identifier, code, error, {}, now_ms, 0)
        elif has_file:
            self._files.remove(f"{identifier}.in")
        headers = msgspec.msgpack.encode(answer.headers)
        self._db.execute(
            FINISH,
            (
                int(TaskState.FAILED), 0, now_ms, now_ms + self._ttl_ms, code, error,
                answer.status, 0, headers, answer.body, n,
            ),
        )  # fmt: skip
        self._account.move(model, caller, TaskState(state), TaskState.FAILED)
        return None if own else (model, code)
