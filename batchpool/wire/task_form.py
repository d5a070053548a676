"""A checked request as the bytes that a task keeps, and back.

    input    {"n": rows, "tensors": {name: TENSOR}, "sizes"?: {name: TENSOR}, "parameters": {}}
    TENSOR   {"dtype": numpy's name, "shape": [n, ...], "data": bin}; of bytes a list of bin
    answer   the form in which the result is written, the outputs, the id of the request

The input holds rows that were checked, so that no second attempt has to parse a body again. Bytes
of these forms are written and read by the pool alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

import msgspec
import numpy as np

from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.rows import Rows
from batchpool.wire.left_out import LONG_BYTES, LeftOut
from batchpool.wire.request import InferRequest, OutputChoice, PlainAnswer


class _Tensor(msgspec.Struct, omit_defaults=True):
    dtype: str
    shape: list[int]
    data: memoryview | None = None
    items: list[bytes] | None = None


class _LongTensor(msgspec.Struct):
    """As it is packed, of one whose bytes are left out."""

    dtype: str
    shape: list[int]
    data: msgspec.Raw


class _Input(msgspec.Struct, omit_defaults=True):
    n: int
    tensors: dict[str, _Tensor]
    parameters: dict[str, Any]
    sizes: dict[str, _Tensor] | None = None


class _Answer(msgspec.Struct, omit_defaults=True):
    form: str
    outputs: list[tuple[str, bool, int]]
    id: str | None = None
    plain: tuple[str, bool, bool] | None = None


_INPUT = msgspec.msgpack.Decoder(_Input)
_ANSWER = msgspec.msgpack.Decoder(_Answer)
_OBJECT = "object"
_SHORT_BYTES = 256  # of an answer that is remembered as it was read


def pack_input(rows: Rows, left_out: LeftOut | None = None) -> bytes:
    """The bytes of checked rows. left_out: gets the long tensors, which they are then without."""
    tensors: dict[str, Any] = {
        name: _packed(array, left_out) for name, array in rows.tensors.items()
    }
    sizes = {name: _packed(array, None) for name, array in rows.sizes.items()}
    return msgspec.msgpack.encode(
        _Input(
            rows.n,
            tensors,
            {name: _plain(value) for name, value in rows.parameters.items()},
            cast(dict[str, _Tensor] | None, sizes or None),
        )
    )


def unpack_input(packed: bytes) -> Rows:
    """The rows of these bytes, whose arrays are views of them."""
    found = _INPUT.decode(packed)
    return Rows(
        found.n,
        {name: _array(tensor) for name, tensor in found.tensors.items()},
        found.parameters,
        {name: _array(tensor) for name, tensor in (found.sizes or {}).items()},
    )


def lone_tensor_place(packed: bytes) -> tuple[int, int] | None:
    """Where the bytes of the only tensor begin and end; None where there are more, or none."""
    tensors = _INPUT.decode(packed).tensors
    if len(tensors) != 1:
        return None
    (tensor,) = tensors.values()
    if tensor.data is None or not tensor.data.nbytes:
        return None
    start = _address(tensor.data) - _address(packed)
    return start, start + tensor.data.nbytes


def _address(data: bytes | memoryview) -> int:
    """Of the memory of these bytes: what is decoded is a view of the whole."""
    address: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    return address


def pack_answer(request: InferRequest) -> bytes:
    """The bytes of all that decides how the answer to a request is written, but the rows."""
    plain = request.plain
    return msgspec.msgpack.encode(
        _Answer(
            request.form,
            [(choice.name, choice.binary, choice.classes) for choice in request.outputs],
            request.id,
            None if plain is None else (plain.member, plain.by_row, plain.lone),
        )
    )


def without_id(packed: bytes) -> bytes:
    """The bytes of `pack_answer` as they would be without the id of the request."""
    found = _ANSWER.decode(packed)
    if found.id is None:
        return packed
    return msgspec.msgpack.encode(msgspec.structs.replace(found, id=None))


def unpack_answer(packed: bytes, rows: Rows) -> InferRequest:
    """The request of these rows that is to be answered so."""
    read = _read_answer_again if len(packed) <= _SHORT_BYTES else _read_answer
    identifier, choices, form, plain = read(packed)
    return InferRequest(identifier, rows, choices, None, 0, form, plain)


def _read_answer(
    packed: bytes,
) -> tuple[str | None, tuple[OutputChoice, ...], str, PlainAnswer | None]:
    """(id, outputs, form, how it is written where that is plain JSON)."""
    found = _ANSWER.decode(packed)
    choices = tuple(OutputChoice(*choice) for choice in found.outputs)
    plain = None if found.plain is None else PlainAnswer(*found.plain)
    return found.id, choices, found.form, plain


# Most tasks are to be answered as others are.
_read_answer_again = lru_cache(maxsize=256)(_read_answer)


def _packed(array: Array, left_out: LeftOut | None) -> _Tensor | _LongTensor:
    shape = list(array.shape)
    if array.dtype.kind == "O":
        return _Tensor(_OBJECT, shape, items=array.reshape(-1).tolist())
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if left_out is not None and flat.nbytes >= LONG_BYTES:
        return _LongTensor(array.dtype.str, shape, left_out.bin(flat.data))
    return _Tensor(array.dtype.str, shape, data=flat.data)


def _array(tensor: _Tensor) -> Array:
    if tensor.dtype == _OBJECT:
        array: Array = np.empty(math.prod(tensor.shape), dtype=object)
        array[:] = tensor.items or []
        return array.reshape(tensor.shape)
    values: Array = np.frombuffer(tensor.data or b"", dtype=np.dtype(tensor.dtype))
    return values.reshape(tensor.shape)


def _plain(value: Any) -> Any:
    """A parameter's value without numpy's types."""
    return value.item() if isinstance(value, np.generic) else value


def input_json(packed: bytes) -> Mapping[str, Any]:
    """The input as lists for people and for JSON; bytes that are no text as
    {"b64": "..."}, as the HTTP interface writes them."""
    rows = unpack_input(packed)
    tensors = {
        name: {"shape": list(array.shape), "data": _listed(array)}
        for name, array in rows.tensors.items()
    }
    return {"rows": rows.n, "inputs": tensors, "parameters": rows.parameters}


def _listed(array: Array) -> Any:
    values: list[Any] = array.reshape(-1).tolist()
    if array.dtype.kind != "O":
        return values
    return [_text(value) for value in values]


def _text(value: bytes) -> str | dict[str, str]:
    from base64 import b64encode

    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"b64": b64encode(value).decode()}
