"""The lines of an input file, read a few at a time from a place in it.

A line that is too long is skipped in pieces and never held.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from batchpool.wire.batch_lines import MOST_LINE_BYTES

_READ_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"  # which programs on Windows write before the first line
_MOST_AT_ONCE = 4096  # lines that one call reads, blank ones too


class InputLine(NamedTuple):
    """A line that is not blank. number: in the file, from 1. end: the offset of the byte behind it.
    raw: its bytes; None where there are more than MOST_LINE_BYTES."""

    number: int
    end: int
    raw: bytes | None


class LineFile:
    """Reads an input. offset: of the next byte to read; lines: those before it. ended: none is
    left."""

    def __init__(self, path: Path, offset: int = 0, lines: int = 0) -> None:
        self._file = open(path, "rb", buffering=_READ_BYTES)  # noqa: SIM115
        self._file.seek(offset)
        self.offset = offset
        self.lines = lines
        self.ended = False

    def next_lines(self, most: int, most_bytes: int) -> list[InputLine]:
        """The next lines, until there are so many of them, or of their bytes; perhaps none."""
        found: list[InputLine] = []
        size, last = 0, self.lines + _MOST_AT_ONCE
        while len(found) < most and size < most_bytes and self.lines < last:
            raw = self._file.readline(MOST_LINE_BYTES + 2)
            if not raw:
                self.ended = True
                break
            self.offset += len(raw)
            self.lines += 1
            whole: bytes | None = raw.removeprefix(_BOM if self.lines == 1 else b"").rstrip(b"\r\n")
            if len(raw) > MOST_LINE_BYTES and not raw.endswith(b"\n"):
                self._skip_line()
            if whole is not None and len(whole) > MOST_LINE_BYTES:
                whole = None
            if whole is None or whole.strip():
                found.append(InputLine(self.lines, self.offset, whole))
                size += len(whole or b"")
        return found

    def _skip_line(self) -> None:
        """Read to the end of a line whose beginning was read."""
        while raw := self._file.readline(_READ_BYTES):
            self.offset += len(raw)
            if raw.endswith(b"\n"):
                return

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def __enter__(self) -> LineFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
