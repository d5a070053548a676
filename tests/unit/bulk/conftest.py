"""`batchpool run` in a folder of its own, with a pool in the test's process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchpool import cli
from batchpool.bulk import run as run_module
from tests.unit.bulk.files import Run
from tests.unit.bulk.pool_double import DriverDouble


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command: (exit status, what it said)."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, at_submit: Any = lambda number: None) -> tuple[int, str]:
        monkeypatch.setattr(run_module, "ThreadDriver", DriverDouble(at_submit))
        status = cli.main(["run", *words, "--socket", "nowhere"])
        return status, capsys.readouterr().err

    return run
