"""The rows of a tensor as a column of Arrow, as `batchpool/arrow/types.py` lays them out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from batchpool.arrow.buffers import array_of_bytes, array_of_numbers
from batchpool.arrow.types import BF16, DATATYPE, VARIABLE_TENSOR, arrow, is_listed, value_type
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.ragged import Sizes
from batchpool.core.tensors.spec import Tensor


def column_type(tensor: Tensor, *, lists: bool = False) -> Any:
    """The Arrow type of a tensor's column. lists: fixed shapes as nested fixed_size_lists."""
    pa = arrow()
    element = value_type(tensor.dtype)
    if not tensor.shape:
        return element
    if not tensor.dynamic:
        if lists or tensor.is_bytes or 0 in tensor.max_shape:
            return _nested(element, tensor.max_shape)
        return pa.fixed_shape_tensor(element, tensor.max_shape)
    if is_listed(tensor):
        return pa.list_(_nested(element, tensor.max_shape[1:]))
    rank = len(tensor.shape)
    return pa.struct([("data", pa.list_(element)), ("shape", pa.list_(pa.int32(), rank))])


def column_field(tensor: Tensor, *, lists: bool = False) -> Any:
    """The field of a tensor's column."""
    metadata: dict[bytes, bytes] = {}
    if tensor.element.is_bfloat16:
        metadata[DATATYPE] = BF16
    if tensor.dynamic and not is_listed(tensor) and not tensor.is_bytes:  # Arrow has none of texts
        metadata |= {b"ARROW:extension:name": VARIABLE_TENSOR, b"ARROW:extension:metadata": b"{}"}
    kind = column_type(tensor, lists=lists)
    return arrow().field(tensor.name, kind, nullable=False, metadata=metadata or None)


def column_of(tensor: Tensor, rows: Array | Sequence[Array], kind: Any) -> Any:
    """Rows [n, *row shape], or a list of n that differ in size, as a column of this type."""
    pa = arrow()
    n = len(rows)
    if not tensor.shape:
        return _elements(tensor, np.asarray(rows))
    if not tensor.dynamic:
        if 0 in tensor.max_shape:
            return pa.array([np.empty(tensor.max_shape).tolist()] * n, kind)
        array = np.asarray(rows)
        if isinstance(kind, pa.FixedShapeTensorType):
            flat = _elements(tensor, array.reshape(-1))
            storage = pa.FixedSizeListArray.from_arrays(flat, math.prod(tensor.max_shape))
            return pa.ExtensionArray.from_storage(kind, storage)
        return _nest(_elements(tensor, array.reshape(-1)), tensor.max_shape)
    each = [np.asarray(row) for row in rows]
    flat_rows = [row.reshape(-1) for row in each]
    whole = np.concatenate(flat_rows) if each else np.empty(0, tensor.np_dtype)
    values = _elements(tensor, whole)
    if is_listed(tensor):
        inner = tensor.max_shape[1:]
        offsets = np.cumsum([0, *(row.shape[0] for row in each)], dtype=np.int32)
        places = array_of_numbers(offsets, pa.int32())
        return pa.ListArray.from_arrays(places, _nest(values, inner) if inner else values)
    offsets = np.cumsum([0, *(row.size for row in each)], dtype=np.int32)
    shapes = np.array([row.shape for row in each], np.int32).reshape(-1)
    parts = [
        pa.ListArray.from_arrays(array_of_numbers(offsets, pa.int32()), values),
        pa.FixedSizeListArray.from_arrays(array_of_numbers(shapes, pa.int32()), len(tensor.shape)),
    ]
    return pa.StructArray.from_arrays(parts, fields=list(kind))


def cut_rows(tensor: Tensor, rows: Array, sizes: Sizes | None) -> Array | list[Array]:
    """The rows of a padded array as views of their own sizes; sizes: None where all are alike."""
    if sizes is None:
        return rows
    cut = [slice(None)] * len(tensor.shape)
    found = []
    for row, own in zip(rows, sizes.tolist(), strict=True):
        for at, size in zip(tensor.dynamic, own, strict=True):
            cut[at] = slice(0, size)
        found.append(row[tuple(cut)])
    return found


def _elements(tensor: Tensor, flat: Array) -> Any:
    if tensor.is_bytes:
        return array_of_bytes(flat.reshape(-1).tolist())
    return array_of_numbers(flat, value_type(tensor.dtype))


def _nested(element: Any, shape: Sequence[int]) -> Any:
    pa = arrow()
    for size in reversed(shape):
        element = pa.list_(element, size)
    return element


def _nest(values: Any, shape: Sequence[int]) -> Any:
    pa = arrow()
    for size in reversed(shape):
        values = pa.FixedSizeListArray.from_arrays(values, size)
    return values
