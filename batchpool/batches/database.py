"""The database of files and batches: a row for each, with its record as msgpack.

What callers ask is answered from memory; this is read at the start, and written before anything is
said. The bytes of the files stand beside it (`batchpool/batches/file_bodies.py`).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path

import msgspec

from batchpool.batches.file_place import FilePlace
from batchpool.batches.records import BatchRecord, FileRecord

VERSION = 1
_LOCK_WAIT_S = 5.0  # the process before this one may still be on its way out
_APPLICATION_ID = 0x62706261  # "bpba"
_TABLES = """
CREATE TABLE files (n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, record BLOB);
CREATE TABLE batches (n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, record BLOB);
"""
_BEGIN_ANEW = (
    "move the folder {} away to begin anew without these files and batches, or set another"
    " state_dir"
)
_encode = msgspec.msgpack.Encoder().encode
_FILE = msgspec.msgpack.Decoder(FileRecord)
_BATCH = msgspec.msgpack.Decoder(BatchRecord)


class FolderUnusable(Exception):
    """The folder of files and batches cannot be used; the text says why, and what to do."""


class BatchDatabase:
    """The database at a path, made if there is none; nobody else can open it meanwhile.

    Raises FolderUnusable for one that is damaged, of a newer version, or another's.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        mask = os.umask(0o077)
        try:
            self._db = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, timeout=_LOCK_WAIT_S
            )
            try:
                self._set_up(path)
                self._place = FilePlace(path)
            except BaseException:
                self._db.close()
                raise
        except (OSError, sqlite3.Error) as exc:
            raise FolderUnusable(_cannot_open(path, exc)) from exc
        finally:
            os.umask(mask)

    def _set_up(self, path: Path) -> None:
        db = self._db
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables and application != _APPLICATION_ID:
            raise FolderUnusable(
                f"{path} is no database of batches; move it away, or set another state_dir"
            )
        if tables and version < 1:
            raise FolderUnusable(
                f"the database of batches {path} is of version {version}, which no batchpool has"
                f" made; {_BEGIN_ANEW.format(path.parent)}"
            )
        if version > VERSION:
            raise FolderUnusable(
                f"the database of batches {path} is of version {version}, made by a newer"
                f" batchpool; this one knows {VERSION}: install the newer one again, or set another"
                " state_dir"
            )
        db.execute("PRAGMA journal_mode = WAL")
        # A file that was uploaded, and a line that was counted, stay so if the power fails.
        db.execute("PRAGMA synchronous = FULL")
        if not tables:
            db.executescript(
                f"BEGIN IMMEDIATE; {_TABLES} PRAGMA application_id = {_APPLICATION_ID};"
                f" PRAGMA user_version = {VERSION}; COMMIT;"
            )
        else:
            db.executescript("BEGIN IMMEDIATE; COMMIT;")  # takes the lock

    def load(self) -> tuple[list[FileRecord], list[BatchRecord]]:
        """Everything that is kept, the oldest first. Raises FolderUnusable for what is damaged."""
        try:
            files = self._db.execute("SELECT record FROM files ORDER BY n")
            batches = self._db.execute("SELECT record FROM batches ORDER BY n")
            return (
                [_FILE.decode(record) for (record,) in files],
                [_BATCH.decode(record) for (record,) in batches],
            )
        except (msgspec.DecodeError, sqlite3.Error) as exc:
            raise FolderUnusable(
                f"the database of batches {self._path} is damaged: {exc};"
                f" {_BEGIN_ANEW.format(self._path.parent)}"
            ) from exc

    def write(
        self,
        files: Iterable[FileRecord] = (),
        batches: Iterable[BatchRecord] = (),
        dropped: Iterable[str] = (),
    ) -> None:
        """Keep these records, new or changed, and drop those with these ids, all or nothing."""
        db, gone = self._db, [(each,) for each in dropped]
        db.execute("BEGIN IMMEDIATE")
        try:
            for table, records in (("files", files), ("batches", batches)):
                rows = [(each.id, _encode(each)) for each in records]
                db.executemany(
                    f"INSERT INTO {table} (id, record) VALUES (?, ?)"
                    " ON CONFLICT (id) DO UPDATE SET record = excluded.record",
                    rows,
                )
                db.executemany(f"DELETE FROM {table} WHERE id = ?", gone)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    def is_in_place(self) -> bool:
        """True while the path of the database leads to it."""
        return self._place.is_kept()

    def close(self) -> None:
        """Let go of the database."""
        self._db.close()
        self._place.close()


def _cannot_open(path: Path, exc: Exception) -> str:
    text = f"the database of batches {path} cannot be opened: {exc}"
    match getattr(exc, "sqlite_errorcode", 0) & 0xFF:  # the primary code
        case sqlite3.SQLITE_BUSY:
            return f"{text}; another pool has it: stop that one, or set another state_dir"
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
            return f"{text}; {_BEGIN_ANEW.format(path.parent)}"
    return f"{text}; set another state_dir, or see to it that this user may write there"
