"""Facts that a benchmark prints of the machine and the code it ran."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from batchpool.core.compiled import COMPILED
from bench.support import machine


def test_modules_that_were_edited_after_they_were_compiled_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_PROJECT", tmp_path / "pyproject.toml")
    package = tmp_path / "batchpool" / "core"
    package.mkdir(parents=True)
    for name, source_s, library_s in (("old", 20, 10), ("new", 10, 20), ("gone", None, 20)):
        if source_s is not None:
            (package / f"{name}.py").touch()
            os.utime(package / f"{name}.py", (source_s, source_s))
        library = package / f"{name}.cpython-311-x86_64-linux-gnu.so"
        library.touch()
        os.utime(library, (library_s, library_s))
    (package / "interpreted.py").touch()
    assert machine.stale() == ["batchpool/core/gone.py", "batchpool/core/old.py"]
    with pytest.raises(SystemExit, match="before it was edited: batchpool"):
        machine.facts()


def test_the_facts_say_whether_the_code_was_compiled() -> None:
    assert machine.facts()["compiled"] is COMPILED
