"""Writing of plain JSON: tensors as nested lists, by name, by row, or a single row alone.

JSON has no NaN and no infinity: each becomes `null`. FP16 and BF16 are written as numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from batchpool.core.errors import InvalidRequest
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.ragged import separate
from batchpool.core.tensors.spec import Tensor
from batchpool.wire.request import PlainAnswer

_MOST_AT_ONCE = 16 * 1024  # values that are written in one step, which holds up other threads


def plain_json(
    tensors: Sequence[Tensor],
    outputs: Mapping[str, Array],
    answer: PlainAnswer,
    *,
    named: bool,
) -> bytes:
    """The body of an answer with these outputs, [n, *row shape] each; the sizes of an output whose
    rows differ stand beside it. named: each has its name, also in a member of its own.
    InvalidRequest for BYTES that are not UTF-8."""
    named = named or not answer.member
    if answer.by_row and named:
        value = _list(_row_objects(tensors, outputs))
    else:
        values = {
            tensor.name: _one_row(tensor, outputs[tensor.name])
            if answer.lone
            else _rows(tensor, outputs)
            for tensor in tensors
        }
        value = _object(values) if named else next(iter(values.values()))
    return _object({answer.member: value}) if answer.member else value


def array_json(tensor: Tensor, array: Array) -> bytes:
    """The JSON of an array whose elements are those of the tensor, whatever its shape."""
    return _json(tensor, array)


def _row_objects(tensors: Sequence[Tensor], outputs: Mapping[str, Array]) -> Iterator[bytes]:
    """The JSON of one object a row."""
    names = [msgspec.json.encode(tensor.name) for tensor in tensors]
    columns = [_each_row(tensor, outputs) for tensor in tensors]
    for row in zip(*columns, strict=True):
        yield b"{%s}" % b",".join(map(b"%s:%s".__mod__, zip(names, row, strict=True)))


def _one_row(tensor: Tensor, array: Array) -> bytes:
    return _json(tensor, array[0, ...])


def _rows(tensor: Tensor, outputs: Mapping[str, Array]) -> bytes:
    if _sizes(tensor, outputs) is None:
        return _json(tensor, outputs[tensor.name])
    return _list(_each_row(tensor, outputs))


def _each_row(tensor: Tensor, outputs: Mapping[str, Array]) -> Iterator[bytes]:
    array, sizes = outputs[tensor.name], _sizes(tensor, outputs)
    if sizes is not None:
        return (_json(tensor, row) for row in separate(tensor, array, sizes))
    return (_json(tensor, array[i, ...]) for i in range(len(array)))


def _sizes(tensor: Tensor, outputs: Mapping[str, Array]) -> Array | None:
    """The sizes of an output's rows where they differ."""
    return outputs.get(tensor.sizes_name) if tensor.dynamic else None


def _json(tensor: Tensor, array: Array) -> bytes:
    """An array as nested JSON lists, or one value for an array without dimensions."""
    if array.size <= _MOST_AT_ONCE:
        return msgspec.json.encode(_values(tensor, array))
    rows_at_once = _MOST_AT_ONCE * len(array) // array.size
    if not rows_at_once:
        return _list(_json(tensor, part) for part in array)
    steps = range(0, len(array), rows_at_once)
    return _list(_json(tensor, array[start : start + rows_at_once])[1:-1] for start in steps)


def _values(tensor: Tensor, array: Array) -> Any:
    if tensor.element.is_bfloat16:
        return (array.astype(np.uint32) << 16).view(np.float32).tolist()
    values = array.tolist()
    if not tensor.is_bytes:
        return values
    try:
        return _as_text(values)
    except UnicodeDecodeError:
        raise InvalidRequest(
            f"output {tensor.name!r} is not UTF-8 text, so JSON cannot carry it; ask for it in the"
            " protocol's form with parameters.binary_data true"
        ) from None


def _list(values: Iterable[bytes]) -> bytes:
    return b"[%s]" % b",".join(values)


def _object(members: Mapping[str, bytes]) -> bytes:
    return b"{%s}" % b",".join(
        b"%s:%s" % (msgspec.json.encode(name), value) for name, value in members.items()
    )


def _as_text(values: Any) -> Any:
    return list(map(_as_text, values)) if isinstance(values, list) else values.decode()
