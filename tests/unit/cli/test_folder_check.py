"""`batchpool check` tries the folder of tasks and leaves no trace of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchpool.cli.folder_check import check_task_folder
from batchpool.core.errors import StartError


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


def test_a_database_that_is_no_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "tasks.db").mkdir()
    with pytest.raises(StartError, match="Is a directory"):
        check_task_folder(tmp_path)
