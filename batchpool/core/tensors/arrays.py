"""One input's rows as an array: what a caller brings, in the storage dtype of the declaration.

An array of any layout (strided, big-endian, read-only) must have the declared dtype; so must a
torch tensor. Arrays of one shape in a list are stacked. Python numbers, nested lists of them and
lists of arrays of another dtype are converted where every value fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from batchpool.core.errors import InvalidRequest, TooLarge
from batchpool.core.tensors.dtypes import Array, is_bfloat16
from batchpool.core.tensors.numbers import bfloat16_from_numbers, from_array, from_numbers
from batchpool.core.tensors.packed_strings import PackedStrings
from batchpool.core.tensors.spec import Dim, Tensor
from batchpool.core.tensors.strings import check_lengths, checked_elements, object_array


def as_rows(tensor: Tensor, value: Any) -> Array:
    """`value` as a checked array [n, *row shape] of the tensor's storage dtype."""
    if tensor.is_plain(value) and not tensor.is_bytes:
        return cast(Array, value)
    if tensor.max_bytes is not None:
        if type(value) is PackedStrings:
            check_shape(tensor, value.shape)
            check_lengths(tensor.name, tensor.max_bytes, value.lengths)
            return cast(Array, value)  # which is written into slots as one
        loose = object_array(tensor.name, value)
        check_shape(tensor, loose.shape)
        return checked_elements(tensor.name, tensor.max_bytes, loose)
    if not _is_array(value):
        value = from_lists(tensor, value)
    array = in_storage(tensor, value)
    if not has_dtype(tensor, array):
        raise InvalidRequest(
            f"input {tensor.name!r} has dtype {array.dtype.name}; {tensor.dtype} was expected"
        )
    check_shape(tensor, array.shape)
    return array.astype(tensor.np_dtype, copy=False)


def _is_array(value: Any) -> bool:
    """True for an array or a scalar of numpy, and for a torch tensor."""
    return isinstance(value, (np.ndarray, np.generic)) or _is_torch(value)


def _is_torch(value: Any) -> bool:
    return hasattr(value, "detach")  # told by its methods, since core imports no torch


def in_storage(tensor: Tensor, value: Any) -> Array:
    """An array or torch tensor as a numpy array of its own dtype; bfloat16 as its bit patterns
    where the tensor is bfloat16."""
    array = _of_torch(tensor, value) if _is_torch(value) else np.asarray(value)
    if tensor.element.is_bfloat16 and is_bfloat16(array.dtype):
        return array.view(np.uint16)
    return array


def has_dtype(tensor: Tensor, array: Array) -> bool:
    """True for an array of the declared dtype, in any byte order."""
    return array.dtype is tensor.np_dtype or array.dtype.newbyteorder("=") == tensor.np_dtype


def check_shape(tensor: Tensor, shape: Sequence[int]) -> None:
    """Raise InvalidRequest or TooLarge for a shape [n, ...] that does not fit the declared one."""
    row = shape[1:]
    if len(shape) != len(tensor.shape) + 1 or any(
        not isinstance(want, Dim) and have != want
        for have, want in zip(row, tensor.shape, strict=True)
    ):
        raise InvalidRequest(
            f"input {tensor.name!r} has shape {list(shape)}; {tensor.describe_shape()} was expected"
        )
    for have, most in zip(row, tensor.max_shape, strict=True):
        if have > most:
            raise TooLarge(
                f"input {tensor.name!r} has shape {list(shape)}, larger than a slot holds:"
                f" {tensor.describe_shape()}"
            )


def _of_torch(tensor: Tensor, value: Any) -> Array:
    """A torch tensor on the host as an array; a bfloat16 tensor as its uint16 bit patterns."""
    host = value.detach().cpu().resolve_neg()
    is_half = str(host.dtype) == "torch.bfloat16"
    if is_half and not tensor.element.is_bfloat16:
        raise InvalidRequest(
            f"input {tensor.name!r} has dtype bfloat16; {tensor.dtype} was expected"
        )
    try:
        if is_half:
            # numpy has no bfloat16. As float32 each value keeps its bits in the upper half.
            wide: Array = host.float().numpy()
            return (wide.view(np.uint32) >> 16).astype(np.uint16)
        return np.asarray(host.numpy())
    except (TypeError, RuntimeError) as exc:  # float8, quantized, sparse, conjugated
        raise InvalidRequest(
            f"input {tensor.name!r} is a {host.layout} tensor of {host.dtype};"
            f" a dense one of {tensor.dtype} was expected"
        ) from exc


def from_lists(tensor: Tensor, value: Any, kind: str = "input") -> Array:
    """A number or (nested) lists of numbers or arrays as one array of the declared dtype.

    The shape is that of the lists. kind: "input", "output" or "feature", for messages. Raises
    InvalidRequest for ragged lists, and for a value that is no number or does not fit the dtype.
    """
    if not isinstance(value, (list, tuple, int, float, bool)):
        raise InvalidRequest(
            f"{kind} {tensor.name!r} is a {type(value).__name__};"
            f" an array {tensor.describe_shape()} of {tensor.dtype} was expected"
        )
    stacked = _stacked(tensor, value)
    if stacked is not None:
        if has_dtype(tensor, stacked):
            return stacked
        return from_array(tensor.name, tensor.element, stacked, kind)
    try:
        loose = np.array(value, dtype=object)
    except ValueError as exc:
        raise InvalidRequest(f"{kind} {tensor.name!r}: the nested lists are ragged") from exc
    if tensor.element.is_bfloat16:
        return bfloat16_from_numbers(tensor.name, loose, loose.shape, kind)
    return from_numbers(tensor.name, tensor.element, loose, loose.shape, kind)


def _stacked(tensor: Tensor, value: Any) -> Array | None:
    """Arrays of one dtype and shape in (nested) lists as one array, without a look at their values.

    None for anything else.
    """
    if not isinstance(value, (list, tuple)) or not value:
        return None
    kinds = set(map(type, value))
    parts: list[Array]
    if kinds == {np.ndarray}:
        parts = list(value)
    elif all(map(_is_array, value)):
        parts = [in_storage(tensor, part) for part in value]
    elif kinds <= {list, tuple}:
        parts = []
        for nested in value:
            part = _stacked(tensor, nested)
            if part is None:
                return None
            parts.append(part)
    else:
        return None
    dtype = parts[0].dtype
    shapes = {part.shape for part in parts}
    if len(shapes) > 1 or not all(part.dtype is dtype or part.dtype == dtype for part in parts):
        return None
    shape = shapes.pop()
    joined = np.concatenate(parts) if shape else np.array(parts, dtype=dtype)
    return in_storage(tensor, joined.reshape(len(parts), *shape))
