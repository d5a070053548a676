"""Elements of BYTES tensors: each is a little-endian uint32 length and its bytes, row-major.

In JSON an element is a string, which stands for its UTF-8 bytes. In memory a BYTES tensor is a
numpy object array of `bytes`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from batchpool.core.errors import InvalidRequest, TooLarge
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import Tensor

_LENGTH = struct.Struct("<I")
_Element = TypeVar("_Element", bytes, memoryview)


def as_array(elements: list[bytes], shape: Sequence[int]) -> Array:
    """An object array of `shape` that holds these objects, uncopied."""
    flat = np.empty(len(elements), dtype=object)
    flat[:] = elements
    return flat.reshape(tuple(shape))


def unpack(tensor: Tensor, view: memoryview, shape: Sequence[int]) -> Array:
    """Length-prefixed elements as an object array of `shape`; the bytes are copied.

    Raises InvalidRequest unless the view holds exactly product(shape) whole elements,
    TooLarge for an element over `max_bytes`.
    """
    count = math.prod(shape)
    size = len(view)
    # Each element takes at least its prefix, so a false shape is refused without a loop.
    if count * 4 > size:
        raise _wrong(tensor, f"{size} bytes cannot hold {count} elements of 4 bytes and more")
    elements: list[bytes] = []
    at = 0
    for index in range(count):
        if at + 4 > size:
            raise _wrong(tensor, f"the length of element {index} is cut off")
        (length,) = _LENGTH.unpack_from(view, at)
        at += 4
        if length > size - at:
            raise _wrong(
                tensor, f"element {index} says {length} bytes, but {size - at} bytes are left"
            )
        elements.append(bytes(check_length(tensor, index, view[at : at + length])))
        at += length
    if at != size:
        raise _wrong(tensor, f"{size - at} bytes are left over after {count} elements")
    return as_array(elements, shape)


def pack(array: Array) -> bytes:
    """The bytes of an object array of `bytes`: each element behind its length."""
    parts: list[bytes] = []
    for element in array.reshape(-1).tolist():
        parts.append(_LENGTH.pack(len(element)))
        parts.append(element)
    return b"".join(parts)


def from_values(tensor: Tensor, values: list[Any], shape: Sequence[int]) -> Array:
    """Flat strings (meaning their UTF-8 bytes) or bytes as an object array of `shape`."""
    count = math.prod(shape)
    if len(values) != count:
        raise wrong_count(tensor, len(values), shape)
    elements: list[bytes] = []
    for index, value in enumerate(values):
        if type(value) is str:
            value = value.encode()
        elif type(value) is not bytes:
            raise _wrong(
                tensor, f"element {index} is a {type(value).__name__}; a string was expected"
            )
        elements.append(check_length(tensor, index, value))
    return as_array(elements, shape)


def wrong_count(tensor: Tensor, count: int, shape: Sequence[int]) -> InvalidRequest:
    """The error for another number of elements than the shape has."""
    return _wrong(tensor, f"{count} values came; shape {list(shape)} needs {math.prod(shape)}")


def check_length(tensor: Tensor, index: int, element: _Element) -> _Element:
    """The element unchanged; raises TooLarge where it is longer than `max_bytes`."""
    most = tensor.max_bytes or 0
    if len(element) > most:
        raise TooLarge(
            f"input {tensor.name!r}: element {index} has {len(element)} bytes; at most {most} fit"
            " (max_bytes in the model)"
        )
    return element


def flatten(tensor: Tensor, values: list[Any]) -> list[Any]:
    """Nested lists as one flat list, row-major; InvalidRequest where they are ragged."""
    while values and type(values[0]) is list:
        length = len(values[0])
        if not all(type(value) is list and len(value) == length for value in values):
            raise _wrong(tensor, "the nested lists of its data are ragged")
        values = list(chain.from_iterable(values))
    return values


def _wrong(tensor: Tensor, text: str) -> InvalidRequest:
    return InvalidRequest(f"input {tensor.name!r}: {text}")
