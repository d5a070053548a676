"""Columns of rows that have their own names each, as of JSON Lines.

A column is made when somebody asks for it. Rows may have a name that no other one has, as where a
program writes a key for each of its records: all columns of such rows are as many as the rows, and
would have an entry for each row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


class RowColumns(Mapping[str, list[Any]]):
    """The columns of rows, {name: value} each, or None for one that cannot be read. What a row does
    not have is None in its column."""

    def __init__(self, rows: Sequence[dict[str, Any] | None]) -> None:
        self._rows = rows
        self._names = dict.fromkeys(name for row in rows if row for name in row)
        self._made: dict[str, list[Any]] = {}

    def __getitem__(self, name: str) -> list[Any]:
        found = self._made.get(name)
        if found is None:
            if name not in self._names:
                raise KeyError(name)
            found = [row.get(name) if row else None for row in self._rows]
            self._made[name] = found
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def row(self, at: int) -> Mapping[str, Any]:
        """The row at a place, with the names that it has itself."""
        return self._rows[at] or {}
