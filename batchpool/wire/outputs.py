"""OutputWriter: writes one declared output as an object of the JSON response, or as bytes.

JSON numbers are flat and row-major. JSON has no NaN and no infinity: each becomes `null`. FP16 and
BF16 are never written as JSON; a request for that is refused before it runs.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from batchpool.core.errors import InternalError, InvalidRequest
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import Tensor
from batchpool.wire import elements

_KNOWN_SHAPES = 512
_MOST_AT_ONCE = 16 * 1024  # values that are written in one step, which holds up other threads


class OutputWriter:
    """Writes one output. Keeps the JSON objects of a bounded number of recent shapes."""

    __slots__ = ("_dtype", "_head", "_is_bytes", "_known", "binary_only", "name", "wire_dtype")

    def __init__(self, tensor: Tensor) -> None:
        self.name = tensor.name
        self.wire_dtype = tensor.wire_dtype
        self.binary_only = tensor.element.binary_only
        self._dtype = tensor.np_dtype
        self._is_bytes = tensor.is_bytes
        name = msgspec.json.encode(tensor.name).decode()
        self._head = f'{{"name":{name},"datatype":"{tensor.wire_dtype}","shape":['
        self._known: dict[tuple[int, ...], bytes] = {}

    def to_bytes(self, array: Array) -> Any:
        """The tensor's bytes: `bytes`, or the array itself where it is contiguous."""
        if self._is_bytes:
            return elements.pack(array)
        if array.dtype != self._dtype:
            raise InternalError(
                f"output {self.name!r} has dtype {array.dtype}; {self._dtype} was expected"
            )
        return array if array.flags.c_contiguous else np.ascontiguousarray(array)

    def binary_piece(self, shape: tuple[int, ...], size: int) -> bytes:
        """The output's JSON object for `size` bytes that follow behind the JSON."""
        if self._is_bytes:
            return self._piece(shape, size)
        piece = self._known.get(shape)
        if piece is None:
            if len(self._known) >= _KNOWN_SHAPES:
                self._known.clear()
            piece = self._known[shape] = self._piece(shape, size)
        return piece

    def _piece(self, shape: tuple[int, ...], size: int) -> bytes:
        dims = ",".join(map(str, shape))
        return f'{self._head}{dims}],"parameters":{{"binary_data_size":{size}}}}}'.encode()

    def json_piece(self, array: Array) -> bytes:
        """The output's JSON object with its data; InvalidRequest for BYTES that are not UTF-8."""
        flat = array.reshape(-1)
        data = b",".join(
            self._json_values(flat[start : start + _MOST_AT_ONCE])
            for start in range(0, len(flat), _MOST_AT_ONCE)
        )
        dims = ",".join(map(str, array.shape))
        return b'%s%s],"data":[%s]}' % (self._head.encode(), dims.encode(), data)

    def _json_values(self, flat: Array) -> bytes:
        """The values with a comma between two."""
        values = flat.tolist()
        if self._is_bytes:
            try:
                values = [element.decode() for element in values]
            except UnicodeDecodeError:
                raise InvalidRequest(
                    f"output {self.name!r} is not UTF-8 text, so JSON cannot carry it;"
                    " ask for it with parameters.binary_data true"
                ) from None
        return msgspec.json.encode(values)[1:-1]
