"""Writers: the outputs of a chunk as a part, and all parts as one file, in each format.

What is written depends on the rows alone, never on times, on threads or on how often a run began.
"""

from __future__ import annotations

import csv
import io
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import msgspec
import numpy as np

from batchpool.arrow.columns_out import column_field, column_of
from batchpool.arrow.types import arrow
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


class TableWriter:
    """Parquet or Arrow IPC: the kept columns, then the outputs; one row group a part."""

    fills = False

    def __init__(self, tensors: Sequence[Tensor], kept: Sequence[str], *, parquet: bool) -> None:
        self._tensors = {tensor.name: tensor for tensor in tensors}
        self._kept = kept
        self._parquet = parquet
        self._kept_types: dict[str, Any] = {}
        # Other programs read lists; Arrow's tensors of one dimension are told from them by nobody.
        self._fields = {t.name: column_field(t, lists=len(t.shape) < 2) for t in tensors}

    def write(self, file: Any, columns: dict[str, Any], n: int) -> None:
        pa = arrow()
        fields, arrays = [], []
        for name, column in columns.items():
            if name in self._tensors:
                field = self._fields[name]
                array = column_of(self._tensors[name], column, field.type)
            else:
                array = self._kept_column(name, column)
                field = pa.field(name, array.type)
            fields.append(field)
            arrays.append(array)
        batch = pa.record_batch(arrays, schema=pa.schema(fields))
        with pa.ipc.new_stream(pa.PythonFile(file, "w"), batch.schema) as writer:
            writer.write_batch(batch)

    def _kept_column(self, name: str, column: Any) -> Any:
        pa = arrow()
        if isinstance(column, pa.ChunkedArray):
            whole = column.combine_chunks()
            return whole if isinstance(whole, pa.Array) else pa.concat_arrays(whole.chunks)
        if isinstance(column, np.ndarray) and column.ndim == 1:
            return pa.array(column)
        kinds = {type(value) for value in column} - {type(None)}
        if kinds <= {int, float} or (len(kinds) == 1 and kinds <= {str, bool}):
            with suppress(pa.ArrowException, OverflowError):  # whole numbers that are too large
                return pa.array(column, pa.float64() if float in kinds else None)
        return pa.array([_json_text(value) for value in column], pa.string())

    def join(self, parts: Sequence[str], file: Any, records: Sequence[dict[str, Any]]) -> None:
        pa = arrow()
        schema = self._joined_schema(parts)
        writer = self._new_writer(file, schema)
        for path in parts:
            with pa.memory_map(path) as source:
                table = pa.ipc.open_stream(source).read_all().cast(schema)
                for batch in table.combine_chunks().to_batches() if table.num_rows else ():
                    writer.write_batch(batch)
        writer.close()

    def _joined_schema(self, parts: Sequence[str]) -> Any:
        """The columns of all parts: kept ones whose types differ become those that hold all."""
        pa = arrow()
        schema: Any = None
        for path in parts:
            with pa.memory_map(path) as source:
                own = pa.ipc.open_stream(source).schema
            if schema is None or own == schema:
                schema = own
                continue
            for i, (first, other) in enumerate(zip(schema, own, strict=True)):
                if first.type != other.type:
                    schema = schema.set(i, pa.field(first.name, _wider(first.type, other.type)))
        if schema is None:
            kept = [pa.field(name, pa.string()) for name in self._kept]
            schema = pa.schema([*kept, *self._fields.values()])
        return schema

    def _new_writer(self, file: Any, schema: Any) -> Any:
        pa = arrow()
        sink = pa.PythonFile(file, "w")
        if not self._parquet:
            return pa.ipc.new_file(sink, schema)
        import pyarrow.parquet

        # A dictionary of numbers that hardly repeat costs time and saves nothing.
        texts = [field.name for field in schema if str(field.type).endswith(("string", "binary"))]
        return pyarrow.parquet.ParquetWriter(
            sink, schema, compression="snappy", use_dictionary=texts
        )


def writer_of(name: str, tensors: Sequence[Tensor], kept: Sequence[str]) -> Writer:
    """The writer of a format; ConfigError for outputs that it cannot hold."""
    return _WRITERS[name](tensors, kept)


_WRITERS: dict[str, Callable[[Sequence[Tensor], Sequence[str]], Writer]] = {
    "jsonl": JsonLinesWriter,
    "csv": CsvWriter,
    "tsv": partial(CsvWriter, separator="\t"),
    "npy": ArrayWriter,
    "parquet": partial(TableWriter, parquet=True),
    "arrow": partial(TableWriter, parquet=False),
}


def _wider(first: Any, other: Any) -> Any:
    """The type of a kept column in which values of both types have a place."""
    pa = arrow()
    kinds = {first, other} - {pa.null()}
    if len(kinds) == 1:
        return kinds.pop()
    return pa.float64() if kinds == {pa.int64(), pa.float64()} else pa.string()


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


def _json_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def _cell(value: Any) -> Any:
    """A value as CSV has it: lists and objects as their JSON."""
    return _json_text(value) if isinstance(value, (list, dict)) else value


def _copy(path: str, file: Any) -> None:
    with open(path, "rb") as source:
        shutil.copyfileobj(source, file, _COPIED_BYTES)
