"""Names of `import batchpool`: every public one, each loaded when it is asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import batchpool as bp
from batchpool import generator, inprocess, model
from batchpool.client import aio, sync
from batchpool.core import errors
from batchpool.core.tensors import spec, text

ROOT = Path(__file__).parents[2]


def test_every_name_is_the_one_of_its_module() -> None:
    homes = (aio, sync, errors, spec, text, inprocess, model, generator)
    for name in bp.__all__:
        found = getattr(bp, name)
        assert found in [vars(home).get(name) for home in homes], name
        assert getattr(bp, name) is found
    assert set(bp.__all__) <= set(dir(bp))
    assert bp.Client is sync.Client
    assert bp.Overloaded is errors.Overloaded
    kinds = {kind.__name__ for kind in errors.all_errors()}
    assert kinds <= set(bp.__all__), "every error that a caller can meet is public"


def test_a_name_that_there_is_not() -> None:
    with pytest.raises(AttributeError, match="module 'batchpool' has no attribute 'Clinet'"):
        bp.Clinet  # noqa: B018
    with pytest.raises(ImportError):
        exec("from batchpool import Clinet")


def test_a_start_of_the_command_line_loads_next_to_nothing() -> None:
    code = "import sys, batchpool; print({'numpy', 'asyncio', 'logging'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
