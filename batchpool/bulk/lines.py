"""Rows in lines of text: JSON Lines, CSV and TSV. A row that cannot be read has its own error."""

from __future__ import annotations

import csv
import io
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

import msgspec

from batchpool.bulk.chunk import Chunk
from batchpool.bulk.line_files import check_lines, is_packed, opened
from batchpool.bulk.row_columns import RowColumns
from batchpool.core.errors import StartError

_LONGEST_LINE_BYTES = 64 << 20
_TOO_LONG = "field limit"  # in an error of csv: then most of a file is one value
_FORMAT_OF = {",": "csv", "\t": "tsv"}
_BOM = b"\xef\xbb\xbf"
STDIN = "-"

Row = tuple[
    dict[str, Any] | None, str, str, str | bytes
]  # values or None, source, why not, the row


class LineReader:
    """Files of JSON Lines: each line an object. Empty lines are no rows."""

    total: int | None = None
    names: tuple[str, ...] | None = None

    def __init__(self, paths: Sequence[str], wanted: Sequence[str] | None = None) -> None:
        self._paths = paths
        self._sizes = [_size(path) for path in paths]
        self._read_bytes = 0
        for path in paths:
            if not is_stream(path):
                check_lines(path)

    def _share_read(self) -> float | None:
        return _share(self._read_bytes, self._sizes)

    def chunks(self, size: int, start: int) -> Iterator[Chunk]:
        rows: list[Row] = []
        number = 0
        for row in self._rows(start):
            rows.append(row)
            if len(rows) == size:
                yield _chunk(start + number, rows, self._share_read())
                number, rows = number + size, []
        if rows:
            yield _chunk(start + number, rows, self._share_read())

    def _rows(self, start: int) -> Iterator[Row]:
        """The rows from the number `start` on; those before are counted and not parsed."""
        skipped = 0
        for path in self._paths:
            with _opened(path) as file:
                line_number = 0
                while line := file.readline(_LONGEST_LINE_BYTES):
                    line_number += 1
                    self._read_bytes += len(line)
                    whole = len(line) < _LONGEST_LINE_BYTES or line.endswith(b"\n")
                    if not whole:
                        self._skip_rest(file)
                    if line_number == 1:
                        line = line.removeprefix(_BOM)
                    if not line.strip():
                        continue
                    if skipped < start:
                        skipped += 1
                        continue
                    yield _json_row(line, f"{path}:{line_number}", whole)

    def _skip_rest(self, file: IO[bytes]) -> None:
        while rest := file.readline(_LONGEST_LINE_BYTES):
            self._read_bytes += len(rest)
            if rest.endswith(b"\n"):
                return


def _json_row(line: bytes, source: str, whole: bool) -> Row:
    if not whole:
        most = _LONGEST_LINE_BYTES >> 20
        return None, source, f"the line is longer than {most} MiB", line
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        return None, source, f"invalid JSON: {exc}", line.rstrip()
    if not isinstance(found, dict):
        return None, source, "a JSON object {column: value} was expected", line.rstrip()
    return found, source, "", ""


class CsvReader:
    """Files of values between commas, or other signs, with the columns' names in the first line,
    in UTF-8.

    All files have the same columns. Values are texts; `inputs.py` makes numbers of them.
    """

    total: int | None = None

    def __init__(self, paths: Sequence[str], separator: str = ",") -> None:
        self._paths = paths
        self._separator = separator
        self._sizes = [_size(path) for path in paths]
        self._read_bytes = 0
        csv.field_size_limit(_LONGEST_LINE_BYTES)
        self.names: tuple[str, ...] | None = ()
        for path in paths:
            if is_stream(path):
                raise StartError(
                    f"{path} is no file, and a pipe is read as JSON Lines only: write it to a file"
                )
            check_lines(path)
            names = self._names_of(path)
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise StartError(f"{path}: column {twice!r} stands twice in its first line")
            if self.names not in ((), names):
                raise StartError(
                    f"{path} has the columns {list(names)}; {list(self.names or ())}, as in"
                    f" {paths[0]}, were expected"
                )
            self.names = names

    def _names_of(self, path: str) -> tuple[str, ...]:
        """The columns' names, of the first line of a file."""
        try:
            with _text(path) as file:
                names = tuple(next(self._values(file), ()))
        except csv.Error as exc:
            raise StartError(f"{path}:1: this is no CSV: {exc}") from None
        if not names:
            raise StartError(f"{path} is empty; the columns' names in its first line were expected")
        if not _is_text(names) or any("\0" in name for name in names):
            raise StartError(
                f"{path}: its first line is no UTF-8; the columns' names were expected"
            )
        between = next((sign for sign in ",;\t" if len(names) == 1 and sign in names[0]), "")
        if between:
            other = _FORMAT_OF.get(between)
            helps = f"; --format {other} reads them" if other else ", which no format here reads"
            raise StartError(
                f"{path}: its first line, {names[0]!r}, is one column; values between"
                f" {self._separator!r} were expected, and these are between {between!r}{helps}"
            )
        return names

    def _values(self, file: Any) -> Any:
        """Parses a file strictly: where a quote is never closed, the rest would be one value."""
        return csv.reader(file, delimiter=self._separator, strict=True)

    def _share_read(self) -> float | None:
        return _share(self._read_bytes, self._sizes)

    def chunks(self, size: int, start: int) -> Iterator[Chunk]:
        rows: list[Row] = []
        number = -start
        for row in self._rows():
            if number >= 0:
                rows.append(row)
            number += 1
            if len(rows) == size:
                yield _chunk(start + number - size, rows, self._share_read())
                rows = []
        if rows:
            yield _chunk(start + number - len(rows), rows, self._share_read())

    def _rows(self) -> Iterator[Row]:
        names = self.names or ()
        before = 0
        for path, whole in zip(self._paths, self._sizes, strict=True):
            with _text(path) as file:
                reader = self._values(file)
                next(reader, None)
                while True:
                    begins_at = reader.line_num + 1
                    try:
                        values = next(reader, None)
                    except csv.Error as exc:
                        source = f"{path}:{begins_at}"
                        if _TOO_LONG in str(exc):
                            raise StartError(f"{source}: this is no CSV: {exc}") from None
                        yield None, source, f"the line is no CSV: {exc}", ""
                        continue
                    if values is None:
                        break
                    if not values:
                        continue
                    self._read_bytes = before + file.buffer.tell()
                    source = f"{path}:{reader.line_num}"
                    if not _is_text(values):
                        yield None, source, "the line is no UTF-8", self._separator.join(values)
                    elif len(values) == len(names):
                        yield dict(zip(names, values, strict=True)), source, "", ""
                    else:
                        why = f"the line has {len(values)} values; {len(names)} were expected"
                        yield None, source, why, self._separator.join(values)
            before += whole or 0


def _is_text(values: Sequence[str]) -> bool:
    """False where bytes that are no UTF-8 were read as lone surrogates."""
    line = "".join(values)
    if line.isascii():
        return True
    try:
        line.encode()
    except UnicodeEncodeError:
        return False
    return True


def _chunk(start: int, rows: list[Row], share: float | None) -> Chunk:
    """Columns of rows as they were read; what a row does not have is None there."""
    columns = RowColumns([values for values, *_ in rows])
    unread = {at: (why, line) for at, (_, _, why, line) in enumerate(rows) if why}
    return Chunk(start, len(rows), columns, [source for _, source, *_ in rows], unread, share)


@contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    if path == STDIN:
        yield sys.stdin.buffer
        return
    with opened(path, packed=not is_stream(path) and is_packed(path)) as file:
        yield file


@contextmanager
def _text(path: str) -> Iterator[Any]:
    with opened(path, packed=is_packed(path)) as file:
        # What is no UTF-8 is told of its row, which then has lone surrogates.
        yield io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="")


def is_stream(path: str) -> bool:
    """True for stdin and for pipes, which can be read once and tell no size."""
    if path == STDIN:
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError as exc:
        raise StartError(f"cannot read {path}: {exc.strerror}") from None
    return not stat.S_ISREG(mode)


def is_read_once(path: str) -> bool:
    """True for an input with which a run cannot go on: stdin and pipes."""
    return not os.path.isdir(path) and is_stream(path)


def _size(path: str) -> int | None:
    """The bytes of the lines of a file; None where only its end tells, as of packed ones."""
    return None if is_stream(path) or is_packed(path) else os.stat(path).st_size


def _share(read_bytes: int, sizes: Sequence[int | None]) -> float | None:
    """The share of all files that was read; None if that is not known."""
    known = [size for size in sizes if size is not None]
    whole = sum(known)
    return min(1.0, read_bytes / whole) if whole and len(known) == len(sizes) else None
