"""Conversion of Python and numpy numbers to arrays of a declared dtype, without silent loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from batchpool.core.errors import InvalidRequest
from batchpool.core.tensors.dtypes import DTYPES, Array, DType

_BFLOAT16_EXPONENT = 0x7F80  # all bits of the exponent set: an infinity or a NaN


def from_numbers(
    name: str, dtype: DType, values: Any, shape: Sequence[int], kind: str = "input"
) -> Array:
    """Convert Python or numpy numbers (flat or nested) to an array of `shape`.

    Integers are never wrapped, fractions never cut, and bools never taken for numbers; a bool
    tensor takes 0 and 1. A finite float that overflows the dtype is refused, not made infinite.
    Floats are rounded to the dtype's precision.

    name, kind: the tensor's name and "input", "output" or "parameter", for messages.  Raises
    InvalidRequest for a value that does not fit, a wrong count, ragged lists and bfloat16.
    """
    try:
        loose = np.array(values, dtype=object)
    except ValueError as exc:
        raise InvalidRequest(f"{kind} {name!r}: the nested lists are ragged") from exc
    if loose.size != math.prod(shape):
        raise InvalidRequest(
            f"{kind} {name!r} has {loose.size} values; shape {list(shape)} needs {math.prod(shape)}"
        )
    flat = loose.reshape(-1).tolist()
    kinds = set(map(type, flat))
    if list in kinds or tuple in kinds:
        raise InvalidRequest(f"{kind} {name!r}: the nested lists are ragged")
    if any(issubclass(kind_of, np.generic) for kind_of in kinds):
        flat = [v.item() if isinstance(v, np.generic) else v for v in flat]
        kinds = set(map(type, flat))
    if dtype.is_bfloat16:
        raise InvalidRequest(
            f"{kind} {name!r} is bfloat16, which cannot be given as numbers; send it binary"
        )
    if not _all_fit(flat, kinds, dtype.storage):
        at = next((at for at, v in enumerate(flat) if not _fits(v, dtype.storage)), 0)
        raise _does_not_fit(name, dtype, flat[at], kind, _place(at, shape))
    return _convert(name, dtype, flat, kind).reshape(tuple(shape))


def from_array(name: str, dtype: DType, array: Array, kind: str = "input") -> Array:
    """Convert an array of another dtype by the rules of `from_numbers`, which see."""
    found, wanted = array.dtype.kind, dtype.storage.kind
    whole = found in "iu"
    if dtype.is_bfloat16 or not (
        (wanted == "f" and found in "iuf")
        or (wanted in "iu" and whole)
        or (wanted == "b" and whole)
    ):
        return from_numbers(name, dtype, array.tolist(), array.shape, kind)
    if wanted == "b":
        wrong = (array != 0) & (array != 1)
    elif wanted == "f":
        with np.errstate(over="ignore"):
            wrong = np.isinf(array.astype(dtype.storage)) & np.isfinite(array)
    else:
        limits = np.iinfo(dtype.storage)
        wrong = (array < int(limits.min)) | (array > int(limits.max))
    if wrong.any():
        raise _does_not_fit(name, dtype, array[wrong].reshape(-1)[0].item(), kind)
    return array.astype(dtype.storage)


def _all_fit(flat: list[Any], kinds: set[type], storage: np.dtype[Any]) -> bool:
    if storage.kind == "b":
        return kinds <= {bool} or (kinds <= {bool, int} and all(v in (0, 1) for v in flat))
    if storage.kind in "iu":
        limits = np.iinfo(storage)
        return kinds <= {int} and (
            not flat or (min(flat) >= int(limits.min) and max(flat) <= int(limits.max))
        )
    return kinds <= {int, float}


def as_row_value(name: str, dtype: DType, value: Any) -> Any:
    """One scalar of the parameter `name` as it is stored; a bfloat16 as its bit pattern.

    A bfloat16 is rounded to nearest. Raises InvalidRequest for a value that is no scalar or
    does not fit the dtype.
    """
    if isinstance(value, (list, tuple, np.ndarray)):
        raise InvalidRequest(
            f"parameter {name!r} is a {type(value).__name__}; one {dtype.name} was expected"
        )
    if dtype.is_bfloat16:
        return _checked_bfloat16(name, dtype, value)
    return from_numbers(name, dtype, [value], (1,), "parameter")[0].item()


def _checked_bfloat16(name: str, dtype: DType, value: Any) -> int:
    number = value.item() if isinstance(value, np.generic) else value
    if type(number) not in (int, float):
        raise _does_not_fit(name, dtype, number, "parameter")
    try:
        bits = bfloat16_bits(number)
    except OverflowError:  # an integer larger than any float
        raise _does_not_fit(name, dtype, number, "parameter") from None
    if bits & _BFLOAT16_EXPONENT == _BFLOAT16_EXPONENT and math.isfinite(number):
        raise _does_not_fit(name, dtype, number, "parameter")
    return bits


def stored_number(name: str, dtype: DType, value: float) -> Any:
    """One number as the storage dtype holds it: the bits of a bfloat16, else the number.

    A float without a fraction is taken for an integer tensor. Raises InvalidRequest for a
    value that does not fit the dtype of the tensor `name`.
    """
    if dtype.is_bfloat16:
        return bfloat16_bits(value)
    if dtype.storage.kind in "iub" and isinstance(value, float) and value.is_integer():
        value = int(value)
    return from_numbers(name, dtype, [value], (1,))[0].item()


def bfloat16_bits(value: float) -> int:
    """The bit pattern of the bfloat16 nearest to a number, ties to even."""
    if math.isnan(value):
        return 0x7FC0
    with np.errstate(over="ignore"):
        bits = int(np.float32(value).view(np.uint32))
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def bfloat16_from_numbers(name: str, values: Any, shape: Sequence[int], kind: str) -> Array:
    """`from_numbers` for bfloat16: the bit patterns of the nearest values, as uint16."""
    singles = from_numbers(name, DTYPES["float32"], values, shape, kind)
    bits: Array = singles.view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    bits[np.isnan(singles)] = 0x7FC0
    wrong = np.isfinite(singles) & (bits & _BFLOAT16_EXPONENT == _BFLOAT16_EXPONENT)
    if wrong.any():
        raise _does_not_fit(name, DTYPES["bfloat16"], singles[wrong].reshape(-1)[0].item(), kind)
    return bits.astype(np.uint16)


def _convert(name: str, dtype: DType, flat: list[Any], kind: str) -> Array:
    with np.errstate(over="ignore"):
        try:
            array = np.array(flat, dtype=dtype.storage)
        except OverflowError as exc:
            raise InvalidRequest(f"{kind} {name!r}: a value is too large") from exc
    if dtype.storage.kind == "f" and np.isinf(array).any():
        for at in np.flatnonzero(np.isinf(array)).tolist():
            if math.isfinite(flat[at]):
                raise _does_not_fit(name, dtype, flat[at], kind)
    return array


def _fits(value: Any, storage: np.dtype[Any]) -> bool:
    if storage.kind == "b":
        return type(value) is bool or (type(value) is int and value in (0, 1))
    if storage.kind in "iu":
        limits = np.iinfo(storage)
        return type(value) is int and int(limits.min) <= value <= int(limits.max)
    return type(value) in (int, float)


def _place(at: int, shape: Sequence[int]) -> str:
    """The place of an element among several, as the end of a message: ", at [row, ...]"."""
    if math.prod(shape) < 2:
        return ""
    return f", at {[int(index) for index in np.unravel_index(at, tuple(shape))]}"


def _does_not_fit(
    name: str, dtype: DType, value: Any, kind: str, place: str = ""
) -> InvalidRequest:
    text = repr(value)
    text = text if len(text) <= 60 else text[:57] + "..."
    return InvalidRequest(f"{kind} {name!r}: the value {text} does not fit {dtype.name}{place}")
