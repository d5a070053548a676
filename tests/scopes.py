"""The shares of a parallel run: the tests of a file stay together, and so do all files that use the
pool of tests/process/conftest.py, which every process of the run would else start for itself."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SHARED = "everyday"  # the fixture


@cache
def shares_the_pool(file: str) -> bool:
    """True if a test file, by its path in the checkout, uses the fixture."""
    return file.startswith("tests/process/") and SHARED in (ROOT / file).read_text("utf-8")


def scheduling(config: Any, log: Any) -> Any:
    """The scheduling of pytest-xdist by scopes (a class, or a file), and one scope for all files
    that share the pool."""
    made = importlib.import_module("xdist.scheduler").LoadScopeScheduling(config, log)
    scope_of = made._split_scope

    def split_scope(nodeid: str) -> str:
        return SHARED if shares_the_pool(nodeid.partition("::")[0]) else str(scope_of(nodeid))

    made._split_scope = split_scope
    return made
