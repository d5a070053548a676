"""`batchpool check` tries the folder of tasks and leaves no trace of it."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path

import pytest

from batchpool.cli.folder_check import check_batch_folder, check_task_folder
from batchpool.core.errors import StartError
from batchpool.tasks.schema import open_database


def test_a_folder_that_can_be_made_is_not_made(tmp_path: Path) -> None:
    check_task_folder(tmp_path / "state" / "tasks")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_stays_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    folder.mkdir(mode=0o750)
    (folder / "lock").write_bytes(b"kept")
    check_task_folder(folder)
    assert [(file.name, file.read_bytes()) for file in folder.iterdir()] == [("lock", b"kept")]
    assert folder.stat().st_mode & 0o777 == 0o750


def test_a_folder_that_cannot_be_used_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (Path("/proc/nope/tasks"), tmp_path / "file" / "tasks", tmp_path / "file"):
        with pytest.raises(StartError, match=rf"{folder} cannot be used: .* another state_dir"):
            check_task_folder(folder)


def test_the_folder_of_another_user_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root could take it, and serve refuses it."""
    monkeypatch.setattr(os, "geteuid", lambda: 2**31 - 2)
    for check in (check_task_folder, check_batch_folder):
        with pytest.raises(StartError, match=r"It belongs to .*, and this pool runs as user 21"):
            check(tmp_path)


def test_the_folder_of_batches_is_tried_in_the_same_way(tmp_path: Path) -> None:
    check_batch_folder(tmp_path / "state" / "batches")
    assert list(tmp_path.iterdir()) == []
    check_batch_folder(tmp_path)
    (tmp_path / "batches.db").mkdir()
    with pytest.raises(StartError, match=r"the folder of batches .* cannot be used"):
        check_batch_folder(tmp_path)


def test_a_database_that_serve_could_not_use_is_told(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    with sqlite3.connect(path) as others:
        others.execute("CREATE TABLE mine (n)")
    others.close()
    before = path.read_bytes()
    with pytest.raises(StartError, match=rf"{path} is no database of tasks; move it away"):
        check_task_folder(tmp_path)
    assert path.read_bytes() == before
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(StartError, match="cannot be opened"):
        check_task_folder(tmp_path)


def test_the_tasks_of_a_pool_that_ended_stay_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()

    def kept() -> tuple[list[str], list[str]]:
        db = open_database(tmp_path / "tasks.db")
        found = list(db.iterdump())
        db.close()
        return found, sorted(file.name for file in tmp_path.iterdir())

    before = kept()
    assert check_task_folder(tmp_path) == ""
    assert kept() == before
    newer = sqlite3.connect(tmp_path / "tasks.db")
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(StartError, match="of version 99, made by a newer batchpool"):
        check_task_folder(tmp_path)


def test_the_tasks_of_a_pool_that_runs_are_left_to_it(tmp_path: Path) -> None:
    held = open_database(tmp_path / "tasks.db")
    with open(tmp_path / "lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "a pool that runs has the tasks" in check_task_folder(tmp_path)
    held.close()


def test_a_database_that_is_no_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "tasks.db").mkdir()
    with pytest.raises(StartError, match="Is a directory"):
        check_task_folder(tmp_path)
