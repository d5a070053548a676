"""Folders of tasks that an operator has moved or damaged, and disks that fail."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchpool.tasks.judgement import LONGEST_MS
from batchpool.tasks.record import Again, Want
from batchpool.tasks.sqlite import SqliteStore
from batchpool.tasks.store import StoreAway, StoreGone
from tests.unit.tasks.desk import Desk, running
from tests.unit.tasks.test_sqlite import LIMITS, LONG, files, new, run

HOUR = 3_600_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "tasks", LIMITS)
    yield store
    store.close()


@pytest.mark.parametrize("leaves", ["nothing", "no bodies", "an empty folder", "another store"])
def test_a_store_that_was_moved_promises_nothing(
    tmp_path: Path, store: SqliteStore, leaves: str
) -> None:
    """A task would be promised that no other process finds."""
    store.put([new(1)], 1)
    if leaves == "no bodies":
        (tmp_path / "tasks/bodies").rmdir()
    else:
        shutil.move(tmp_path / "tasks", tmp_path / "elsewhere")
    if leaves == "an empty folder":
        (tmp_path / "tasks").mkdir()
    if leaves == "another store":
        SqliteStore(tmp_path / "tasks", LIMITS).close()
    with pytest.raises(StoreGone, match="was moved, removed or replaced while the pool"):
        store.put([new(2)], 1)
    with pytest.raises(StoreGone, match="put it back while the pool is stopped"):
        store.sweep(1)


def test_a_store_that_is_gone_ends_the_upkeep_and_so_the_process() -> None:
    """One that is away is waited for; one that is gone comes back for another process alone."""

    async def scene() -> None:
        desk = Desk()
        errors: list[Exception] = [StoreAway("away"), StoreGone("gone")]

        def sweep(now_ms: int) -> None:
            raise errors.pop(0)

        desk.store.sweep = sweep  # type: ignore[assignment, method-assign]
        async with asyncio.timeout(60):
            with pytest.raises(StoreGone):
                await desk.upkeep.run()
        assert not errors
        await desk.committer.close()

    asyncio.run(scene())


def test_a_sweep_that_cannot_read_does_not_end_the_upkeep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With it the process ends, and with that all calls under way."""
    monkeypatch.setattr("batchpool.tasks.runner._STORE_RETRY_S", 0.001)
    monkeypatch.setattr("batchpool.tasks.upkeep._EVERY_S", 0.001)

    async def scene() -> None:
        desk = Desk()
        failures = {"sweep": 3}

        def failing(name: str) -> None:
            whole = getattr(desk.store, name)

            def fails(*args: object) -> object:
                if failures[name]:
                    failures[name] -= 1
                    raise sqlite3.OperationalError("disk I/O error")
                return whole(*args)

            setattr(desk.store, name, fails)

        for name in failures:
            failing(name)
        async with running(desk):
            upkeep = asyncio.create_task(desk.upkeep.run())
            first = await desk.submit([1])
            await desk.until_state(first, "done")
            await desk.until(lambda: not failures["sweep"])
            await desk.until_state(await desk.submit([2]), "done")
            assert not upkeep.done()
            upkeep.cancel()

    asyncio.run(scene())


@pytest.mark.parametrize("number", [0, -3])
def test_a_database_of_no_known_version_is_refused(tmp_path: Path, number: int) -> None:
    SqliteStore(tmp_path / "tasks", LIMITS).close()
    path = tmp_path / "tasks/tasks.db"
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {number}")
    db.close()
    with pytest.raises(StoreAway, match=f"version {number}, which no batchpool has made; move the"):
        SqliteStore(tmp_path / "tasks", LIMITS)


def test_a_damaged_database_says_what_helps(tmp_path: Path) -> None:
    (tmp_path / "tasks.db").write_bytes(b"no database at all, " * 1000)
    with pytest.raises(StoreAway, match=r"move the folder .* away to begin anew without its tasks"):
        SqliteStore(tmp_path, LIMITS)


def test_a_folder_that_cannot_be_made_says_what_helps(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreAway, match="Not a directory; set another state_dir"):
        SqliteStore(tmp_path / "file" / "tasks", LIMITS)


def test_an_input_that_cannot_be_read_keeps_no_other_task_from_running(
    tmp_path: Path, store: SqliteStore
) -> None:
    """As a bad sector: here a folder in the place of the file."""
    store.put([new(1, len(LONG)), new(2)], 1)
    (name,) = files(tmp_path)
    path = tmp_path / "tasks/bodies" / name
    path.unlink()
    path.mkdir()
    tasks = store.claim([Want("m", 9, 2**30)], 1)
    assert [len(task.input) for task in tasks] == [0, 10]
    (form,) = store.cancel([tasks[0].id], 1)
    assert form is not None, "what cannot be removed either keeps no end back"


def test_a_shortage_of_the_process_is_no_fault_of_a_task(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put([new(1, len(LONG))], 1)

    def short(name: str) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(store._files, "read", short)
        with pytest.raises(StoreAway, match="Too many open files"):
            store.claim([Want("m", 9, 2**30)], 1)
    assert len(run(store)) == 1


def test_a_folder_among_the_bodies_is_left_alone(tmp_path: Path) -> None:
    stray = tmp_path / "tasks/bodies/lost+found"
    stray.mkdir(parents=True)
    store = SqliteStore(tmp_path / "tasks", LIMITS)
    assert stray.is_dir()
    assert store._files.bytes == 0
    store.close()


def test_a_clock_that_was_set_back_between_two_processes_keeps_no_task_waiting(
    tmp_path: Path,
) -> None:
    store = SqliteStore(tmp_path / "tasks", LIMITS)
    store.put([new(1), new(2)], HOUR)
    soon, late = store.claim([Want("m", 9, 2**30)], HOUR)
    store.retry([Again(soon.id, soon.claim, 1000 + LONGEST_MS, True)], HOUR)
    store.retry([Again(late.id, late.claim, HOUR + 1000, True)], HOUR)
    store.close()
    store = SqliteStore(tmp_path / "tasks", LIMITS)
    store.reclaim(1000)
    assert [task.id for task in store.claim([Want("m", 9, 2**30)], 1000)] == [late.id]
    assert store.next_due_ms(["m"]) == [1000 + LONGEST_MS], "no longer than it may be"
    store.close()
