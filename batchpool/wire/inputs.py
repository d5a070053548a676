"""InputReader: reads one declared input from bytes or from JSON and checks it.

Numbers in JSON must fit the declared dtype exactly as `core.tensors.numbers.from_numbers` says:
integers are never wrapped, 1.0 and 1e3 are not integers, 1e39 is not an FP32. FP16 and BF16 are
sent as bytes only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import msgspec
import numpy as np

from batchpool.core.errors import InvalidRequest, TooLarge
from batchpool.core.tensors.arrays import check_shape
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.numbers import from_numbers
from batchpool.core.tensors.spec import Tensor
from batchpool.wire import elements
from batchpool.wire.json_text import no_text
from batchpool.wire.request import Body, brief

# Every exception that msgspec raises for bytes from outside. RecursionError: nesting too deep.
UNREADABLE = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)

# The JSON number -0, which Python's integers do not have. For a float it is -0.0.
MINUS_ZERO = re.compile(rb"-0(?![.0-9eE])")

_NO_NUMBER = re.compile(rb"[\[,:]\s*(NaN|[-+]?Infinity)\b")

# The largest size of a dimension that numpy takes; shapes are checked as Python ints of any size.
_MOST = 2**63 - 1
# A row of zero bytes costs nothing to send, so the body size does not bound the number of rows.
_MOST_EMPTY_ROWS = 2**20
MOST_DIMENSIONS = 32
_WHITE_SPACE = b" \t\r\n"
_LOOKED_AT = 1024  # bytes at the start of a body
_MOST_HINTED = 64 * 1024  # bytes that are looked through for a message
_SHORT_DATA = 1 << 16  # bytes of JSON of which no harmful number of values can be made


def begins_as_json(body: Body) -> bool:
    """True if the first byte that is no white space begins a JSON object, or is too far off to be
    looked for."""
    start = bytes(body[:_LOOKED_AT]).lstrip(_WHITE_SPACE)
    return start[:1] == b"{" or (not start and len(body) > _LOOKED_AT)


def no_number_hint(written: Body) -> str:
    """The end of a message for JSON with NaN or Infinity, as Python writes them; else ""."""
    found = _NO_NUMBER.search(bytes(written[:_MOST_HINTED]))
    return f"; JSON has no {found[1].decode()}: send such numbers as binary data" if found else ""


class InputReader:
    """Reads one input. Its tables are computed once; no method keeps anything of a request."""

    __slots__ = (
        "_fixed_row",
        "_is_float",
        "binary_only",
        "dtype",
        "is_bytes",
        "name",
        "tensor",
        "wire_dtype",
    )

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.name = tensor.name
        self.wire_dtype = tensor.wire_dtype
        self.dtype = tensor.np_dtype
        self.is_bytes = tensor.is_bytes
        self._is_float = self.dtype.kind == "f"
        self.binary_only = tensor.element.binary_only
        plain = not tensor.dynamic and 0 not in tensor.max_shape
        self._fixed_row = list(tensor.max_shape) if plain else None

    def rows_in(self, wire_dtype: str, shape: list[int]) -> int:
        """The row count of a tensor of this dtype and shape, both of which are checked."""
        if wire_dtype != self.wire_dtype:
            raise InvalidRequest(
                f"input {self.name!r} has datatype {brief(wire_dtype)};"
                f" {self.wire_dtype} was expected"
            )
        if shape[1:] == self._fixed_row and shape and 0 < shape[0] <= _MOST:
            return shape[0]
        return self._checked_rows(shape)

    def _checked_rows(self, shape: list[int]) -> int:
        if len(shape) > MOST_DIMENSIONS or not all(0 <= size <= _MOST for size in shape):
            raise InvalidRequest(
                f"input {self.name!r} has shape {brief(shape)};"
                f" {self.tensor.describe_shape()} was expected"
            )
        check_shape(self.tensor, shape)
        rows = shape[0]
        if rows < 1:
            raise InvalidRequest(f"input {self.name!r} has 0 rows; at least 1 was expected")
        if rows > _MOST_EMPTY_ROWS and 0 in shape:
            raise TooLarge(
                f"input {self.name!r} has {rows} empty rows; at most {_MOST_EMPTY_ROWS} are taken"
            )
        return rows

    def from_bytes(self, body: Body, at: int, size: int, shape: Sequence[int]) -> Array:
        """`size` bytes of the body from `at` on, as an array of the checked `shape`.

        The array is a view of the body, which may be unaligned; BYTES elements are copied.
        """
        if self.is_bytes:
            return elements.unpack(self.tensor, memoryview(body)[at : at + size], shape)
        needed = math.prod(shape) * self.dtype.itemsize
        if size != needed:
            raise InvalidRequest(
                f"input {self.name!r} has {size} bytes;"
                f" shape {list(shape)} of {self.wire_dtype} needs {needed}"
            )
        return self.view(body, at, shape)

    def view(self, body: Body, at: int, shape: Sequence[int]) -> Array:
        """The numbers from `at` on in the body; the caller has checked that they are inside."""
        array: Array = np.ndarray(shape, self.dtype, body, at)
        if self.dtype.kind == "b" and array.size and array.view(np.uint8).max() > 1:
            raise InvalidRequest(f"input {self.name!r} is BOOL; each byte must be 0 or 1")
        return array

    def from_json(self, data: msgspec.Raw, shape: Sequence[int]) -> Array:
        """The JSON list `data`, flat or nested row-major, as an array of the checked `shape`."""
        if self.binary_only:
            raise InvalidRequest(
                f"input {self.name!r} is {self.wire_dtype}, which JSON cannot carry;"
                " send it as binary data with parameters.binary_data_size"
            )
        if len(memoryview(data)) > _SHORT_DATA and not self.is_bytes:
            self._check_count(bytes(data), shape)
        try:
            values = msgspec.json.decode(data)
            if self._is_float and MINUS_ZERO.search(data):
                values = msgspec.json.decode(MINUS_ZERO.sub(b"-0.0", data))
        except UNREADABLE as exc:
            place = f"input {self.name!r}: its data"
            raise InvalidRequest(no_text(memoryview(data), place) or f"{place}: {exc}") from None
        if type(values) is not list:
            found = "null" if values is None else brief(values)
            raise InvalidRequest(f"input {self.name!r}: its data is {found}; a list was expected")
        flat = elements.flatten(self.tensor, values)
        if self.is_bytes:
            return elements.from_values(self.tensor, flat, shape)
        return from_numbers(self.name, self.tensor.element, flat, shape)

    def _check_count(self, data: bytes, shape: Sequence[int]) -> None:
        """Refuse more values or lists than the shape has, before one is made of them: a value takes
        up to twenty times the bytes that it was sent in."""
        expected = math.prod(shape)
        if data.count(b",") >= max(expected, 1):
            raise InvalidRequest(
                f"input {self.name!r} has more values than its shape {list(shape)} takes:"
                f" {expected} were expected"
            )
        if data.count(b"[") > 1 + len(shape) * expected or b"{" in data:
            raise InvalidRequest(
                f"input {self.name!r}: its data has more lists than its shape {list(shape)} takes,"
                " or objects; numbers, flat or nested as the shape, were expected"
            )
