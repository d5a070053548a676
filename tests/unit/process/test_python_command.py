"""The package is found without the current directory, or its folder is told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import batchpool
from batchpool.process.python_command import package_environment, python_command

ROOT = str(Path(batchpool.__file__).parents[1])


def test_the_current_directory_is_no_place_for_modules() -> None:
    assert python_command("batchpool.batcher") == [sys.executable, "-P", "-m", "batchpool.batcher"]


def test_an_installed_package_needs_no_help() -> None:
    env = {"PYTHONPATH": "/there"}
    assert package_environment(env) is env


@pytest.mark.parametrize(
    ("env", "expected"),
    [({}, ROOT), ({"PYTHONPATH": ""}, ROOT), ({"PYTHONPATH": "/there"}, f"/there:{ROOT}")],
)
def test_a_checkout_that_is_found_by_the_current_directory_alone_is_named(
    env: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [path for path in sys.path if path != ROOT and not Path(path, "batchpool").exists()]
    monkeypatch.setattr(sys, "path", [ROOT, *others])
    monkeypatch.setattr(sys, "meta_path", [f for f in sys.meta_path if "editable" not in repr(f)])
    assert package_environment({"A": "b", **env}) == {"A": "b", "PYTHONPATH": expected}
    monkeypatch.setattr(sys, "path", ["", ROOT, *others])
    assert package_environment(env) is env
