"""Request rows: what a caller brings, checked against a model's specification."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from batchpool.core.errors import InvalidRequest
from batchpool.core.tensors.columns import rows_in_order
from batchpool.core.tensors.dtypes import Array, filled
from batchpool.core.tensors.least_sizes import check_least_sizes
from batchpool.core.tensors.ragged import Sizes, are_ragged, as_sized_rows
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor

_MAX_TOKENS = "max_tokens"  # the parameter that every generator has


@dataclass(slots=True)
class Rows:
    """n checked rows that can be written into slots.

    tensors: every input as an array [n, *row shape], native byte order, storage dtype (an object
    array of `bytes` for a bytes tensor, `PackedStrings` for a column of Arrow, or a memoryview of
    the bytes of a fixed tensor of numbers).  parameters: a value for each declared parameter as
    `Tensor.scalar` gives it, which applies to all n rows.  sizes: int64 [n, dynamic dimensions] of
    each input whose rows differ in size; its array is padded to the largest.
    """

    n: int
    tensors: dict[str, Array]
    parameters: dict[str, Any]
    sizes: dict[str, Sizes] = field(default_factory=dict)


def check_rows(
    spec: ModelSpec,
    tensors: Mapping[str, Any],
    parameters: Mapping[str, Any] | None = None,
    *,
    most_padded_bytes: int | None = None,
) -> Rows:
    """Check a caller's tensors and parameters: names, dtypes, shapes, row counts.

    Arrays may have any layout (strided, big-endian, read-only) but must have the declared dtype.
    Python numbers and lists, and columns of data frames, are converted to it where they fit. Rows
    of different sizes are a list with an array or a list for each. most_padded_bytes: see
    `as_sized_rows`. Raises InvalidRequest that names
    the tensor, what it is and what was expected; TooLarge for a row that no slot can hold.
    """
    if not parameters and not spec.parameters:
        plain = _plain_rows(spec, tensors)
        if plain is not None:
            return plain
    check_input_names(spec, tensors)
    checked: dict[str, Array] = {}
    sizes: dict[str, Sizes] = {}
    n = -1
    for tensor in spec.inputs:
        if tensor.name not in tensors:
            if tensor.default is not None:
                continue
            raise InvalidRequest(f"input {tensor.name!r} of model {spec.name!r} is missing")
        value = rows_in_order(tensor, tensors[tensor.name])
        array, own = as_sized_rows(tensor, value, most_padded_bytes)
        if own is not None:
            sizes[tensor.name] = own
        if n >= 0 and array.shape[0] != n:
            raise InvalidRequest(
                f"input {tensor.name!r} has {array.shape[0]} rows, "
                f"but input {next(iter(checked))!r} has {n}"
            )
        n = array.shape[0]
        checked[tensor.name] = array
    if n < 1:
        raise InvalidRequest(f"input {next(iter(checked))!r} has 0 rows; at least 1 was expected")
    fill_defaults(spec, n, checked, sizes)
    check_named(spec, checked, sizes)
    check_least_sizes(spec, checked, sizes)
    return Rows(n, checked, check_parameters(spec, parameters or {}), sizes)


def unknown_input(spec: ModelSpec, names: Iterable[str]) -> str | None:
    """The first of these names that no input has; None where all are inputs."""
    declared = {tensor.name for tensor in spec.inputs}
    return next((name for name in names if name not in declared), None)


def check_input_names(spec: ModelSpec, names: Iterable[str]) -> None:
    """Raise InvalidRequest for a name that no input has."""
    if (name := unknown_input(spec, names)) is None:
        return
    is_parameter = any(name == each.name for each in spec.parameters)
    hint = ": it is a parameter, which stands in `parameters`" if is_parameter else ""
    expected = ", ".join(repr(tensor.name) for tensor in spec.inputs)
    raise InvalidRequest(f"model {spec.name!r} has no input {name!r}{hint}; it has {expected}")


def _plain_rows(spec: ModelSpec, tensors: Mapping[str, Any]) -> Rows | None:
    """The rows where every input, and nothing else, is an array that stays as it is.

    None where one is not, or something is wrong: what, the steps of `check_rows` tell.
    """
    checked: dict[str, Array] = {}
    n = 0
    for tensor in spec.inputs:
        array = tensors.get(tensor.name)
        if tensor.is_bytes or not tensor.is_plain(array):
            return None
        assert array is not None
        rows = array.shape[0]
        if rows != n and checked:
            return None
        n = rows
        checked[tensor.name] = array
    if n == 0 or len(tensors) != len(checked):
        return None
    return Rows(n, checked, {}, {})


def fill_defaults(
    spec: ModelSpec, n: int, arrays: dict[str, Array], sizes: dict[str, Sizes]
) -> None:
    """Add n rows of every input that is not there and has a default.

    A dynamic dimension has the size, in each row, of those of its name. sizes: as in `Rows`.
    """
    for tensor in spec.inputs:
        if tensor.name in arrays or tensor.default is None:
            continue
        shape = list(tensor.max_shape)
        own = np.empty((n, len(tensor.dynamic)), dtype=np.int64)
        for k, at in enumerate(tensor.dynamic):
            shape[at], own[:, k] = _size_of_name(spec, tensor.shape[at], arrays, sizes)
        value = tensor.scalar(tensor.default)
        arrays[tensor.name] = filled((n, *shape), value, tensor.np_dtype)
        if are_ragged(own):
            sizes[tensor.name] = own


def _size_of_name(
    spec: ModelSpec, dim: int | Dim, arrays: Mapping[str, Array], sizes: Mapping[str, Sizes]
) -> tuple[int, Array | int]:
    """The size of the arrays along the named dimension, and that in each row."""
    assert isinstance(dim, Dim)
    for tensor in spec.inputs:
        for k, at in enumerate(tensor.dynamic):
            other = tensor.shape[at]
            if tensor.name in arrays and isinstance(other, Dim) and other.name == dim.name:
                size = arrays[tensor.name].shape[1 + at]
                own = sizes.get(tensor.name)
                return size, size if own is None else own[:, k]
    raise InvalidRequest(f"no input tells the size of the dimension {dim.name!r}")


def check_named(spec: ModelSpec, arrays: Mapping[str, Array], sizes: Mapping[str, Sizes]) -> None:
    """Raise InvalidRequest where dynamic dimensions of one name differ in size in a row.

    sizes: of the inputs whose rows differ, as in `Rows`.
    """
    if not spec.has_dynamic_inputs:
        return
    first: dict[str, tuple[str, Array]] = {}
    for tensor in spec.inputs:
        for k, at in enumerate(tensor.dynamic):
            dim = tensor.shape[at]
            if isinstance(dim, Dim) and dim.name:
                own = sizes.get(tensor.name)
                array = arrays[tensor.name]
                size = np.full(len(array), array.shape[1 + at]) if own is None else own[:, k]
                other, known = first.setdefault(dim.name, (tensor.name, size))
                if not np.array_equal(size, known):
                    raise _named_differ(tensor.name, dim.name, other, size, known)


def _named_differ(name: str, dim: str, other: str, size: Array, known: Array) -> InvalidRequest:
    row = int((size != known).argmax())
    where = f" in row {row}" if len({*size.tolist()}) > 1 or len({*known.tolist()}) > 1 else ""
    return InvalidRequest(
        f"input {name!r} has {size[row]} along {dim!r}{where}, but input {other!r} has {known[row]}"
    )


def check_parameters(spec: ModelSpec, given: Mapping[str, Any]) -> dict[str, Any]:
    """The value of every declared parameter, given or default.

    Raises InvalidRequest for a missing, unknown or illegal parameter, and for more or fewer tokens
    than a generator makes; None is no value, not even where there is a default.
    """
    values: dict[str, Any] = {}
    for parameter in spec.parameters:
        value = given.get(parameter.name, parameter.default)
        if value is None:
            raise _no_value(spec, parameter, given)
        values[parameter.name] = parameter.scalar(value)
    for name in given:
        if name not in values:
            known = ", ".join(map(repr, values)) or "none"
            raise InvalidRequest(
                f"model {spec.name!r} has no parameter {name!r}; it declares {known}"
            )
    if spec.generates and _MAX_TOKENS in given:
        _check_max_tokens(spec, int(values[_MAX_TOKENS]))
    return values


def _check_max_tokens(spec: ModelSpec, wanted: int) -> None:
    most = spec.outputs[0].max_shape[0]
    if not 1 <= wanted <= most:
        raise InvalidRequest(
            f"parameter {_MAX_TOKENS!r} is {wanted}; model {spec.name!r} makes 1 to {most} tokens"
        )


def _no_value(spec: ModelSpec, parameter: Tensor, given: Mapping[str, Any]) -> InvalidRequest:
    if parameter.name in given:
        rest = (
            " was expected" if parameter.default is None else ", or no such parameter, was expected"
        )
        return InvalidRequest(f"parameter {parameter.name!r} is None; one {parameter.dtype}{rest}")
    return InvalidRequest(
        f"parameter {parameter.name!r} of model {spec.name!r} is missing and has no default"
    )
