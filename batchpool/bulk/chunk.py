"""Chunk: consecutive rows of the input, the unit that is read, run and committed together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from batchpool.bulk.row_columns import RowColumns
from batchpool.bulk.shown import Shown


@dataclass(frozen=True)
class BadRow:
    """A row without a result. row: its number in the input, from 0. source: file and line. code: of
    the error, as in HTTP's answers. shown: the row as it came, shortened."""

    row: int
    source: str
    code: str
    message: str
    shown: Shown

    def place(self) -> str:
        """Where it stands, with its number, each once."""
        number = f"row {self.row}"
        return number if self.source == number else f"{self.source} ({number})"

    def line(self) -> dict[str, Any]:
        """Its line in the file of bad rows."""
        line = {
            "row": self.row,
            "source": self.source,
            "code": self.code,
            "error": self.message,
            "input": self.shown.row,
        }
        return {**line, "input_cut": True} if self.shown.cut else line


@dataclass(slots=True)
class Chunk:
    """n rows from `start` on. columns: by name, each a list, an array, or a column of Arrow, with n
    entries. sources: where each row stands. unread: why rows cannot be read and, where
    they are no columns, their texts, by their place. share: of the input up to the
    last of these rows, where the number of all rows is not known."""

    start: int
    n: int
    columns: Mapping[str, Any]
    sources: Sequence[str] | None = None
    unread: dict[int, tuple[str, str | bytes]] = field(default_factory=dict)  # (message, text)
    share: float | None = None

    def source(self, at: int) -> str:
        """The file and line, or the number, of the row at a place."""
        return self.sources[at] if self.sources is not None else f"row {self.start + at}"

    def row(self, at: int) -> Mapping[str, Any]:
        """The values of the row at a place."""
        if isinstance(self.columns, RowColumns):
            return self.columns.row(at)
        found = {name: column[at] for name, column in self.columns.items()}
        return {
            name: value.as_py() if hasattr(value, "as_py") else value
            for name, value in found.items()
        }


class Reader(Protocol):
    """Input files of one format, whose rows follow one another.

    names: of the columns; None where each row has its own. total: rows of all; None if that is only
    known at the end.
    """

    names: tuple[str, ...] | None
    total: int | None

    def chunks(self, size: int, start: int) -> Iterator[Chunk]:
        """Chunks of `size` rows, the last one shorter, from the row `start` on, a multiple of it.

        StartError for a file that cannot be read.
        """
