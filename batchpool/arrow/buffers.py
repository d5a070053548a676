"""Arrow's buffers as numpy arrays.

The conversions of pyarrow itself import pandas where that is installed: half a second and 60 MiB in
whoever reads or writes a number, for nothing that is needed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from batchpool.arrow.types import arrow
from batchpool.core.tensors.dtypes import Array

_DTYPES = {
    "int8": "i1", "int16": "i2", "int32": "i4", "int64": "i8", "uint8": "u1", "uint16": "u2",
    "uint32": "u4", "uint64": "u8", "halffloat": "f2", "float": "f4", "double": "f8", "bool": "?",
}  # fmt: skip


def is_number(kind: Any) -> bool:
    """True for the type of numbers, or of truth values, that numpy has."""
    return str(kind) in _DTYPES


def numbers(array: Any) -> Array:
    """The values of an array of numbers without nulls: a view, but for truth values."""
    dtype = np.dtype(_DTYPES[str(array.type)])
    n, at = len(array), array.offset
    buffer = array.buffers()[1] if n else None
    if buffer is None:
        return np.empty(0, dtype)
    if dtype.kind == "b":
        packed = np.frombuffer(buffer, np.uint8)[at // 8 : (at + n + 7) // 8]
        bits = np.unpackbits(packed, bitorder="little")[at % 8 : at % 8 + n]
        return bits.view(np.bool_)
    return np.frombuffer(buffer, dtype, n, at * dtype.itemsize)


def byte_strings(array: Any) -> Array:
    """The elements of an array of texts or of bytes without nulls, as `bytes`.

    pyarrow's own conversion would import pandas.
    """
    pa = arrow()
    if array.type not in (pa.large_binary(), pa.large_string()):
        array = array.cast(pa.large_binary())
    n = len(array)
    found = np.empty(n, object)
    _, places, content = array.buffers()
    if n and places is not None:
        ends = np.frombuffer(places, np.int64, n + 1, array.offset * 8)
        first, last = int(ends[0]), int(ends[-1])
        blob = content.slice(first, last - first).to_pybytes() if last > first else b""
        cuts = (ends - first).tolist()
        found[:] = [blob[a:b] for a, b in pairwise(cuts)]
    return found


def text_lengths(array: Any) -> Array:
    """The bytes of each element of an array of texts or of bytes without nulls."""
    pa = arrow()
    if pa.types.is_binary_view(array.type) or pa.types.is_string_view(array.type):
        buffer = array.buffers()[1]
        if buffer is None:
            return np.zeros(len(array), np.int32)
        views = np.frombuffer(buffer, np.int32).reshape(-1, 4)
        lengths: Array = views[array.offset : array.offset + len(array), 0]
        return lengths
    return numbers(pa.compute.binary_length(array))


def nulls(array: Any) -> Array:
    """True where an element is null."""
    return numbers(array.is_null())


def flat(array: Any) -> Any:
    """The elements of lists without nulls, as a view; `flatten` would copy them."""
    pa = arrow()
    values, start, n = array.values, array.offset, len(array)
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        return values.slice(start * size, n * size)
    offsets = array.offsets
    first, last = offsets[0].as_py(), offsets[n].as_py()
    return values.slice(first, last - first)


def array_of_numbers(values: Array, kind: Any) -> Any:
    """An array of Arrow of this type, whose memory is that of the values; truth values are
    packed."""
    pa = arrow()
    flat_values = np.ascontiguousarray(values).reshape(-1)
    if flat_values.dtype.kind == "b":
        packed = np.packbits(flat_values, bitorder="little")
        return pa.Array.from_buffers(kind, flat_values.size, [None, pa.py_buffer(packed)])
    return pa.Array.from_buffers(kind, flat_values.size, [None, pa.py_buffer(flat_values)])


def array_of_bytes(elements: Sequence[bytes]) -> Any:
    """An array of `large_binary`."""
    pa = arrow()
    ends = np.zeros(len(elements) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, elements), np.int64, len(elements)), out=ends[1:])
    content = pa.py_buffer(b"".join(elements))
    return pa.Array.from_buffers(
        pa.large_binary(), len(elements), [None, pa.py_buffer(ends), content]
    )
