"""One mutation of the source, as the lists beside this file hold it.

    [[mutant]]
    file = "batchpool/batcher/lane.py"
    old = "self.ring_client()"
    new = "pass"
    test = "tests/unit/batcher/test_lane.py::test_a_completion_rings_its_client"

The text `old` stands exactly once in the file, so that a mutation follows the code or is noticed.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LISTS = Path(__file__).parent


@dataclass(frozen=True)
class Mutant:
    """A mutation. name: its list and its place there, from 1. test: the pytest id of the test, or
    of the file, that must fail."""

    name: str
    file: str
    old: str
    new: str
    test: str

    @property
    def module(self) -> str:
        return self.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def source(self) -> str:
        """The mutated source of the module. Raises ValueError unless `old` stands there once."""
        text = (ROOT / self.file).read_text("utf-8")
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.name}: {self.old!r} stands {found} times in {self.file}")
        return text.replace(self.old, self.new)


def read_list(name: str) -> list[Mutant]:
    """The mutations of one list, which has the name of the package, or part, that it is about."""
    table = tomllib.loads((LISTS / f"{name}.toml").read_text("utf-8"))
    return [Mutant(f"{name} {i}", **found) for i, found in enumerate(table["mutant"], 1)]


def list_names() -> list[str]:
    return sorted(path.stem for path in LISTS.glob("*.toml"))
