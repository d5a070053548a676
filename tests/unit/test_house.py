"""The house stands: each rule of tests/house holds for the files of this checkout."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.house.imports import FLOORS, floor_of
from tests.house.registries import comparisons_that_are_gone
from tests.house.rules import RULES
from tests.house.tree import ROOT, Tree
from tests.lazy import imported_while_collecting

# Rules that do not hold yet: so many offences are known. A number here may only fall.
KNOWN = {}


@pytest.fixture(scope="module")
def house() -> Tree:
    return Tree.read()


@pytest.mark.parametrize("name", RULES)
def test_rule_holds(house: Tree, name: str) -> None:
    """C64: one of the rules is that no file of the package uses pickle."""
    offences = RULES[name](house)
    if len(offences) > KNOWN.get(name, 0):
        pytest.fail("\n".join([str(RULES[name].__doc__), *offences]), pytrace=False)


def test_the_rules_see_the_files(house: Tree) -> None:
    """No rule holds because it looked at nothing."""
    assert (
        {"core", "cli", "supervisor/plan", "worker/backends"}
        <= {floor_of(source) for source in house.package}
        <= set(FLOORS)
    )
    assert house.under("tests/house")
    assert house.under("bench")


def test_allowed_comparisons_are_made(house: Tree) -> None:
    assert comparisons_that_are_gone(house) == []


def test_import_batchpool_is_light() -> None:
    code = "import sys, batchpool; print('\\n'.join(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    loaded = {name.split(".")[0] for name in run.stdout.split()}
    assert "batchpool" in loaded
    heavy = {"torch", "starlette", "uvicorn", "httptools", "uvloop", "transformers"}
    assert loaded & heavy == set()


def test_test_files_import_slow_libraries_when_they_use_them(
    request: pytest.FixtureRequest,
) -> None:
    """Of the files that this run collected: every process of `make test` collects all."""
    assert request.config.stash[imported_while_collecting] == []
