"""Paths that lead to a file in use, or no longer do."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

from batchpool.batches.file_place import FilePlace

_BEGIN = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN IMMEDIATE')"


def test_a_folder_that_was_made_anew_is_another_one(tmp_path: Path) -> None:
    """A file system gives the number of a folder that has gone to the next one."""
    for number in range(20):
        path = tmp_path / str(number)
        path.mkdir()
        place = FilePlace(path)
        assert place.is_kept()
        path.rmdir()
        assert not place.is_kept()
        path.mkdir()
        assert not place.is_kept()
        place.close()


def test_a_way_that_ends_in_a_file_leads_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    path = tmp_path / "folder/file"
    path.touch()
    place = FilePlace(path)
    path.rename(tmp_path / "elsewhere")
    (tmp_path / "folder").rmdir()
    (tmp_path / "folder").touch()
    assert not place.is_kept()
    place.close()


def test_the_locks_of_a_database_outlast_its_place(tmp_path: Path) -> None:
    """They are the process's: to close any descriptor of the file would end them."""
    path = tmp_path / "db"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("CREATE TABLE t (n)")
    db.execute("BEGIN EXCLUSIVE")
    FilePlace(path).close()
    command = (sys.executable, "-c", _BEGIN, str(path))
    other = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert "database is locked" in other.stderr
    db.close()
