"""Request rows: what a caller brings, checked against a model's specification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from batchpool.core.errors import InvalidRequest, TooLarge
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.numbers import as_row_value, from_numbers
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.core.tensors.strings import checked_elements, object_array


@dataclass(slots=True)
class Rows:
    """n checked rows that can be written into slots.

    tensors: every input as an array [n, *row shape], native byte order, storage dtype (an object
    array of `bytes` for a bytes tensor).  parameters: a value for each declared parameter, which
    applies to all n rows.
    """

    n: int
    tensors: dict[str, Array]
    parameters: dict[str, Any]


def check_rows(
    spec: ModelSpec, tensors: Mapping[str, Any], parameters: Mapping[str, Any] | None = None
) -> Rows:
    """Check a caller's tensors and parameters: names, dtypes, shapes, row counts.

    Arrays may have any layout (strided, big-endian, read-only) but must have the declared dtype.
    Python numbers and lists are converted to it where they fit. Raises InvalidRequest that names
    the tensor, what it is and what was expected; TooLarge for a row that no slot can hold.
    """
    declared = {t.name: t for t in spec.inputs}
    for name in tensors:
        if name not in declared:
            hint = ": it is a parameter" if any(name == p.name for p in spec.parameters) else ""
            expected = ", ".join(map(repr, declared))
            raise InvalidRequest(
                f"model {spec.name!r} has no input {name!r}{hint}; it has {expected}"
            )
    checked: dict[str, Array] = {}
    n = -1
    for tensor in spec.inputs:
        if tensor.name not in tensors:
            raise InvalidRequest(f"input {tensor.name!r} of model {spec.name!r} is missing")
        array = as_rows(tensor, tensors[tensor.name])
        if n >= 0 and array.shape[0] != n:
            raise InvalidRequest(
                f"input {tensor.name!r} has {array.shape[0]} rows, "
                f"but input {spec.inputs[0].name!r} has {n}"
            )
        n = array.shape[0]
        checked[tensor.name] = array
    if n < 1:
        raise InvalidRequest(f"input {spec.inputs[0].name!r} has 0 rows; at least 1 was expected")
    check_named(spec, checked)
    return Rows(n, checked, check_parameters(spec, parameters or {}))


def check_named(spec: ModelSpec, arrays: Mapping[str, Array]) -> None:
    """Raise InvalidRequest where dynamic dimensions of one name differ in size."""
    if not spec.has_dynamic_inputs:
        return
    first: dict[str, tuple[str, int]] = {}
    for tensor in spec.inputs:
        for at in tensor.dynamic:
            dim = tensor.shape[at]
            if isinstance(dim, Dim) and dim.name:
                size = arrays[tensor.name].shape[1 + at]
                other, known = first.setdefault(dim.name, (tensor.name, size))
                if size != known:
                    raise InvalidRequest(
                        f"input {tensor.name!r} has {size} along {dim.name!r},"
                        f" but input {other!r} has {known}"
                    )


def check_parameters(spec: ModelSpec, given: Mapping[str, Any]) -> dict[str, Any]:
    """The value of every declared parameter, given or default.

    Raises InvalidRequest for a missing, unknown or illegal parameter.
    """
    values: dict[str, Any] = {}
    for parameter in spec.parameters:
        value = given.get(parameter.name)
        if value is None:
            value = parameter.default
        if value is None:
            raise InvalidRequest(
                f"parameter {parameter.name!r} of model {spec.name!r} is missing and has no default"
            )
        values[parameter.name] = as_row_value(parameter.name, parameter.element, value)
    for name in given:
        if name not in values:
            known = ", ".join(map(repr, values)) or "none"
            raise InvalidRequest(
                f"model {spec.name!r} has no parameter {name!r}; it declares {known}"
            )
    return values


def as_rows(tensor: Tensor, value: Any) -> Array:
    """`value` as a checked array [n, *row shape] of the tensor's storage dtype."""
    if tensor.is_plain(value) and not tensor.is_bytes:
        return cast(Array, value)
    if tensor.max_bytes is not None:
        loose = object_array(tensor.name, value)
        check_shape(tensor, loose.shape)
        return checked_elements(tensor.name, tensor.max_bytes, loose)
    if hasattr(value, "detach"):  # a torch tensor: told by its methods, since core imports no torch
        value = _of_torch(tensor, value)
    if not isinstance(value, (np.ndarray, np.generic)):
        value = _of_python(tensor, value)
    array = np.asarray(value)
    if array.dtype.newbyteorder("=") != tensor.np_dtype:
        raise InvalidRequest(
            f"input {tensor.name!r} has dtype {array.dtype.name}; {tensor.dtype} was expected"
        )
    check_shape(tensor, array.shape)
    return array.astype(tensor.np_dtype, copy=False)


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
    is_bfloat16 = str(host.dtype) == "torch.bfloat16"
    if is_bfloat16 and not tensor.element.is_bfloat16:
        raise InvalidRequest(
            f"input {tensor.name!r} has dtype bfloat16; {tensor.dtype} was expected"
        )
    try:
        if is_bfloat16:
            # numpy has no bfloat16. As float32 each value keeps its bits in the upper half.
            wide: Array = host.float().numpy()
            return (wide.view(np.uint32) >> 16).astype(np.uint16)
        return np.asarray(host.numpy())
    except (TypeError, RuntimeError) as exc:  # float8, quantized, sparse, conjugated
        raise InvalidRequest(
            f"input {tensor.name!r} is a {host.layout} tensor of {host.dtype};"
            f" a dense one of {tensor.dtype} was expected"
        ) from exc


def _of_python(tensor: Tensor, value: Any) -> Array:
    if not isinstance(value, (list, tuple, int, float, bool)):
        raise InvalidRequest(
            f"input {tensor.name!r} is a {type(value).__name__};"
            f" an array {tensor.describe_shape()} of {tensor.dtype} was expected"
        )
    try:
        shape = np.array(value, dtype=object).shape
    except ValueError as exc:
        raise InvalidRequest(f"input {tensor.name!r}: the nested lists are ragged") from exc
    check_shape(tensor, shape)
    return from_numbers(tensor.name, tensor.element, value, shape)
