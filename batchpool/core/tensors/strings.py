"""Conversion of strings to object arrays of `bytes`, which hold the rows of a bytes tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

from batchpool.core.errors import InvalidRequest, TooLarge
from batchpool.core.tensors.dtypes import Array


def object_array(name: str, value: Any) -> Array:
    """Lists (nested as the row's shape) or an array of strings, as an array of unchecked elements.

    name: of the input, for messages.  A numpy "S" array has lost the trailing NULs of its
    elements before it arrives here; an object array keeps them.  Raises InvalidRequest for a
    single string and for an array of numbers.
    """
    if isinstance(value, (str, bytes)):
        raise InvalidRequest(
            f"input {name!r} is one {type(value).__name__};"
            " a list of them, one per row, was expected"
        )
    if not isinstance(value, np.ndarray):
        return np.array(_buffers_to_bytes(value), dtype=object)
    if value.dtype.kind not in "OSU":
        raise InvalidRequest(
            f"input {name!r} has dtype {value.dtype.name}; bytes or str was expected"
        )
    return value


def _buffers_to_bytes(value: Any) -> Any:
    """Nested lists with every buffer copied to `bytes`, which numpy does not take for an array."""
    if isinstance(value, (list, tuple)):
        return [_buffers_to_bytes(element) for element in value]
    return bytes(value) if isinstance(value, (bytearray, memoryview)) else value


def checked_elements(name: str, max_bytes: int, loose: Array) -> Array:
    """A copy of the array with every element as `bytes`; a str becomes its UTF-8 bytes.

    name: of the input, for messages.  Raises InvalidRequest for an element that is no string,
    TooLarge for an element of more than max_bytes bytes.
    """
    rows = np.empty(loose.size, dtype=object)
    for i, element in enumerate(loose.reshape(-1).tolist()):
        raw = _encoded(name, i, element)
        if len(raw) > max_bytes:
            raise TooLarge(
                f"input {name!r}: element {i} has {len(raw)} bytes; at most {max_bytes} fit"
            )
        rows[i] = raw
    return rows.reshape(loose.shape)


def _encoded(name: str, i: int, element: Any) -> bytes:
    if isinstance(element, str):
        try:
            return element.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(
                f"input {name!r}: element {i} has a lone surrogate, which is no text"
            ) from None
    if isinstance(element, (bytes, bytearray, memoryview)):
        return bytes(element)
    raise InvalidRequest(
        f"input {name!r}: element {i} is a {type(element).__name__}; bytes or str was expected"
    )
