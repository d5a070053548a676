"""Columns of data frames, and other iterables, in the place of arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from typing import Any

import numpy as np

from batchpool.core.errors import InvalidRequest
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.numbers import from_array
from batchpool.core.tensors.packed_strings import (
    PackedStrings,
    is_arrow_column,
    strings_of_arrow,
)
from batchpool.core.tensors.spec import Tensor

_MISSING = ("NAType", "NaTType")  # the elements of pandas that stand for nothing
_EXACT_BELOW = 2.0**53  # whole floats from here on may have lost digits
_AS_THEY_ARE = (np.ndarray, np.generic, list, tuple, str, bytes, int, float, PackedStrings)


def rows_in_order(tensor: Tensor, value: Any) -> Any:
    """A value of `as_sized_rows` for a column or an iterable of rows; other values as they are.

    A column is what has `__array__`, such as a Series or a DataFrame of pandas or polars. Its
    numbers are converted to the tensor's dtype where they fit, whole floats to integers too, as a
    frame chooses its dtypes by itself. Strings of Arrow stay where they are. Raises InvalidRequest
    for numbers that do not fit, and for a column or a masked array in which elements are missing.
    """
    if _is_masked(value):
        return _unmasked(tensor, value)
    if isinstance(value, _AS_THEY_ARE) or hasattr(value, "detach"):  # a torch tensor is an array
        return value
    if isinstance(value, (Set, Mapping)):  # whose elements have no place
        return value
    if tensor.is_bytes and is_arrow_column(value):
        if value.null_count:
            raise _missing(tensor, value.is_null().index(True).as_py())
        if (strings := strings_of_arrow(tensor.name, value)) is not None:
            return strings
    if hasattr(value, "__array__"):
        return _column(tensor, np.asarray(value))
    return list(value) if hasattr(value, "__iter__") else value


def _is_masked(value: Any) -> bool:
    # Told by its method: to name numpy.ma imports it, in 10 ms or more.
    return isinstance(value, np.ndarray) and hasattr(value, "filled")


def _unmasked(tensor: Tensor, array: np.ma.MaskedArray[Any, Any]) -> Array:
    masked = int(np.ma.getmaskarray(array).sum())
    if masked:
        raise InvalidRequest(
            f"input {tensor.name!r} is an array with {masked} masked elements, which have no value;"
            " fill them (array.filled(...)) or leave their rows out"
        )
    return np.asarray(array)


def _column(tensor: Tensor, array: Array) -> Any:
    """The column of a frame as an array or, where its elements are objects, as a list."""
    kind, wanted = array.dtype.kind, tensor.np_dtype.kind
    if kind == "O":
        elements = list(array)
        for i, element in enumerate(elements):
            if element is None or type(element).__name__ in _MISSING:
                raise _missing(tensor, i)
        if tensor.is_bytes:
            for i, element in enumerate(elements):
                if type(element) is float and math.isnan(element):  # of pandas, among strings
                    raise _missing(tensor, i)
            return array
        return elements
    if tensor.is_bytes or kind not in "biuf" or array.dtype == tensor.np_dtype:
        return array
    if kind == "f" and wanted in "iu" and not tensor.element.is_bfloat16:
        if np.isnan(array).any():
            raise _missing(tensor, int(np.argwhere(np.isnan(array))[0][0]))
        exact = np.abs(array) < _EXACT_BELOW
        if exact.all() and (array == np.trunc(array)).all():
            array = array.astype(np.int64)
    return from_array(tensor.name, tensor.element, array)


def _missing(tensor: Tensor, row: int) -> InvalidRequest:
    return InvalidRequest(
        f"input {tensor.name!r}: row {row} is missing in this column; fill it or leave the row out"
    )
