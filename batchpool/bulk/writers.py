"""Writers: the outputs of a chunk as a part, and all parts as one file, in each format.

What is written depends on the rows alone, never on times, on threads or on how often a run began.
"""

from __future__ import annotations

import csv
import io
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import msgspec
import numpy as np

from batchpool.bulk.table_writers import ArrowWriter, ParquetWriter, json_text
from batchpool.core.errors import ConfigError, StartError
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import Tensor

_COPIED_BYTES = 1 << 20
_BLOCK_ROWS = 64  # of texts that are written


class Writer(Protocol):
    """One format. fills: rows without a result have a place in the output, too."""

    fills: bool

    def write(self, file: Any, columns: dict[str, Any], n: int) -> None:
        """Write n rows as a part: the outputs by name, and the columns that are kept."""

    def join(self, parts: Sequence[str], file: Any, records: Sequence[dict[str, Any]]) -> None:
        """Write all parts as one file."""


def readable(tensor: Tensor) -> Tensor:
    """The tensor as files have it: bfloat16 as float32, which holds its values."""
    return replace(tensor, dtype="float32") if tensor.element.is_bfloat16 else tensor


def readable_rows(tensor: Tensor, rows: Any) -> Any:
    """The rows of a tensor for `readable(tensor)`."""
    if not tensor.element.is_bfloat16:
        return rows
    if isinstance(rows, list):
        return [readable_rows(tensor, row) for row in rows]
    wide: Array = np.asarray(rows, np.uint16).astype(np.uint32) << np.uint32(16)
    return wide.view(np.float32)


class JsonLinesWriter:
    """A line for each row, with the kept columns and the outputs; NaN and infinity as null."""

    fills = False

    def __init__(self, tensors: Sequence[Tensor], kept: Sequence[str]) -> None:
        self._texts = {tensor.name for tensor in tensors if tensor.is_bytes}

    def write(self, file: Any, columns: dict[str, Any], n: int) -> None:
        names = list(columns)
        encoder = msgspec.json.Encoder()
        for rows in _blocks(columns, self._texts, n):
            file.write(encoder.encode_lines([dict(zip(names, row, strict=True)) for row in rows]))

    def join(self, parts: Sequence[str], file: Any, records: Sequence[dict[str, Any]]) -> None:
        for path in parts:
            _copy(path, file)


class CsvWriter:
    """A line for each row, with the names in the first one.

    An output of numbers whose rows are vectors of one size has a column for each element, y_0, y_1
    and so on; rows of several dimensions or of their own sizes, and vectors of texts, are JSON in
    one cell.
    """

    fills = False

    def __init__(
        self, tensors: Sequence[Tensor], kept: Sequence[str], separator: str = ","
    ) -> None:
        self._separator = separator
        self._texts = {tensor.name for tensor in tensors if tensor.is_bytes}
        self._sizes = {
            tensor.name: tensor.max_shape[0]
            for tensor in tensors
            if len(tensor.shape) == 1 and not tensor.dynamic and not tensor.is_bytes
        }
        self._names = list(kept)
        for tensor in tensors:
            self._names += self._columns_of(tensor.name)
        several = [name for name, times in Counter(self._names).items() if times > 1]
        if several:
            raise ConfigError(
                f"the output would have the column {several[0]!r} twice; the elements of a vector"
                " have columns of their own: choose another format, or other columns and outputs"
            )

    def _columns_of(self, name: str) -> list[str]:
        size = self._sizes.get(name)
        return [name] if size is None else [f"{name}_{at}" for at in range(size)]

    def write(self, file: Any, columns: dict[str, Any], n: int) -> None:
        flat: dict[str, Any] = {}
        for name, rows in columns.items():
            if name in self._sizes:
                whole = np.asarray(rows)
                flat |= {own: whole[:, at] for at, own in enumerate(self._columns_of(name))}
            else:
                flat[name] = rows
        for block in _blocks(flat, self._texts, n):
            file.write(self._lines([_cell(value) for value in row] for row in block))

    def _lines(self, rows: Iterable[Any]) -> bytes:
        text = io.StringIO(newline="")
        csv.writer(text, delimiter=self._separator, lineterminator="\n").writerows(rows)
        return text.getvalue().encode("utf-8", "surrogateescape")

    def join(self, parts: Sequence[str], file: Any, records: Sequence[dict[str, Any]]) -> None:
        file.write(self._lines([self._names]))
        for path in parts:
            _copy(path, file)


class ArrayWriter:
    """One array: of the only output, whose rows have one shape. A row without a result is NaN,
    or 0 in whole numbers, so that each row stays at its number."""

    fills = True

    def __init__(self, tensors: Sequence[Tensor], kept: Sequence[str]) -> None:
        if len(tensors) != 1 or kept:
            raise ConfigError(
                "a .npy file holds one output and no other columns: choose one with --outputs, or"
                " another format"
            )
        (self._tensor,) = tensors
        if self._tensor.is_bytes or self._tensor.dynamic:
            raise ConfigError(
                f"output {self._tensor.name!r} has rows {self._tensor.describe_shape()} of"
                f" {self._tensor.dtype}; a .npy file takes numbers of one shape: choose another"
                " format"
            )

    def write(self, file: Any, columns: dict[str, Any], n: int) -> None:
        (rows,) = columns.values()
        file.write(np.ascontiguousarray(rows, self._tensor.np_dtype))

    def join(self, parts: Sequence[str], file: Any, records: Sequence[dict[str, Any]]) -> None:
        dtype = self._tensor.np_dtype
        header = {
            "descr": np.lib.format.dtype_to_descr(dtype),
            "fortran_order": False,
            "shape": (sum(record["n"] for record in records), *self._tensor.max_shape),
        }
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, header)
        file.write(head.getvalue())
        for path in parts:
            _copy(path, file)


def writer_of(name: str, tensors: Sequence[Tensor], kept: Sequence[str]) -> Writer:
    """The writer of a format; ConfigError for outputs that it cannot hold."""
    return _WRITERS[name](tensors, kept)


_WRITERS: dict[str, Callable[[Sequence[Tensor], Sequence[str]], Writer]] = {
    "jsonl": JsonLinesWriter,
    "csv": CsvWriter,
    "tsv": partial(CsvWriter, separator="\t"),
    "npy": ArrayWriter,
    "parquet": ParquetWriter,
    "arrow": ArrowWriter,
}


def _blocks(columns: dict[str, Any], texts: set[str], n: int) -> Iterator[Iterator[Any]]:
    """The rows as tuples of plain values, in blocks. So few Python objects at once stay in the
    processor's cache, which halves the time; and other threads have their turns."""
    for start in range(0, n, _BLOCK_ROWS):
        values = []
        for name, column in columns.items():
            part = column[start : start + _BLOCK_ROWS]
            values.append(_texts(name, part) if name in texts else _plain(part))
        yield zip(*values, strict=True)


def _plain(column: Any) -> Any:
    """A column as plain values of Python, a list of n."""
    if isinstance(column, np.ndarray):
        return column.tolist()
    if isinstance(column, list):
        return [value.tolist() if hasattr(value, "tolist") else value for value in column]
    return column.to_pylist()


def _texts(name: str, column: Any) -> list[Any]:
    """A column of byte strings, or of lists of them, as texts."""
    try:
        return [_text(value) for value in _plain(column)]
    except UnicodeDecodeError:
        raise StartError(
            f"output {name!r} is not UTF-8 text, which JSON and CSV cannot carry; write parquet or"
            " arrow instead"
        ) from None


def _text(value: Any) -> Any:
    return [_text(part) for part in value] if isinstance(value, list) else value.decode()


def _cell(value: Any) -> Any:
    """A value as CSV has it: lists and objects as their JSON."""
    return json_text(value) if isinstance(value, (list, dict)) else value


def _copy(path: str, file: Any) -> None:
    with open(path, "rb") as source:
        shutil.copyfileobj(source, file, _COPIED_BYTES)
