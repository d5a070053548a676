"""The msgpack form (Content-Type: application/msgpack): one map with binary tensors.

    request   {"id"?: text, "inputs": {name: TENSOR}, "outputs"?: [name], "parameters"?: {}}
    response  {"id"?: text, "model_name": text, "model_version": text, "parameters"?: {},
               "outputs": {name: TENSOR}}
    TENSOR    {"dtype": "FP32", "shape": [n, ...], "data": bin}
              BYTES: "data" is a flat list of bin or str; in a response, of bin

`data` is little-endian, row-major. Map keys must be text, extension types are refused,
and no memory is allocated for a length before its bytes were found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

import msgspec
import numpy as np

from batchpool.core.errors import InvalidRequest
from batchpool.core.tensors.dtypes import Array
from batchpool.wire import elements, parameters
from batchpool.wire.inputs import MOST_DIMENSIONS, UNREADABLE, InputReader
from batchpool.wire.model_tables import ModelTables
from batchpool.wire.outputs import OutputWriter
from batchpool.wire.request import (
    Body,
    HeaderList,
    Headers,
    InferRequest,
    OutputChoice,
    header_timeout_ns,
    sooner,
)

_MOST_NAMES = 1 << 16  # of tensors or of parameters in a request
# The lengths are checked before anything is made of what follows them.
_Shape = Annotated[list[int], msgspec.Meta(max_length=MOST_DIMENSIONS)]
_Names = Annotated[list[str], msgspec.Meta(max_length=_MOST_NAMES)]
_Parameters = Annotated[
    dict[str, bool | int | float | str | None], msgspec.Meta(max_length=_MOST_NAMES)
]
_Inputs = Annotated[dict[str, msgspec.Raw], msgspec.Meta(max_length=_MOST_NAMES)]


class _Head(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    inputs: msgspec.Raw
    outputs: _Names | None = None
    id: str | None = None
    parameters: _Parameters | None = None


class _Tensor(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    dtype: str
    shape: _Shape
    data: msgspec.Raw


_HEAD = msgspec.msgpack.Decoder(_Head)
_INPUTS: msgspec.msgpack.Decoder[dict[str, msgspec.Raw]] = msgspec.msgpack.Decoder(_Inputs)
_TENSOR = msgspec.msgpack.Decoder(_Tensor)
_BIN = msgspec.msgpack.Decoder(memoryview)
_LISTS = msgspec.msgpack.Decoder(list[bytes]), msgspec.msgpack.Decoder(list[str])
_MIXED_LIST = msgspec.msgpack.Decoder(list[msgspec.Raw])
_SCALAR: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder()


class MsgpackForm:
    """The msgpack form of one model. name: of the form, which its requests bear."""

    def __init__(self, tables: ModelTables, name: str) -> None:
        self._tables = tables
        self._name = name

    def parse(self, headers: Headers, body: Body, priority: int) -> InferRequest:
        """The request of a whole body; `priority` is the header's.

        Raises InvalidRequest or TooLarge, which say what is wrong with it.
        """
        tables = self._tables
        head: _Head = _decode(_HEAD, body, "the request's msgpack")
        inputs: dict[str, msgspec.Raw] = _decode(_INPUTS, head.inputs, "the request's inputs")
        if len(inputs) != _map_size(memoryview(head.inputs)):
            raise InvalidRequest("the request's inputs: a name stands twice")
        tensors: dict[str, Array] = {}
        n = 0
        for name, packed in inputs.items():
            reader = tables.reader(name, tensors)
            given: _Tensor = _decode(_TENSOR, packed, f"input {name!r}")
            rows = reader.rows_in(given.dtype, given.shape)
            if tensors:
                tables.check_same_rows(name, rows, tensors, n)
            n = rows
            tensors[name] = _read(reader, given)
        asked = parameters.read(tables, head.parameters or {})
        return InferRequest(
            head.id or None,
            tables.rows(n, tensors, asked.values),
            _outputs(tables, head.outputs),
            sooner(header_timeout_ns(headers), asked.timeout_ns),
            priority or asked.priority,
            self._name,
        )

    def fixed_size_reader(self, size: int) -> None:
        """None: each body must be parsed."""

    def frame(self, request: InferRequest, n: int) -> None:
        """None: a msgpack answer has no part that is alike in all answers of n rows."""

    def encode(
        self,
        request: InferRequest,
        outputs: Mapping[str, Array],
        model_parameters: Mapping[str, Any] | None,
    ) -> tuple[HeaderList, bytes]:
        """The headers and body of the response."""
        tables = self._tables
        response: dict[str, Any] = {"id": request.id} if request.id else {}
        response["model_name"] = tables.spec.name
        response["model_version"] = tables.version
        if model_parameters:
            response["parameters"] = dict(model_parameters)
        response["outputs"] = {
            choice.name: _tensor(writer, array)
            for choice, writer, array in tables.answered(request.outputs, outputs)
        }
        body = msgspec.msgpack.encode(response)
        return [
            (b"content-type", b"application/msgpack"),
            (b"content-length", b"%d" % len(body)),
        ], body


def _decode(decoder: msgspec.msgpack.Decoder[Any], packed: Body | msgspec.Raw, what: str) -> Any:
    try:
        return decoder.decode(packed)
    except UNREADABLE as exc:
        text = str(exc)
        raise InvalidRequest(f"{what}: {text[:300]}") from None


def _map_size(packed: memoryview) -> int:
    """The number of pairs of a well-formed msgpack map, from its first bytes."""
    if packed[0] == 0xDE:
        return int.from_bytes(packed[1:3], "big")
    if packed[0] == 0xDF:
        return int.from_bytes(packed[1:5], "big")
    return packed[0] & 0x0F


def _list_size(packed: memoryview) -> int | None:
    """The number of elements of a msgpack list, from its first bytes; None if it is no list."""
    if packed[0] == 0xDC:
        return int.from_bytes(packed[1:3], "big")
    if packed[0] == 0xDD:
        return int.from_bytes(packed[1:5], "big")
    return packed[0] & 0x0F if packed[0] & 0xF0 == 0x90 else None


def _elements(data: msgspec.Raw, what: str) -> list[Any]:
    """The elements of a list of bin and str. A list or a map among them is left empty: it is
    refused for its type, whatever it holds."""
    for decoder in _LISTS:
        with suppress(*UNREADABLE):  # a mixed list, or one that is refused below
            found: list[Any] = decoder.decode(data)
            return found
    mixed: list[msgspec.Raw] = _decode(_MIXED_LIST, data, what)
    return [_element(raw, what) for raw in mixed]


def _element(packed: msgspec.Raw, what: str) -> Any:
    kind = memoryview(packed)[0]
    if kind & 0xF0 == 0x90 or kind in (0xDC, 0xDD):
        return []
    if kind & 0xF0 == 0x80 or kind in (0xDE, 0xDF):
        return {}
    return _decode(_SCALAR, packed, what)


def _read(reader: InputReader, given: _Tensor) -> Array:
    what = f"input {reader.name!r}: its data"
    if not reader.is_bytes:
        view: memoryview = _decode(_BIN, given.data, what)
        return reader.from_bytes(view, 0, len(view), given.shape)
    count = _list_size(memoryview(given.data))
    if count is not None and count != math.prod(given.shape):
        raise elements.wrong_count(reader.tensor, count, given.shape)
    values = _elements(given.data, what)
    return elements.from_values(reader.tensor, values, given.shape)


def _outputs(tables: ModelTables, asked: list[str] | None) -> tuple[OutputChoice, ...]:
    if not asked:
        return tables.all_binary
    choices: dict[str, OutputChoice] = {}
    for name in asked:
        choices[name] = tables.output(name, True, choices)
    return tuple(choices.values())


def _tensor(writer: OutputWriter, array: Array) -> dict[str, Any]:
    form: dict[str, Any] = {"dtype": writer.wire_dtype, "shape": list(array.shape)}
    if writer.wire_dtype == "BYTES":
        form["data"] = array.reshape(-1).tolist()
    else:
        form["data"] = writer.to_bytes(array).reshape(-1).view(np.uint8).data
    return form
