"""Python numbers as arrays of a declared dtype, refused wherever the dtype cannot hold them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from batchpool.core.errors import InvalidRequest

if TYPE_CHECKING:
    from batchpool.core.tensors.spec import Tensor

Array = npt.NDArray[Any]
_INFINITE = 0x7F80  # the exponent of a bfloat16 that is no finite number


def from_numbers(tensor: Tensor, values: Any, shape: Sequence[int], kind: str = "input") -> Array:
    """Python or numpy numbers (flat or nested) as an array of `shape`.

    Integers are never wrapped, fractions never cut, bools never taken for numbers (0 and 1
    are taken for bools), and a float that overflows the dtype is refused, not made infinite.
    Floats are rounded to the dtype's precision.
    """
    try:
        loose = np.array(values, dtype=object)
    except ValueError as exc:
        raise InvalidRequest(f"{kind} {tensor.name!r}: the nested lists are ragged") from exc
    if loose.size != math.prod(shape):
        raise InvalidRequest(
            f"{kind} {tensor.name!r} has {loose.size} values;"
            f" shape {list(shape)} needs {math.prod(shape)}"
        )
    flat = loose.reshape(-1).tolist()
    kinds = set(map(type, flat))
    if any(issubclass(kind_of, np.generic) for kind_of in kinds):
        flat = [v.item() if isinstance(v, np.generic) else v for v in flat]
        kinds = set(map(type, flat))
    if tensor.dtype == "bfloat16":
        raise InvalidRequest(
            f"{kind} {tensor.name!r} is bfloat16, which cannot be given as numbers; send it binary"
        )
    dtype = tensor.np_dtype
    if dtype.kind == "b":
        right = kinds <= {bool} or (kinds <= {bool, int} and all(v in (0, 1) for v in flat))
    elif dtype.kind in "iu":
        limits = np.iinfo(dtype)
        right = kinds <= {int} and (
            not flat or (min(flat) >= int(limits.min) and max(flat) <= int(limits.max))
        )
    else:
        right = kinds <= {int, float}
    if not right:
        wrong = next((v for v in flat if not _fits(v, dtype)), flat[0] if flat else None)
        raise _does_not_fit(tensor, wrong, kind)
    return _convert(tensor, flat, kind).reshape(tuple(shape))


def as_row_value(parameter: Tensor, value: Any) -> Any:
    """One scalar of a parameter's dtype, as it is stored: of a bfloat16 its bits, rounded to
    nearest. InvalidRequest where it is none or does not fit."""
    if isinstance(value, (list, tuple, np.ndarray)):
        raise InvalidRequest(
            f"parameter {parameter.name!r} is a {type(value).__name__};"
            f" one {parameter.dtype} was expected"
        )
    if parameter.dtype == "bfloat16":
        return _bfloat16_of(parameter, value)
    return from_numbers(parameter, [value], (1,), "parameter")[0].item()


def _bfloat16_of(parameter: Tensor, value: Any) -> int:
    number = value.item() if isinstance(value, np.generic) else value
    if type(number) not in (int, float):
        raise _does_not_fit(parameter, number, "parameter")
    try:
        bits = bfloat16_bits(number)
    except OverflowError:  # an integer beyond every float
        raise _does_not_fit(parameter, number, "parameter") from None
    if bits & _INFINITE == _INFINITE and math.isfinite(number):
        raise _does_not_fit(parameter, number, "parameter")
    return bits


def stored_number(tensor: Tensor, value: float) -> Any:
    """One number as the tensor's storage dtype holds it: a bfloat16's bits, else itself."""
    if tensor.dtype == "bfloat16":
        return bfloat16_bits(value)
    if tensor.np_dtype.kind in "iub" and isinstance(value, float) and value.is_integer():
        value = int(value)
    return from_numbers(tensor, [value], (1,))[0].item()


def bfloat16_bits(value: float) -> int:
    """The bit pattern of the bfloat16 nearest to a number, ties to even."""
    if math.isnan(value):
        return 0x7FC0
    with np.errstate(over="ignore"):
        bits = int(np.float32(value).view(np.uint32))
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def _convert(tensor: Tensor, flat: list[Any], kind: str) -> Array:
    dtype = tensor.np_dtype
    with np.errstate(over="ignore"):
        try:
            array = np.array(flat, dtype=dtype)
        except OverflowError as exc:
            raise InvalidRequest(f"{kind} {tensor.name!r}: a value is too large") from exc
    if dtype.kind == "f" and np.isinf(array).any():
        for at in np.flatnonzero(np.isinf(array)).tolist():
            if math.isfinite(flat[at]):
                raise _does_not_fit(tensor, flat[at], kind)
    return array


def _fits(value: Any, dtype: np.dtype[Any]) -> bool:
    if dtype.kind == "b":
        return type(value) is bool or (type(value) is int and value in (0, 1))
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return type(value) is int and int(limits.min) <= value <= int(limits.max)
    return type(value) in (int, float)


def _does_not_fit(tensor: Tensor, value: Any, kind: str) -> InvalidRequest:
    text = repr(value)
    text = text if len(text) <= 60 else text[:57] + "..."
    return InvalidRequest(f"{kind} {tensor.name!r}: the value {text} does not fit {tensor.dtype}")
