"""The folder of a run's own pool: one that a kill has left goes with the next run."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from batchpool.bulk import own_pool


def test_empty_folders_of_runs_that_were_killed_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine, held = own_pool._new_folder()
    for name in ("batchpool-run-left", "batchpool-run-used", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "batchpool-run-used" / "pool").touch()
    own_pool.remove_left_folders()
    found = {path.name for path in tmp_path.iterdir()}
    assert found == {os.path.basename(mine), "batchpool-run-used", "other"}
    os.close(held)  # as the end of the process does
    own_pool.remove_left_folders()
    assert not Path(mine).exists()
