"""The dtypes that a tensor may have: the name in Python, the wire protocol's name, the storage.

A dtype has numpy's name in Python ("float32") and the Open Inference Protocol's name on the wire
("FP32"). "bfloat16" has no numpy dtype: its values are stored as their uint16 bit patterns.
"bytes" is a tensor of byte strings, stored as an object array of `bytes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class DType:
    """The dtype of a tensor's elements.

    name: numpy's name, or "bfloat16", or "bytes".  wire: the wire protocol's name.
    storage: the numpy dtype that holds the elements in memory, in native byte order.
    """

    name: str
    wire: str
    storage: np.dtype[Any] = field(repr=False)

    @property
    def is_bytes(self) -> bool:
        return self.name == "bytes"

    @property
    def is_bfloat16(self) -> bool:
        return self.name == "bfloat16"

    @property
    def binary_only(self) -> bool:
        """True for a dtype that JSON cannot carry: FP16 and BF16 travel as bytes."""
        return self.name in ("float16", "bfloat16")


DTYPES: dict[str, DType] = {
    name: DType(name, wire, np.dtype(storage))
    for name, storage, wire in (
        ("bool", "?", "BOOL"),
        ("uint8", "u1", "UINT8"),
        ("uint16", "u2", "UINT16"),
        ("uint32", "u4", "UINT32"),
        ("uint64", "u8", "UINT64"),
        ("int8", "i1", "INT8"),
        ("int16", "i2", "INT16"),
        ("int32", "i4", "INT32"),
        ("int64", "i8", "INT64"),
        ("float16", "f2", "FP16"),
        ("bfloat16", "u2", "BF16"),
        ("float32", "f4", "FP32"),
        ("float64", "f8", "FP64"),
        ("bytes", "O", "BYTES"),
    )
}
DTYPE_OF_WIRE: dict[str, str] = {dtype.wire: dtype.name for dtype in DTYPES.values()}


def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """True for the bfloat16 of ml_dtypes, which jax and others register with numpy."""
    return dtype.kind == "V" and dtype.name == "bfloat16"


def filled(shape: Sequence[int] | int, value: Any, dtype: np.dtype[Any]) -> Array:
    """An array of one value. `numpy.full` would cut NULs off the end of bytes."""
    array: Array = np.empty(shape, dtype=dtype)
    array.fill(value)
    return array
