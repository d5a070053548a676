"""The database of files and batches: a row for each, with its record as msgpack.

What callers ask is answered from memory; this is read at the start, and written before anything is
said. The bytes of the files stand beside it (`batchpool/batches/file_bodies.py`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

import msgspec

from batchpool.batches.records import BatchRecord, FileRecord

VERSION = 1
_LOCK_WAIT_S = 5.0  # the process before this one may still be on its way out
_APPLICATION_ID = 0x62706261  # "bpba"
_TABLES = """
CREATE TABLE files (n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, record BLOB);
CREATE TABLE batches (n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, record BLOB);
"""
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
        self._db = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, timeout=_LOCK_WAIT_S
        )
        try:
            self._set_up(path)
        except sqlite3.Error as exc:
            self._db.close()
            raise FolderUnusable(f"the database of batches {path} cannot be opened: {exc}") from exc
        except BaseException:
            self._db.close()
            raise

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
        """Everything that is kept, the oldest first."""
        files = self._db.execute("SELECT record FROM files ORDER BY n")
        batches = self._db.execute("SELECT record FROM batches ORDER BY n")
        try:
            return (
                [_FILE.decode(record) for (record,) in files],
                [_BATCH.decode(record) for (record,) in batches],
            )
        except msgspec.DecodeError as exc:
            raise FolderUnusable(f"the database of batches has a damaged record: {exc}") from exc

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

    def close(self) -> None:
        """Let go of the database."""
        self._db.close()
