"""The database of tasks: its tables, its version, and how a connection to it is opened.

A row of `tasks` is one task. Its indices are partial, so that an ended task costs what its result
costs: `turns` has the queued tasks that may run, by origin, `waits` those whose time has not come,
`deadlines` the open ones, `drops` those that have ended.

`reads` has the results that were read, by the time at which they are dropped for that: a row of its
own is a tenth of what it costs to write the row of a task again, with its result.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from batchpool.tasks.byte_shares import RECORD_BYTES
from batchpool.tasks.store import StoreAway

VERSION = 4
_APPLICATION_ID = 0x62707473  # "bpts"
_OLDEST_SQLITE = (3, 35)  # RETURNING
_WAL_MOST_BYTES = 64 * 2**20
# Three tasks of 2 KB, which mostly come and end together, are one page: half the writes of pages of
# 4 KB, and a third less bytes. A database that is there keeps the pages it has.
_PAGE_BYTES = 8192
_TABLES = """
CREATE TABLE tasks (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    model TEXT NOT NULL,
    state INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    caller TEXT NOT NULL,
    origin TEXT NOT NULL,
    principal TEXT NOT NULL,
    key BLOB,
    fingerprint BLOB NOT NULL,
    submitted_ms INTEGER NOT NULL,
    due_ms INTEGER NOT NULL,
    turn INTEGER,
    deadline_ms INTEGER NOT NULL,
    own_deadline INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    losses INTEGER NOT NULL DEFAULT 0,
    claims INTEGER NOT NULL DEFAULT 0,
    owner BLOB,
    started_ms INTEGER NOT NULL DEFAULT 0,
    finished_ms INTEGER NOT NULL DEFAULT 0,
    drop_ms INTEGER,
    code TEXT NOT NULL DEFAULT '',
    error TEXT NOT NULL DEFAULT '',
    status INTEGER NOT NULL DEFAULT 0,
    input_file INTEGER NOT NULL DEFAULT 0,
    body_file INTEGER NOT NULL DEFAULT 0,
    size INTEGER NOT NULL,
    headers BLOB,
    answer BLOB,
    input BLOB,
    body BLOB
);
CREATE UNIQUE INDEX keys ON tasks (key) WHERE key IS NOT NULL;
CREATE INDEX turns ON tasks (model, origin, turn) WHERE state = 0 AND turn IS NOT NULL;
CREATE INDEX waits ON tasks (model, due_ms) WHERE state = 0 AND turn IS NULL;
CREATE INDEX deadlines ON tasks (deadline_ms, submitted_ms) WHERE state < 2;
CREATE INDEX drops ON tasks (drop_ms) WHERE drop_ms IS NOT NULL;
CREATE TABLE reads (drop_ms INTEGER, n INTEGER, PRIMARY KEY (drop_ms, n)) WITHOUT ROWID;
CREATE TABLE letters (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL,
    model TEXT NOT NULL,
    code TEXT NOT NULL,
    error TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    caller TEXT NOT NULL,
    origin TEXT NOT NULL,
    principal TEXT NOT NULL,
    submitted_ms INTEGER NOT NULL,
    died_ms INTEGER NOT NULL,
    facts BLOB NOT NULL,
    input_file INTEGER NOT NULL,
    answer BLOB NOT NULL,
    input BLOB
);
CREATE INDEX holders ON letters (origin, n);
"""
# From version 1, which claimed by time alone: its tasks that wait for their time go on waiting.
_TURNS = """
ALTER TABLE tasks ADD COLUMN turn INTEGER;
DROP INDEX due;
CREATE INDEX turns ON tasks (model, turn) WHERE state = 0 AND turn IS NOT NULL;
CREATE INDEX waits ON tasks (model, due_ms) WHERE state = 0 AND turn IS NULL;
"""
# From version 2, which knew no origins: those who had given themselves names share one. A result in
# a file counts as nothing, since its length is not here.
_ORIGINS = f"""
ALTER TABLE tasks ADD COLUMN origin TEXT NOT NULL DEFAULT '';
ALTER TABLE tasks ADD COLUMN size INTEGER NOT NULL DEFAULT 0;
ALTER TABLE letters ADD COLUMN origin TEXT NOT NULL DEFAULT '';
UPDATE tasks SET origin = CASE WHEN caller LIKE 'client %' THEN 'client' ELSE caller END,
    size = {RECORD_BYTES} + coalesce(length(input), 0) + coalesce(length(body), 0);
UPDATE letters SET origin = CASE WHEN caller LIKE 'client %' THEN 'client' ELSE caller END;
CREATE TABLE reads (drop_ms INTEGER, n INTEGER, PRIMARY KEY (drop_ms, n)) WITHOUT ROWID;
CREATE INDEX holders ON letters (origin, n);
"""
# From version 3, in which callers had turns whatever their origin: they have them within it now.
_TURNS_OF_ORIGINS = """
DROP INDEX turns;
CREATE INDEX turns ON tasks (model, origin, turn) WHERE state = 0 AND turn IS NOT NULL;
"""
_STEPS = {1: _TURNS, 2: _ORIGINS, 3: _TURNS_OF_ORIGINS}


def open_database(path: Path) -> sqlite3.Connection:
    """A connection to the database, made if there is none; nobody else can open it meanwhile.

    Raises StoreAway for one that is damaged, of a newer version, or no database of tasks.
    """
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise StoreAway(
            f"this Python has SQLite {sqlite3.sqlite_version}; tasks need"
            f" {'.'.join(map(str, _OLDEST_SQLITE))} or later"
        )
    db = None
    try:
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
        _set_up(db, path)
    except sqlite3.Error as exc:
        if db is not None:
            db.close()
        raise StoreAway(_cannot_open(path, exc)) from exc
    except BaseException:
        if db is not None:
            db.close()
        raise
    return db


def _set_up(db: sqlite3.Connection, path: Path) -> None:
    # Of a database that is new, and before everything else: each of the others fixes the size.
    db.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (application,) = db.execute("PRAGMA application_id").fetchone()
    tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables and application != _APPLICATION_ID:
        raise StoreAway(f"{path} is no database of tasks; move it away, or set another state_dir")
    if version > VERSION:
        raise StoreAway(
            f"the database of tasks {path} is of version {version}, made by a newer batchpool; this"
            f" one knows {VERSION}: install the newer one again, or set another state_dir"
        )
    if tables and version < min(_STEPS):
        raise StoreAway(
            f"the database of tasks {path} is of version {version}, which no batchpool has made;"
            f" {begin_anew(path.parent)}"
        )
    if not tables:  # before anything is written; a database that is refused stays as it is
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    db.execute("PRAGMA journal_mode = WAL")
    # An answer 202 says that the task is kept, also if the power fails.
    db.execute("PRAGMA synchronous = FULL")
    db.execute(f"PRAGMA journal_size_limit = {_WAL_MOST_BYTES}")
    db.execute("PRAGMA temp_store = MEMORY")
    if not tables:
        db.executescript(
            f"BEGIN IMMEDIATE; {_TABLES} PRAGMA application_id = {_APPLICATION_ID};"
            f" PRAGMA user_version = {VERSION}; COMMIT;"
        )
    elif version < VERSION:
        steps = "".join(_STEPS[step] for step in range(version, VERSION))
        db.executescript(f"BEGIN IMMEDIATE; {steps} PRAGMA user_version = {VERSION}; COMMIT;")


def begin_anew(folder: Path) -> str:
    """The advice for a folder of tasks that is damaged."""
    return (
        f"move the folder {folder} away to begin anew without its tasks, or set another state_dir"
    )


def _cannot_open(path: Path, exc: sqlite3.Error) -> str:
    text = f"the database of tasks {path} cannot be opened: {exc}"
    match getattr(exc, "sqlite_errorcode", 0) & 0xFF:  # the primary code
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
            return f"{text}; {begin_anew(path.parent)}"
        case sqlite3.SQLITE_FULL:
            return f"{text}; make room on its disk, or set another state_dir"
    return f"{text}; set another state_dir, or see to it that this user may write there"
