"""Rows that the model failed: by an exception in the row's place in an output, or `Batch.fail`.

Such a row ends with its own error, and the batch is a good one: no other row is affected and
nothing runs again. An `InvalidInput` is the caller's mistake and reaches the caller word for word;
any other exception is the model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from batchpool.core.errors import DETAILS_BYTES, InvalidInput
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import Dim, Tensor
from batchpool.worker.backends.backend import FAILED_ROWS


def failed_rows(found: Mapping[Any, Any], n: int) -> dict[int, Exception]:
    """The rows 0..n-1 that the model failed, {row: exception}."""
    failed: dict[int, Exception] = {}
    if FAILED_ROWS in found:
        failed = {row: error for row, error in found[FAILED_ROWS].items() if row < n}
    for value in found.values():
        if isinstance(value, (list, tuple)):
            for row, element in enumerate(value[:n]):
                if isinstance(element, Exception):
                    failed.setdefault(row, element)
        elif isinstance(value, np.ndarray) and value.dtype.hasobject and value.ndim:
            for at, element in np.ndenumerate(value[:n]):
                if isinstance(element, Exception):
                    failed.setdefault(at[0], element)
    return failed


def with_blanks(tensor: Tensor, value: Any, failed: Mapping[int, Exception], rows: int) -> Any:
    """An output with a valid row in the place of each failed one, which is never sent.

    Arrays of numbers are returned unchanged: whatever stands there is a valid row.
    """
    blank: Any = blank_row(tensor)
    if isinstance(value, (list, tuple)):
        value = list(value)
    elif isinstance(value, np.ndarray) and value.dtype.hasobject and value.ndim:
        value, blank = (list(value), blank) if value.ndim == 1 else (value.copy(), b"")
    else:
        return value
    for row in failed:
        if row < min(rows, len(value)):
            value[row] = blank
    return value


def blank_row(tensor: Tensor) -> Array:
    """A row of the least size that the tensor takes."""
    shape = [0 if isinstance(dim, Dim) else dim for dim in tensor.shape]
    if tensor.is_bytes:
        return np.full(shape, b"", dtype=object)
    return np.zeros(shape, dtype=tensor.np_dtype)


def refusal_text(error: InvalidInput) -> str:
    """The text of a refusal as one line; an exception's own `__str__` may raise."""
    try:
        return " ".join(str(error).split())
    except Exception:
        return ""


def refusal_details(error: InvalidInput) -> bytes:
    """The details of a refusal as JSON; b"" if there are none, or they are too long to be sent."""
    try:
        details = error.details_json() if error.details else b""
    except (AttributeError, TypeError, ValueError):  # changed since, or of a subclass
        return b""
    return details if len(details) <= DETAILS_BYTES else b""
