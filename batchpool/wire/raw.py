"""The raw form: the body is the one input's tensor (Inference-Header-Content-Length: 0).

    input's row             body
    all dimensions fixed    k rows: any multiple of the row's bytes
    one dynamic dimension   one row; its size follows from the body's
    BYTES, one element      one row: the element itself, such as plain text, without a length

A model with several inputs or several dynamic dimensions needs the JSON form. Every declared
parameter has its default. All outputs are returned: binary behind JSON, in the model's order, or as
plain JSON where the caller's Accept asks for application/json.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from batchpool.core.errors import InvalidRequest
from batchpool.core.tensors.arrays import check_shape
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.rows import Rows
from batchpool.core.tensors.spec import Dim
from batchpool.wire import elements
from batchpool.wire.inputs import InputReader
from batchpool.wire.model_tables import ModelTables
from batchpool.wire.oip import OipForm
from batchpool.wire.plain import PlainForm
from batchpool.wire.request import (
    Body,
    Headers,
    InferRequest,
    PlainAnswer,
    header_timeout_ns,
)

_SHORT_BYTES = 64 * 1024


class FixedSizeReader:
    """A reader for raw bodies of one size, for a connection that sends several."""

    __slots__ = ("_as_bytes", "_name", "_reader", "_rows", "_shape", "_tensors")

    def __init__(self, reader: InputReader, shape: tuple[int, ...], tables: ModelTables) -> None:
        self._reader = reader
        self._name = reader.name
        self._shape = shape
        # BOOL bytes are looked at. An array lets other threads run while many bytes are copied.
        size = math.prod(shape) * reader.dtype.itemsize
        self._as_bytes = reader.dtype.kind != "b" and size <= _SHORT_BYTES
        # A model with one input of a fixed size has nothing that differs from body to body.
        self._tensors: dict[str, Any] = {self._name: memoryview(b"")}
        self._rows = tables.rows(shape[0], self._tensors, None)

    def rows(self, data: bytes, at: int) -> Rows:
        """The rows of the body that reaches from `at` to the end of the data. The same object each
        time, whose tensors may be cleared: the rows are submitted before the next call."""
        if self._as_bytes:
            self._tensors[self._name] = memoryview(data)[at:]
        else:
            self._tensors[self._name] = self._reader.view(data, at, self._shape)
        return self._rows

    def forget(self) -> None:
        """Drop the last body, which was not submitted."""
        self._tensors.clear()


class RawForm:
    """The raw form of one model, with the bytes of its rows computed once.

    name: of the form, which its requests bear. Answers are written as binary tensors behind JSON,
    or as plain JSON where `answers_json` says so of the headers. plain: the form of those.
    """

    def __init__(
        self, tables: ModelTables, name: str, answers_json: Callable[[Headers], bool]
    ) -> None:
        self._tables = tables
        self._form = name
        self.plain = PlainForm(tables, "plain")
        self._answers_json = answers_json
        self.frame = tables.frame
        self.encode = OipForm(tables, name).encode
        self._reader: InputReader = next(iter(tables.readers.values()))
        self._name = self._reader.name
        tensor = self._reader.tensor
        fixed = [d for d in tensor.shape if not isinstance(d, Dim)]
        dynamic = len(tensor.dynamic)
        itemsize = 1 if tensor.is_bytes else tensor.np_dtype.itemsize
        # The bytes of a row, or of one element along its dynamic dimension.
        self._step = math.prod(fixed) * itemsize
        self._row = tensor.max_shape
        self._whole_rows = not dynamic and not tensor.is_bytes
        self._refusal = _refusal(tables, dynamic, self._step)

    def parse(self, headers: Headers, body: Body, priority: int) -> InferRequest:
        """The request of a whole body; `priority` is the header's.

        Raises InvalidRequest or TooLarge, which say what is wrong with it.
        """
        if self._refusal:
            raise InvalidRequest(self._refusal)
        if self._whole_rows:
            n, rest = divmod(len(body), self._step)
            if rest or not n:
                raise self._wrong_size(len(body))
            array = self._reader.view(body, 0, (n, *self._row))
        else:
            n, array = 1, self._one_row(body)
        rows = self._tables.rows(n, {self._name: array}, None)
        timeout_ns = header_timeout_ns(headers)
        if self._answers_json(headers):
            answer = PlainAnswer("", lone=not self._whole_rows)
            return self.plain.request(rows, answer, timeout_ns, priority)
        return InferRequest(None, rows, self._tables.all_binary, timeout_ns, priority, self._form)

    def fixed_size_reader(self, size: int) -> FixedSizeReader | None:
        """A reader for bodies of `size` bytes, one of which was parsed before.

        None where the model's rows have no fixed size.
        """
        if self._refusal or not self._whole_rows:
            return None
        n = size // self._step
        return FixedSizeReader(self._reader, (n, *self._row), self._tables)

    def _one_row(self, body: Body) -> Array:
        tensor = self._reader.tensor
        count, rest = (1, 0) if tensor.is_bytes else divmod(len(body), self._step)
        if rest:
            raise self._wrong_size(len(body))
        shape = (1, *(count if isinstance(d, Dim) else d for d in tensor.shape))
        check_shape(tensor, shape)
        if tensor.is_bytes:
            return elements.as_array([elements.check_length(tensor, 0, bytes(body))], shape)
        return self._reader.view(body, 0, shape)

    def _wrong_size(self, size: int) -> InvalidRequest:
        tensor = self._reader.tensor
        return InvalidRequest(
            f"input {tensor.name!r}: the raw body has {size} bytes; whole rows of"
            f" {tensor.describe_shape()} {tensor.wire_dtype} come in steps of {self._step}"
        )


def _refusal(tables: ModelTables, dynamic: int, step: int) -> str:
    """The message for a model that has no raw form; empty for one that has."""
    advice = "; send the JSON form with binary_data_size instead"
    spec = tables.spec
    tensor = spec.inputs[0]
    if len(spec.inputs) > 1:
        return f"model {spec.name!r} has {len(spec.inputs)} inputs, a raw body is one{advice}"
    if dynamic > 1 or not step or (tensor.is_bytes and step > 1):
        return (
            f"input {tensor.name!r} of shape {tensor.describe_shape()} {tensor.wire_dtype}"
            f" cannot be a raw body{advice}"
        )
    return ""
