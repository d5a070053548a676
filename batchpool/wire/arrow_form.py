"""The Arrow form: the body is a stream of Arrow IPC, a column for each input.

    request   Content-Type: application/vnd.apache.arrow.stream; one schema, any number of record
              batches, whose rows are the rows. A column is an input, or a parameter, which has one
              value for all rows. batchpool.outputs in the schema's metadata: a JSON list of the
              outputs that are wanted.
    answer    the same, with a column for each output; batchpool.model_name and
              batchpool.model_version in the metadata. With `;tensor=list` behind the type in
              Accept, outputs of fixed shape are nested fixed_size_lists.

`batchpool/arrow/types.py` tells a tensor's column. Buffers may be compressed (LZ4, ZSTD). Numbers
are views of the body. Everything is validated before it is used: offsets in it may be anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from batchpool.arrow.columns_in import ColumnReader
from batchpool.arrow.columns_out import column_field, column_of, cut_rows
from batchpool.arrow.stranger_columns import check_lengths, check_types
from batchpool.arrow.stream_size import expanded_bytes
from batchpool.arrow.types import arrow
from batchpool.core.errors import InvalidRequest, TooLarge
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.ragged import as_sized_rows
from batchpool.core.tensors.spec import Tensor
from batchpool.wire import parameters
from batchpool.wire.model_tables import ModelTables
from batchpool.wire.request import (
    Body,
    HeaderList,
    Headers,
    InferRequest,
    OutputChoice,
    brief,
    header_timeout_ns,
    sooner,
)

OUTPUTS = b"batchpool.outputs"
_MOST_ROWS = 1 << 20
_MOST_COLUMNS = 1 << 12
_MOST_BATCHES = 1 << 12
# Written out, compressed buffers and texts that a dictionary stands for may have so many bytes.
_EXPANDED_PER_BYTE, _EXPANDED_BYTES = 16, 1 << 20
# As large as the largest of them, rows of different sizes may have so many.
_PADDED_PER_BYTE = 64


class ArrowForm:
    """The Arrow form of one model. name: of the form, which its requests bear; list_name: of that
    whose answers have lists in place of tensors."""

    def __init__(
        self, tables: ModelTables, name: str, *, lists: bool = False, list_name: str = ""
    ) -> None:
        self._tables = tables
        self._name = name
        self._list_name = list_name
        self._lists = lists
        self._inputs = {tensor.name: tensor for tensor in tables.spec.inputs}
        self._parameters = {tensor.name: tensor for tensor in tables.spec.parameters}
        self._outputs = {tensor.name: tensor for tensor in tables.spec.outputs}
        self._whole: Any = None

    def parse(self, headers: Headers, body: Body, priority: int) -> InferRequest:
        """The request of a whole body; `priority` is the header's.

        Raises InvalidRequest or TooLarge, which say what is wrong with it, UnsupportedMediaType
        where pyarrow is not installed.
        """
        pa = arrow()
        tables, most = self._tables, _EXPANDED_PER_BYTE * len(body) + _EXPANDED_BYTES
        expanded = expanded_bytes(memoryview(body))
        if expanded > most:
            raise TooLarge(
                f"the body's compressed buffers have {expanded} bytes, written out; at most {most}"
                " are taken for a body of this size"
            )
        try:
            schema, table = self._read(pa, body, len(body) + expanded)
            tensors: dict[str, Array] = {}
            given: dict[str, Any] = {}
            for field, column in zip(schema, table.columns, strict=True):
                if field.name in self._parameters:
                    given[field.name] = self._one_value(pa, field, column)
                else:
                    tensors |= self._rows(self._inputs[field.name], field, column, most)
        # KeyError: of a type that pyarrow has no class for, as intervals of days.
        except (pa.ArrowException, OSError, ValueError, OverflowError, KeyError) as exc:
            if isinstance(exc, (InvalidRequest, TooLarge)):
                raise
            text = str(exc).split("\n")[0][:300]
            raise InvalidRequest(f"the body is no valid stream of Arrow: {text}") from None
        asked = parameters.read(tables, given)
        name = self._name
        if self._list_name and b"tensor=list" in headers.get(b"accept", b"").replace(b" ", b""):
            name = self._list_name
        return InferRequest(
            None,
            tables.rows(table.num_rows, tensors, asked.values),
            self._choices(schema.metadata or {}),
            sooner(header_timeout_ns(headers), asked.timeout_ns),
            priority or asked.priority,
            name,
        )

    def _read(self, pa: Any, body: Body, n_bytes: int) -> tuple[Any, Any]:
        """The schema and the rows of a body, validated. n_bytes: of it, written out."""
        stream = pa.ipc.open_stream(
            pa.py_buffer(body), options=pa.ipc.IpcReadOptions(use_threads=False)
        )
        schema = stream.schema
        self._check_names(schema.names)
        check_types(schema)
        batches: list[Any] = []
        rows = 0
        for batch in stream:
            rows += batch.num_rows
            batches.append(batch)
            if rows > _MOST_ROWS or len(batches) > _MOST_BATCHES:
                raise TooLarge(
                    f"the body has more than {_MOST_ROWS} rows, or {_MOST_BATCHES} record batches;"
                    " send them in smaller requests"
                )
            check_lengths(batch, n_bytes)
            batch.validate(full=True)
        if not rows:
            raise InvalidRequest("the body has 0 rows; at least 1 was expected")
        return schema, pa.Table.from_batches(batches, schema)

    def _check_names(self, names: list[str]) -> None:
        """Refuse columns before anything is made of them."""
        if len(names) > _MOST_COLUMNS:
            raise InvalidRequest(f"the body has {len(names)} columns; {_MOST_COLUMNS} are taken")
        seen: set[str] = set()
        for name in names:
            if name not in self._parameters:
                self._tables.reader(name, seen)
                if name not in self._inputs:
                    raise InvalidRequest(
                        f"column {brief(name)}: lists tell the sizes of rows; leave it out"
                    )
            elif name in seen:
                raise InvalidRequest(f"parameter {brief(name)} is given twice")
            seen.add(name)

    def _rows(self, tensor: Tensor, field: Any, column: Any, most: int) -> dict[str, Array]:
        found = ColumnReader(tensor, most).rows(field, column)
        array, sizes = as_sized_rows(tensor, found, _PADDED_PER_BYTE // _EXPANDED_PER_BYTE * most)
        return {tensor.name: array} if sizes is None else {
            tensor.name: array, tensor.sizes_name: sizes,
        }  # fmt: skip

    def _one_value(self, pa: Any, field: Any, column: Any) -> Any:
        """The value of a parameter, which all rows share."""
        values = column.unique() if not pa.types.is_nested(field.type) else []
        if len(values) != 1:
            raise InvalidRequest(
                f"parameter {field.name!r}: its column must have one value, which holds for all"
                " rows; send rows with other ones in another request"
            )
        return values[0].as_py()

    def _choices(self, metadata: Mapping[bytes, bytes]) -> tuple[OutputChoice, ...]:
        wanted = metadata.get(OUTPUTS)
        if wanted is None:
            return self._tables.all_binary
        try:
            names = msgspec.json.decode(wanted, type=list[str])
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise InvalidRequest(
                f"{OUTPUTS.decode()} in the schema's metadata is {brief(wanted)}; a JSON list of"
                " names was expected"
            ) from None
        choices: dict[str, OutputChoice] = {}
        for name in names:
            if name not in self._outputs:
                expected = ", ".join(map(repr, self._outputs))
                model = self._tables.spec.name
                raise InvalidRequest(
                    f"model {model!r} has no output {brief(name)}; it has {expected}"
                )
            choices[name] = self._tables.output(name, True, choices)
        return tuple(choices.values()) or self._tables.all_binary

    def _schema(self, names: tuple[str, ...]) -> Any:
        """The schema of answers with these outputs, made once for all outputs of the model."""
        if self._whole is not None and names == tuple(self._outputs):
            return self._whole
        fields = [column_field(self._outputs[name], lists=self._lists) for name in names]
        metadata = {
            b"batchpool.model_name": self._tables.spec.name.encode(),
            b"batchpool.model_version": self._tables.version.encode(),
        }
        schema = arrow().schema(fields, metadata)
        if names == tuple(self._outputs):
            self._whole = schema
        return schema

    def fixed_size_reader(self, size: int) -> None:
        """None: each body must be parsed."""

    def frame(self, request: InferRequest, n: int) -> None:
        """None: the tensors are not the last part of an answer."""

    def encode(
        self,
        request: InferRequest,
        outputs: Mapping[str, Array],
        model_parameters: Mapping[str, Any] | None,
    ) -> tuple[HeaderList, bytes]:
        """The headers and body of the response."""
        pa = arrow()
        schema = self._schema(tuple(choice.name for choice in request.outputs))
        columns = []
        for name, kind in zip(schema.names, schema.types, strict=True):
            tensor = self._outputs[name]
            rows = cut_rows(tensor, outputs[name], outputs.get(tensor.sizes_name))
            columns.append(column_of(tensor, rows, kind))
        if model_parameters:
            more = {b"batchpool.parameters": msgspec.json.encode(dict(model_parameters))}
            schema = schema.with_metadata({**schema.metadata, **more})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(pa.record_batch(columns, schema=schema))
        body = sink.getvalue().to_pybytes()
        return [
            (b"content-type", b"application/vnd.apache.arrow.stream"),
            (b"content-length", b"%d" % len(body)),
        ], body
