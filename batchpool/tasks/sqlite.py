"""The store of tasks in SQLite: one database and a folder of long bodies, of one process.

    tasks.db    the database, in WAL mode, with every commit on the disk before it counts
    bodies/     inputs (ID.in) and results (ID.out) of more than 64 KiB
    reserve     bytes that are given up when the disk is full, so that what is there can end
    lock        held by the process that has the store

A claim of another owner than this one is that of a process that has ended, since the lock is
exclusive: it is reclaimed.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from batchpool.batches.own_folder import make_own_folder
from batchpool.control.task_messages import LetterForm, TaskForm
from batchpool.tasks.account import Account
from batchpool.tasks.body_files import BodyFiles
from batchpool.tasks.byte_shares import RECORD_BYTES
from batchpool.tasks.claims import Claims
from batchpool.tasks.disk import Disk
from batchpool.tasks.expiry import Expiry
from batchpool.tasks.fresh_tasks import FreshTasks
from batchpool.tasks.intake import Intake
from batchpool.tasks.letter_box import LetterBox
from batchpool.tasks.lookups import Lookups
from batchpool.tasks.record import (
    TOKEN_BYTES,
    Again,
    ClaimedTask,
    Dropped,
    Ended,
    KeptResult,
    KeptTask,
    NewTask,
    Put,
    Reclaimed,
    StoreCounts,
    StoreLimits,
    TaskState,
    Want,
    task_id,
)
from batchpool.tasks.schema import begin_anew, open_database
from batchpool.tasks.store import StoreAway, StoreFull
from batchpool.tasks.store_place import StorePlace
from batchpool.tasks.task_rows import (
    COLLECTED,
    FORM,
    form_of,
    in_parts,
)
from batchpool.tasks.transactions import Transactions
from batchpool.tasks.turns import Turns

_LOG = logging.getLogger("batchpool.tasks")
_SWEPT_AT_ONCE = 512
_TAKEN_OVER_AT_ONCE = 512
_VACUUM_PAGES = 512  # that are given back to the disk at a time
_VACUUM_PAGES_SHORT = 1  # the same while the disk is short: each passes through the log
_FREE_PAGES = 128  # that stay, to be used again


# methods: those of the interface of a store
class SqliteStore:
    """The store in `folder`, which is made if there is none. Raises StoreAway where it is another
    process's, or cannot be read."""

    lease_s = 0.0

    def __init__(self, folder: Path, limits: StoreLimits) -> None:
        self._limits = limits
        try:
            make_own_folder(folder)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise StoreAway(
                f"the folder of tasks {folder} cannot be used: {exc.strerror}; set another"
                " state_dir, or see to it that this user may write there"
            ) from exc
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mask = os.umask(0o077)
            try:
                self._db = open_database(folder / "tasks.db")
            finally:
                os.umask(mask)
            self._disk = Disk(folder)
            self._files = BodyFiles(folder / "bodies", self._disk.growth)
            self._place = StorePlace(folder)
            self._transactions = Transactions(
                self._db, self._files, self._disk, self._committed, self._undone
            )
            self._account, self._turns = Account(), Turns()
            self._lookups = Lookups(self._db, self._files)
            self._letters = LetterBox(self._db, self._files, limits.bytes)
            self._load()
        except BlockingIOError:
            os.close(self._lock)
            raise StoreAway(
                f"another pool has the tasks in {folder}; stop it, or set another state_dir"
            ) from None
        except (OSError, sqlite3.Error) as exc:
            os.close(self._lock)
            raise StoreAway(
                f"the tasks in {folder} cannot be read: {exc}; {begin_anew(folder)}"
            ) from exc
        except BaseException:
            os.close(self._lock)
            raise
        self._fresh = FreshTasks()
        self._claims = Claims(
            self._db, self._files, self._account, self._letters, self._turns, self._fresh,
            limits.result_ttl_ms,
        )  # fmt: skip
        self._intake = Intake(
            self._db, self._files, self._account, self._turns, self._fresh, self._claims, limits,
            self._committed_bytes,
        )  # fmt: skip
        self._expiry = Expiry(
            self._db, self._files, self._account, self._letters, limits.result_ttl_ms,
            self._claims.forget,
        )  # fmt: skip
        self._swept_at_once = _SWEPT_AT_ONCE

    def _load(self) -> None:
        (self._page_bytes,) = self._db.execute("PRAGMA page_size").fetchone()
        self._count()
        named = {
            f"{identifier}.{kind}"
            for kind, query in (
                ("in", "SELECT id FROM tasks WHERE input_file UNION ALL"
                       " SELECT id FROM letters WHERE input_file"),
                ("out", "SELECT id FROM tasks WHERE body_file"),
            )
            for (identifier,) in self._db.execute(query)
        }  # fmt: skip
        self._files.remove_orphans(
            named, lambda n: _LOG.info("removed %d files of tasks that were not kept", n)
        )
        self._pages()

    def _count(self) -> None:
        rows = self._db.execute(
            "SELECT model, state, origin, count(*), sum(size), caller, min(turn), max(turn + rows)"
            " FROM tasks GROUP BY model, state, origin, caller"
        ).fetchall()
        self._account.load(row[:5] for row in rows)
        self._turns.load(
            (model, origin, caller, first, end)
            for model, state, origin, _, _, caller, first, end in rows
            if state == TaskState.QUEUED and first is not None
        )
        self._letters.load()

    def _pages(self) -> None:
        (pages,) = self._db.execute("PRAGMA page_count").fetchone()
        (free,) = self._db.execute("PRAGMA freelist_count").fetchone()
        self._used_bytes: int = (pages - free) * self._page_bytes
        self._free_pages: int = free
        self._changes = self._db.total_changes

    @property
    def kept_bytes(self) -> int:
        """Bytes of everything that is kept."""
        return self._committed_bytes() + self._intake.new_bytes

    def _committed_bytes(self) -> int:
        return self._used_bytes + self._files.bytes

    # -- transactions -------------------------------------------------------------------

    def _committed(self) -> None:
        self._intake.new_bytes = 0
        if self._db.total_changes != self._changes:
            self._pages()

    def _undone(self) -> None:
        self._fresh.clear()
        self._claims.forget_all()
        self._count()

    def group(self) -> AbstractContextManager[None]:
        """One transaction of all that is called inside."""
        return self._transactions.group()

    def _rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._db.execute(statement, values).fetchall()

    # -- new tasks ----------------------------------------------------------------------

    def put(self, tasks: Sequence[NewTask], now_ms: int) -> list[Put]:
        self._place.check()
        with self.group():
            return self._intake.put(tasks, now_ms, room=self._disk.has_room())

    # -- tasks that run -----------------------------------------------------------------

    def claim(self, wants: Sequence[Want], now_ms: int) -> list[ClaimedTask]:
        with self.group():
            return [task for want in wants for task in self._claims.take(want, now_ms)]

    def put_and_claim(
        self, tasks: Sequence[NewTask], wants: Sequence[Want], now_ms: int
    ) -> tuple[list[Put], list[list[ClaimedTask]]]:
        with self.group():
            new: dict[str, list[NewTask]] = {}
            for task in tasks:
                new.setdefault(task.model, []).append(task)
            begin = {w.model for w in wants if self._claims.may_begin(w, new.get(w.model, ()))}
            found: dict[int, Put] = {}
            for at_once in (True, False):
                places = [n for n, t in enumerate(tasks) if (t.model in begin) is at_once]
                if places:
                    part, room = [tasks[n] for n in places], self._disk.has_room()
                    puts = self._intake.put(part, now_ms, room=room, at_once=at_once)
                    found.update(zip(places, puts, strict=True))
            claims = [
                self._claims.begun(want.model) if want.model in begin
                else self._claims.take(want, now_ms)
                for want in wants
            ]  # fmt: skip
            return [found[n] for n in range(len(tasks))], claims

    def reclaim(self, now_ms: int) -> Reclaimed:
        most, tasks = _TAKEN_OVER_AT_ONCE, 0
        lost: tuple[ClaimedTask, ...] = ()
        while True:
            try:
                with self.group():
                    found = self._claims.take_over(most, now_ms)
            except StoreFull:  # fewer take less of the disk
                if most == 1:
                    raise
                most //= 2
                continue
            tasks += found.tasks
            lost += found.lost
            if found.tasks < most:
                return Reclaimed(tasks, lost)

    def finish(self, ends: Sequence[Ended], now_ms: int) -> list[bool]:
        with self.group():
            return self._claims.end(ends, now_ms)

    def retry(self, tasks: Sequence[Again], now_ms: int) -> list[bool]:
        with self.group():
            return [self._claims.queue_again(task) for task in tasks]

    # -- callers ------------------------------------------------------------------------

    def look(self, ids: Sequence[str], now_ms: int) -> list[KeptTask | None]:
        return [self._lookups.task(identifier) for identifier in ids]

    def collect(self, ids: Sequence[str], now_ms: int) -> list[KeptResult | None]:
        return [self._lookups.result(identifier) for identifier in ids]

    def body(self, identifier: str) -> bytes | None:
        return self._lookups.body(identifier)

    def mark_read(self, ids: Sequence[str], now_ms: int) -> list[None]:
        if self._limits.evict_on_read:
            drop_ms = now_ms + self._limits.grace_ms
            with self.group():
                for part in in_parts(ids):
                    self._db.execute(COLLECTED[len(part)], (drop_ms, *part))
        return [None] * len(ids)

    def cancel(self, ids: Sequence[str], now_ms: int) -> list[TaskForm | None]:
        with self.group():
            return [self._cancel(identifier, now_ms) for identifier in ids]

    def _cancel(self, identifier: str, now_ms: int) -> TaskForm | None:
        found = self._rows(
            f"SELECT {FORM}, state, origin, size, input_file, body_file FROM tasks WHERE id = ?",
            identifier,
        )
        if not found or found[0][-5] == TaskState.CANCELLED:
            return None
        number, origin, size, has_input, has_body = found[0][-5:]
        form, state = form_of(found[0]), TaskState(number)
        if has_input:
            self._files.remove(f"{identifier}.in")
        if has_body:
            self._files.remove(f"{identifier}.out")
        if state.has_ended:
            self._db.execute("DELETE FROM tasks WHERE id = ?", (identifier,))
            self._account.add(form.model, state, origin, -1)
            self._account.shares.add(origin, -size)
            return form
        self._db.execute(
            "UPDATE tasks SET state = 4, finished_ms = ?, drop_ms = ?, input = NULL,"
            " input_file = 0, key = NULL, size = ? WHERE id = ?",
            (now_ms, now_ms + self._limits.result_ttl_ms, RECORD_BYTES, identifier),
        )
        self._claims.forget(identifier)
        self._account.move(form.model, origin, state, TaskState.CANCELLED)
        self._account.shares.add(origin, RECORD_BYTES - size)
        return form

    # -- upkeep -------------------------------------------------------------------------

    def sweep(self, now_ms: int) -> Dropped:
        self._place.check()
        try:
            found = self._sweep(self._swept_at_once, now_ms)
        except StoreFull:  # fewer take less of the disk
            if self._swept_at_once == 1:
                raise
            self._swept_at_once //= 2
            return Dropped(more=True)
        self._swept_at_once = min(_SWEPT_AT_ONCE, 2 * self._swept_at_once)
        self._disk.renew_reserve()
        return found

    def _sweep(self, most: int, now_ms: int) -> Dropped:
        """End and drop so many tasks at most, and give the disk back what they had."""
        with self.group():
            found = self._expiry.sweep(most, now_ms)
        if self._free_pages > _FREE_PAGES:
            most = _VACUUM_PAGES_SHORT if self._disk.is_short else _VACUUM_PAGES
            with self.group():
                for _ in range(min(most, self._free_pages - _FREE_PAGES)):
                    # One page, whatever number it says: Python makes one step of a statement
                    # without columns, and each step gives back one page.
                    self._db.execute("PRAGMA incremental_vacuum(1)").fetchall()
            self._pages()
        if self._free_pages > _FREE_PAGES:
            found = replace(found, more=True)
        return found

    def next_due_ms(self, models: Sequence[str]) -> list[int | None]:
        return [self._next_due_ms(model) for model in models]

    def _next_due_ms(self, model: str) -> int | None:
        if not self._account.queued(model):
            return None
        queued = "FROM tasks WHERE state = 0 AND model = ? AND turn IS"
        if self._rows(f"SELECT 1 {queued} NOT NULL LIMIT 1", model):
            return 0
        found: int | None = self._rows(f"SELECT min(due_ms) {queued} NULL", model)[0][0]
        return found

    def models(self) -> set[str]:
        return self._account.models()

    def counts(self) -> StoreCounts:
        oldest = self._rows("SELECT min(submitted_ms) FROM tasks WHERE state < 2")[0][0]
        kept = self._letters.kept
        return StoreCounts(self._account.by_model(), kept, self.kept_bytes, oldest or 0)

    def list_tasks(self, state: str, model: str, most: int) -> list[TaskForm]:
        return self._lookups.latest(state, model, most)

    # -- dead letters -------------------------------------------------------------------

    def letters(
        self, model: str, code: str, before: int, most: int, ids: Sequence[str], *, whole: bool
    ) -> list[LetterForm]:
        return self._letters.find(model, code, before, most, ids, whole=whole)

    def replay(self, letters: Sequence[int], now_ms: int, deadline_ms: int) -> list[str | None]:
        with self.group():
            return [self._replay(letter, now_ms, deadline_ms) for letter in letters]

    def _replay(self, letter: int, now_ms: int, deadline_ms: int) -> str | None:
        found = self._letters.take(letter)
        if found is None:
            return None
        form, principal, origin = found
        identifier = task_id(now_ms, os.urandom(TOKEN_BYTES))
        task = NewTask(
            identifier, form.model, form.rows, form.input, form.answer, form.caller, principal,
            now_ms, deadline_ms, origin=origin,
        )  # fmt: skip
        self._intake.add(task, now_ms)
        return identifier

    def drop_letters(self, letters: Sequence[int]) -> list[bool]:
        with self.group():
            return [self._letters.take(letter) is not None for letter in letters]

    def close(self) -> None:
        self._db.close()
        self._place.close()
        os.close(self._lock)
