"""Writers of tables: Parquet, whose parts are Parquet files of one row group, and Arrow IPC."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np

from batchpool.arrow.columns_out import column_field, column_of
from batchpool.arrow.types import arrow
from batchpool.bulk.parquet_join import are_alike, join_parquet
from batchpool.core.errors import StartError
from batchpool.core.tensors.spec import Tensor


class _TableWriter:
    """The kept columns, then the outputs, as a record batch of Arrow."""

    fills = False
    _format = ""

    def __init__(self, tensors: Sequence[Tensor], kept: Sequence[str]) -> None:
        self._tensors = {tensor.name: tensor for tensor in tensors}
        self._kept = kept
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
        try:
            self._write_part(pa.PythonFile(file, "w"), batch)
        except pa.ArrowNotImplementedError as exc:
            kinds = ", ".join(f"{field.name!r} {field.type}" for field in batch.schema)
            raise StartError(
                f"the columns {kinds} cannot be written as {self._format}: {exc}; leave one out of"
                " --keep, or choose another format"
            ) from None

    def _write_part(self, sink: Any, batch: Any) -> None:
        raise NotImplementedError

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
        return pa.array([json_text(value) for value in column], pa.string())

    def _joined_schema(self, schemas: Iterable[Any]) -> Any:
        """The columns of all parts: kept ones whose types differ become those that hold all."""
        pa = arrow()
        schema: Any = None
        for own in schemas:
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


class ArrowWriter(_TableWriter):
    """A file of Arrow IPC, with a record batch a part. The parts are streams of one batch each."""

    _format = "arrow"

    def _write_part(self, sink: Any, batch: Any) -> None:
        with arrow().ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)

    def join(self, parts: Sequence[str], file: Any, records: Sequence[dict[str, Any]]) -> None:
        pa = arrow()
        schema = self._joined_schema(map(_stream_schema, parts))
        with pa.ipc.new_file(pa.PythonFile(file, "w"), schema) as writer:
            for path in parts:
                with pa.memory_map(path) as source:
                    table = pa.ipc.open_stream(source).read_all().cast(schema)
                    for batch in table.combine_chunks().to_batches() if table.num_rows else ():
                        writer.write_batch(batch)


class ParquetWriter(_TableWriter):
    """A Parquet file with a row group a part. The parts are Parquet files themselves, whose row
    groups are joined as they are, unless kept columns differ in type from part to part."""

    _format = "parquet"

    def _write_part(self, sink: Any, batch: Any) -> None:
        with self._new_writer(sink, batch.schema) as writer:
            if batch.num_rows:
                writer.write_batch(batch)

    def join(self, parts: Sequence[str], file: Any, records: Sequence[dict[str, Any]]) -> None:
        import pyarrow.parquet

        if parts and are_alike(parts):
            join_parquet(parts, file)
            return
        pa = arrow()
        schema = self._joined_schema(map(pyarrow.parquet.read_schema, parts))
        with self._new_writer(pa.PythonFile(file, "w"), schema) as writer:
            for path in parts:
                with pyarrow.parquet.ParquetFile(path, memory_map=True) as part:
                    table = part.read().cast(schema)
                for batch in table.combine_chunks().to_batches() if table.num_rows else ():
                    writer.write_batch(batch)

    def _new_writer(self, sink: Any, schema: Any) -> Any:
        import pyarrow.parquet

        # A dictionary of numbers that hardly repeat costs time and saves nothing; nobody asks for
        # the least and the largest element of all vectors.
        texts = [field.name for field in schema if str(field.type).endswith(("string", "binary"))]
        single = [field.name for field in schema if not arrow().types.is_nested(field.type)]
        return pyarrow.parquet.ParquetWriter(
            sink, schema, compression="snappy", use_dictionary=texts, write_statistics=single
        )


def json_text(value: Any) -> str | None:
    """A value as a text: a text as it is, others as their JSON, None as none."""
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def _stream_schema(path: str) -> Any:
    pa = arrow()
    with pa.memory_map(path) as source:
        return pa.ipc.open_stream(source).schema


def _wider(first: Any, other: Any) -> Any:
    """The type of a kept column in which values of both types have a place."""
    pa = arrow()
    kinds = {first, other} - {pa.null()}
    if len(kinds) == 1:
        return kinds.pop()
    return pa.float64() if kinds == {pa.int64(), pa.float64()} else pa.string()
