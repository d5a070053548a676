"""Dead letters in the database: inputs of tasks that failed for good, with what is known of why."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from batchpool.control.task_messages import LetterForm
from batchpool.tasks.body_files import BodyFiles
from batchpool.tasks.byte_shares import RECORD_BYTES, ByteShares

_LOG = logging.getLogger("batchpool.tasks")
LETTERS_MOST = 100_000
LETTER_SHARE = 4  # dead letters have at most this part of the bytes that a store may have
_FORM = "n, id, model, code, error, attempts, rows, submitted_ms, died_ms, caller, facts"

_FORM_COLUMNS = 11
_SIZES = "SELECT id, input_file, length(input), length(facts), origin"


class LetterBox:
    """The table of dead letters. most_bytes: of the whole store.

    Beyond LETTERS_MOST, or a quarter of the store's bytes, the oldest ones go of the origin that
    has most bytes of them, so that a model that fails for everybody does not close the store, and
    nobody's failures push out those of others. kept: their number.
    """

    def __init__(self, db: sqlite3.Connection, files: BodyFiles, most_bytes: int) -> None:
        self._db = db
        self._files = files
        self._most_bytes = most_bytes // LETTER_SHARE
        self.kept = 0
        self._bytes = 0
        self._shares = ByteShares()

    def load(self) -> None:
        """Count anew."""
        (self.kept,) = self._db.execute("SELECT count(*) FROM letters").fetchone()
        self._bytes = 0
        self._shares.clear()
        for row in self._db.execute(f"{_SIZES} FROM letters"):
            self._count(row, 1)

    def _count(self, row: Sequence[Any], times: int) -> None:
        """Count the bytes of a row of _SIZES; times: -1 for one that goes."""
        size = times * self._size(*row[:-1])
        self._bytes += size
        self._shares.add(row[-1], size + times * RECORD_BYTES)

    def _size(self, identifier: str, has_file: int, n_input: int | None, n_facts: int) -> int:
        return n_facts + (self._files.size(f"{identifier}.in") if has_file else n_input or 0)

    def add(
        self,
        identifier: str,
        code: str,
        error: str,
        facts: Mapping[str, Any],
        now_ms: int,
        attempts: int,
    ) -> None:
        """Keep the input of a task that fails now; its row then has it no more. attempts: those
        that its row has not counted yet."""
        self._db.execute(
            "INSERT INTO letters (id, model, code, error, attempts, rows, caller, origin,"
            " principal, submitted_ms, died_ms, facts, input_file, answer, input)"
            " SELECT id, model, ?, ?, attempts + ?, rows, caller, origin, principal, submitted_ms,"
            " ?, ?, input_file, answer, input FROM tasks WHERE id = ?",
            (code, error, attempts, now_ms, msgspec.msgpack.encode(dict(facts)), identifier),
        )
        (row,) = self._db.execute(f"{_SIZES} FROM letters ORDER BY n DESC LIMIT 1")
        self.kept += 1
        self._count(row, 1)
        dropped = 0
        while self.kept > 1 and (self.kept > LETTERS_MOST or self._bytes > self._most_bytes):
            query = "SELECT min(n) FROM letters WHERE origin = ?"
            (oldest,) = self._db.execute(query, (self._shares.largest(),)).fetchone()
            if self.take(oldest) is None:  # a count that is wrong must not hold up the store
                break
            dropped += 1
        if dropped:
            _LOG.warning(
                "%d dead letters were dropped, the oldest of who has most: there are too many",
                dropped,
            )

    def find(
        self, model: str, code: str, before: int, most: int, ids: Sequence[str], *, whole: bool
    ) -> list[LetterForm]:
        """Dead letters, the newest first; see `ListLetters`."""
        columns = f"{_FORM}, input_file, answer, input" if whole else _FORM
        where, values = ["(? = '' OR model = ?)", "(? = '' OR code = ?)"], [model] * 2 + [code] * 2
        if before:
            where.append(f"n < {before}")
        if ids:
            where.append(f"id IN ({', '.join('?' * len(ids))})")
            values += ids
        query = f"SELECT {columns} FROM letters WHERE {' AND '.join(where)} ORDER BY n DESC LIMIT ?"
        return [self._form(row) for row in self._db.execute(query, (*values, most))]

    def _form(self, row: Sequence[Any]) -> LetterForm:
        form = LetterForm(*(*row[:10], msgspec.msgpack.decode(row[10])))
        if len(row) == _FORM_COLUMNS:
            return form
        body = self._files.read_kept(f"{form.id}.in") if row[11] else row[13]
        return msgspec.structs.replace(form, input=body, answer=row[12])

    def take(self, letter: int) -> tuple[LetterForm, str, str] | None:
        """Remove one and give it with its principal and origin; None if it is not there."""
        columns = f"{_FORM}, input_file, answer, input, principal, origin"
        sizes = self._db.execute(f"{_SIZES} FROM letters WHERE n = ?", (letter,)).fetchone()
        query = f"SELECT {columns} FROM letters WHERE n = ?"
        found = self._db.execute(query, (letter,)).fetchone()
        if found is None:
            return None
        form = self._form(found[:-2])
        self._db.execute("DELETE FROM letters WHERE n = ?", (letter,))
        if found[11]:
            self._files.remove(f"{form.id}.in")
        self.kept -= 1
        self._count(sizes, -1)
        return form, found[-2], found[-1]
