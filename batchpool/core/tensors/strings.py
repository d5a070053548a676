"""Conversion of strings to object arrays of `bytes`, which hold the rows of a bytes tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

from batchpool.core.errors import InvalidRequest, TooLarge
from batchpool.core.tensors.dtypes import Array

_PLAIN = {bytes, str}
_MANY = 8  # elements that are looked at together: of fewer, one by one takes less time


def object_array(name: str, value: Any) -> Array:
    """Lists (nested as the row's shape) or an array of strings, as an array of unchecked elements.

    name: of the input, for messages.  Raises InvalidRequest for a single string, for an array of
    numbers, and for a numpy "S" array, since numpy drops the trailing NULs of its elements.
    """
    if isinstance(value, (str, bytes)):
        raise InvalidRequest(
            f"input {name!r} is one {type(value).__name__};"
            " a list of them, one per row, was expected"
        )
    if not isinstance(value, np.ndarray):
        return np.array(_plain_elements(name, value), dtype=object)
    _check_kind(name, value)
    return value


def _check_kind(name: str, array: Array) -> None:
    if array.dtype.kind == "S":
        raise InvalidRequest(
            f"input {name!r} is a numpy array of dtype {array.dtype.str[1:]}, which drops trailing"
            " NULs of its elements; a list of bytes or an array of dtype object was expected"
        )
    if array.dtype.kind not in "OU":
        raise InvalidRequest(
            f"input {name!r} has dtype {array.dtype.name}; bytes or str was expected"
        )


def _plain_elements(name: str, value: Any) -> Any:
    """Nested lists with every buffer copied to `bytes`, which numpy does not take for an array,
    and the dtypes of arrays among them checked."""
    if isinstance(value, (list, tuple)):
        if len(value) >= _MANY and set(map(type, value)) <= _PLAIN:
            return value
        return [_plain_elements(name, element) for element in value]
    if isinstance(value, np.ndarray):
        _check_kind(name, value)
    return bytes(value) if isinstance(value, (bytearray, memoryview)) else value


def as_text_value(name: str, max_bytes: int, value: Any) -> bytes:
    """One string for the parameter `name` as its bytes; a str becomes its UTF-8 bytes.

    Raises InvalidRequest for a value that is no string, TooLarge for more than max_bytes bytes.
    """
    if not isinstance(value, (str, bytes, bytearray, memoryview)):
        raise InvalidRequest(
            f"parameter {name!r} is a {type(value).__name__}; one bytes or str was expected"
        )
    return _fitting(f"parameter {name!r}", max_bytes, value)


def checked_elements(name: str, max_bytes: int, loose: Array) -> Array:
    """A copy of the array with every element as `bytes`; a str becomes its UTF-8 bytes.

    name: of the input, for messages.  Raises InvalidRequest for an element that is no string,
    TooLarge for an element of more than max_bytes bytes.
    """
    rows = np.empty(loose.size, dtype=object)
    elements = loose.reshape(-1).tolist()
    if len(elements) >= _MANY and (found := _as_bytes(elements, max_bytes)) is not None:
        rows[:] = found
        return rows.reshape(loose.shape)
    for i, element in enumerate(elements):
        if type(element) is bytes and len(element) <= max_bytes:
            rows[i] = element
        else:
            rows[i] = _fitting(f"input {name!r}: element {i}", max_bytes, element)
    return rows.reshape(loose.shape)


def check_lengths(name: str, max_bytes: int, lengths: Array) -> None:
    """Raise TooLarge for the first string of more than max_bytes bytes."""
    if len(lengths) and lengths.max() > max_bytes:
        at = int((lengths > max_bytes).argmax())
        raise _too_long(f"input {name!r}: element {at}", int(lengths[at]), max_bytes)


def _as_bytes(elements: list[Any], max_bytes: int) -> list[bytes] | None:
    """The elements where they are plain bytes or str that fit, in a fifth of the time that one by
    one takes; None where one is not."""
    kinds = set(map(type, elements))
    try:
        if kinds == {str}:
            elements = [element.encode() for element in elements]
        elif kinds != {bytes}:
            return None
    except UnicodeEncodeError:
        return None
    return elements if max(map(len, elements)) <= max_bytes else None


def _fitting(what: str, max_bytes: int, element: Any) -> bytes:
    raw = _encoded(what, element)
    if len(raw) > max_bytes:
        raise _too_long(what, len(raw), max_bytes)
    return raw


def _too_long(what: str, length: int, max_bytes: int) -> TooLarge:
    return TooLarge(f"{what} has {length} bytes; at most {max_bytes} fit (max_bytes in the model)")


def _encoded(what: str, element: Any) -> bytes:
    if isinstance(element, str):
        try:
            return element.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(f"{what} has a lone surrogate, which is no text") from None
    if isinstance(element, (bytes, bytearray, memoryview)):
        return bytes(element)
    raise InvalidRequest(f"{what} is a {type(element).__name__}; bytes or str was expected")
