"""Every benchmark that a text names can be started."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.house.tree import ROOT

_COMMAND = re.compile(r"(?:python -m |`)(bench(?:\.[a-z_]+)+)(?![a-z_./*])")
_ALL_HELP = """
import contextlib, io, json, runpy, sys
told = {}
for name in sys.argv[1:]:
    sys.argv = [name, "--help"]
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        told[name] = [end.code, out.getvalue()]
    except ModuleNotFoundError as exc:
        told[name] = [f"no module {exc.name}", ""]
print(json.dumps(told))
"""


def named_commands() -> list[str]:
    """The modules that README, docs and benchmarks tell to start."""
    texts = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    texts += [path for path in (ROOT / "bench").rglob("*") if path.suffix in (".py", ".md")]
    found = {name for path in texts for name in _COMMAND.findall(path.read_text(encoding="utf-8"))}
    return sorted(found)


def commands_with_help() -> list[str]:
    """Those in the table of bench/README.md; others are started by benchmarks."""
    return sorted(set(_COMMAND.findall((ROOT / "bench/README.md").read_text(encoding="utf-8"))))


@pytest.fixture(scope="module")
def told() -> dict[str, tuple[object, str]]:
    """{command: (exit status, output)} of --help, all in one process: they share their imports."""
    command = [sys.executable, "-W", "ignore", "-c", _ALL_HELP, *commands_with_help()]
    run = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    found: dict[str, tuple[object, str]] = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", named_commands())
def test_a_named_benchmark_exists(name: str) -> None:
    spec = find_spec(name)
    assert spec is not None
    if spec.submodule_search_locations is not None:  # a package, which needs its __main__
        assert find_spec(f"{name}.__main__") is not None


@pytest.mark.parametrize("name", commands_with_help())
def test_a_benchmark_tells_its_arguments(told: dict[str, tuple[object, str]], name: str) -> None:
    status, text = told[name]
    if status in ("no module matplotlib", "no module ray"):
        pytest.skip(f"{status}: the extra that has it is not installed")
    assert status in (0, None)
    assert "usage:" in text
    assert "--help" in text
