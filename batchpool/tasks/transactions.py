"""Transactions of the database of tasks, on a disk that may be full.

What is committed is in the log of the database first and goes into the database by a checkpoint.
Both take bytes of the disk, and a log that has no room to be emptied into its database would stay
as it is for ever. So while the disk is short the log is emptied after each transaction, and half of
what is free is held in reserve for that, since a checkpoint takes no more than its log. The last of
the disk is not for the database at all: what makes room again has to pass through the log.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from batchpool.tasks.body_files import BodyFiles
from batchpool.tasks.disk import Disk
from batchpool.tasks.store import StoreFull

_LOG = logging.getLogger("batchpool.tasks")
_MOST_PAGES = 2**32 - 2  # as SQLite has it


class Transactions:
    """Those of one database and the files beside it. committed, undone: called after each."""

    def __init__(
        self,
        db: sqlite3.Connection,
        files: BodyFiles,
        disk: Disk,
        committed: Callable[[], None],
        undone: Callable[[], None],
    ) -> None:
        self._db = db
        self._files = files
        self._disk = disk
        self._committed = committed
        self._undone = undone
        self._is_open = self._is_bounded = False
        (self._page_bytes,) = db.execute("PRAGMA page_size").fetchone()
        db.execute(f"PRAGMA wal_autocheckpoint = {disk.log_pages(self._page_bytes)}")

    @contextmanager
    def group(self) -> Iterator[None]:
        """One transaction of all that is called inside. Raises StoreFull or StoreAway, with nothing
        of it done."""
        if self._is_open:
            yield
            return
        self._is_open = True
        try:
            self._bound()
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._files.settle()
            self._db.execute("COMMIT")
        except BaseException as exc:
            self._undo()
            error = self._disk.error_of(exc)
            if isinstance(error, StoreFull):
                self._share_out()
            raise error from exc
        finally:
            self._is_open = False
        self._files.committed()
        if self._is_bounded and not self._empty_log():
            self._share_out()
        self._committed()

    def _bound(self) -> None:
        """Let the database have no more pages than the disk has room for."""
        is_short = self._disk.is_short
        if is_short:
            (pages,) = self._db.execute("PRAGMA page_count").fetchone()
            # Half, since the log has all that is new before the database has it.
            most = pages + self._disk.growth() // 2 // self._page_bytes
            self._db.execute(f"PRAGMA max_page_count = {most}").fetchall()
        elif self._is_bounded:
            self._db.execute(f"PRAGMA max_page_count = {_MOST_PAGES}").fetchall()
        self._is_bounded = is_short

    def _undo(self) -> None:
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._files.rolled_back()
            self._undone()
        except (OSError, sqlite3.Error) as exc:
            _LOG.error("the store of tasks could not undo a transaction: %s", exc)

    def _empty_log(self) -> bool:
        """Give the disk back what the log has: SQLite itself tries that after a commit only. False
        if there is no room for it in the database."""
        try:
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error:
            return False
        return True

    def _share_out(self) -> None:
        """Empty the log with all that the disk has, and hold half of what is free then."""
        self._disk.give_up_reserve()
        self._empty_log()
        self._disk.hold_half()
