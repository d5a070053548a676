"""Columns of data frames, and other iterables, in the place of arrays."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import numpy as np

from batchpool.core.errors import InvalidRequest
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.numbers import from_array
from batchpool.core.tensors.spec import Tensor

_AS_THEY_ARE = (np.ndarray, np.generic, list, tuple, str, bytes, int, float)


def rows_in_order(tensor: Tensor, value: Any) -> Any:
    """A value of `as_sized_rows` for a column or an iterable of rows; other values as they are.

    A column is what has `__array__`, such as a Series or a DataFrame of pandas or polars. Its
    numbers are converted to the tensor's dtype where they fit, as those of lists are, since a frame
    chooses its dtypes by itself. Raises InvalidRequest for numbers that do not fit, and for a
    masked array with elements that are masked.
    """
    if isinstance(value, np.ma.MaskedArray):
        return _unmasked(tensor, value)
    if isinstance(value, _AS_THEY_ARE) or hasattr(value, "detach"):  # a torch tensor is an array
        return value
    if isinstance(value, (Set, Mapping)):  # whose elements have no place
        return value
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        if array.dtype.kind in "biuf" and not tensor.is_bytes and array.dtype != tensor.np_dtype:
            return from_array(tensor.name, tensor.element, array)
        return list(array) if array.dtype.kind == "O" and not tensor.is_bytes else array
    return list(value) if hasattr(value, "__iter__") else value


def _unmasked(tensor: Tensor, array: np.ma.MaskedArray[Any, Any]) -> Array:
    masked = int(np.ma.getmaskarray(array).sum())
    if masked:
        raise InvalidRequest(
            f"input {tensor.name!r} is an array with {masked} masked elements, which have no value;"
            " fill them (array.filled(...)) or leave their rows out"
        )
    return np.asarray(array)
