"""Chunk: consecutive rows of the input, the unit that is read, run and committed together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

_SHOWN_BYTES = 500  # of an input in the file of bad rows


@dataclass(frozen=True)
class BadRow:
    """A row without a result. row: its number in the input, from 0. source: file and line. code: of
    the error, as in HTTP's answers. shown: the row as it came, shortened."""

    row: int
    source: str
    code: str
    message: str
    shown: str = ""

    def line(self) -> dict[str, Any]:
        """Its line in the file of bad rows."""
        return {
            "row": self.row,
            "source": self.source,
            "code": self.code,
            "error": self.message,
            "input": self.shown,
        }


@dataclass(slots=True)
class Chunk:
    """n rows from `start` on. columns: by name, each a list, an array, or a column of Arrow, with n
    entries. sources: where each row stands. unread: why rows cannot be read, by their place."""

    start: int
    n: int
    columns: dict[str, Any]
    sources: Sequence[str] | None = None
    unread: dict[int, tuple[str, str]] = field(default_factory=dict)  # (message, shown)

    def source(self, at: int) -> str:
        """The file and line, or the number, of the row at a place."""
        return self.sources[at] if self.sources is not None else f"row {self.start + at}"


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

    def share_read(self) -> float | None:
        """The share of the input that was read, where total is None; None if unknown."""


def shown(value: Any) -> str:
    """A row, or a part of one, for the file of bad rows."""
    if isinstance(value, (bytes, bytearray)):
        return bytes(value[:_SHOWN_BYTES]).decode(errors="replace")
    text = value if isinstance(value, str) else repr(value)
    text = text.encode("utf-8", "backslashreplace").decode()  # lone surrogates are no text
    return text if len(text) <= _SHOWN_BYTES else text[: _SHOWN_BYTES - 3] + "..."
