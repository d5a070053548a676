"""The command of a Python process that never takes a module from the current directory.

`python -m` puts the current directory first on the path, and a file of the user's there with the
name of one of Python's modules would be imported instead of that. Only the user's model is
looked for in that directory (`batchpool/worker/load.py`).
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

_PACKAGE = "batchpool"
_ROOT = str(Path(__file__).parents[2])


def python_command(module: str) -> list[str]:
    """The first words of a command that runs a module of this package."""
    return [sys.executable, "-P", "-m", module]


def package_environment(env: dict[str, str]) -> dict[str, str]:
    """The environment of such a process: `env`, where the package is found without the current
    directory; else, as in a checkout that is not installed, with its folder in PYTHONPATH."""
    if sys.flags.safe_path or _is_found_elsewhere():
        return env
    before = env.get("PYTHONPATH")
    return {**env, "PYTHONPATH": f"{before}{os.pathsep}{_ROOT}" if before else _ROOT}


def _is_found_elsewhere() -> bool:
    """True if this package is found by other means than the first folder of the path."""
    if PathFinder.find_spec(_PACKAGE, sys.path[1:]) is not None:
        return True
    finders = [finder for finder in sys.meta_path if finder is not PathFinder]
    return any(
        getattr(finder, "find_spec", lambda name, path: None)(_PACKAGE, None) is not None
        for finder in finders
    )
