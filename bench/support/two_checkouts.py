"""Figures of this checkout and of another one in turns, each in a process of its own.

A benchmark of this kind runs itself anew with `--one CHECKOUT` and prints its figures. Nothing of
the package may be imported before `use` was called.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def parser_of(module_doc: str | None, turns: int) -> argparse.ArgumentParser:
    """With the arguments that such benchmarks share. turns: the default."""
    parser = argparse.ArgumentParser(
        description=module_doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=turns)
    parser.add_argument("--against", type=Path, metavar="CHECKOUT")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--save", metavar="FILE.json")
    return parser


def use(checkout: str) -> None:
    """Import the package of this checkout, also where another one is installed to be edited."""
    sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in repr(f).lower()]
    sys.path.insert(0, checkout)


def in_turns(
    module: str, arguments: list[str], against: Path | None, turns: int
) -> dict[str, list[list[float]]]:
    """The figures that each run of the module printed, by "this" and "against"; every other turn
    begins with the latter."""
    checkouts = {"this": _ROOT} | ({"against": against} if against else {})
    figures: dict[str, list[list[float]]] = {name: [] for name in checkouts}
    for turn in range(turns):
        for name in list(checkouts)[:: -1 if turn % 2 else 1]:
            command = [sys.executable, "-m", module, "--one", str(checkouts[name]), *arguments]
            found = subprocess.run(
                command, check=False, stdout=subprocess.PIPE, text=True, cwd=_ROOT
            )
            if found.returncode:  # it has said why
                raise SystemExit(f"{' '.join(command)} ended with {found.returncode}")
            figures[name].append([float(figure) for figure in found.stdout.split()])
    return figures
