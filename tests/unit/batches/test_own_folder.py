"""Folders that belong to another user than the pool's."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from batchpool.batches.database import FolderUnusable
from batchpool.batches.own_folder import make_own_folder
from batchpool.batches.store import BatchStore
from batchpool.tasks.sqlite import SqliteStore
from batchpool.tasks.store import StoreAway
from tests.unit.batches.desk import SETTINGS
from tests.unit.tasks.test_sqlite import LIMITS

NOBODY = 2**31 - 2


def test_a_folder_is_made_for_one_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a/b"
    for _ in range(2):
        make_own_folder(folder)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        folder.chmod(0o777)


def test_the_folder_of_another_user_is_refused_and_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write anywhere; the pool of that user could not read what root has written."""
    tmp_path.chmod(0o750)
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    text = f"It belongs to .*, and this pool runs as user {NOBODY}; set another state_dir"
    with pytest.raises(StoreAway, match=text):
        SqliteStore(tmp_path, LIMITS)
    with pytest.raises(FolderUnusable, match=text):
        BatchStore(tmp_path, SETTINGS)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o750
    assert not list(tmp_path.iterdir())
