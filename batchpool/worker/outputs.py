"""Checks of a model's outputs against its declaration, by row where that is possible.

Nothing unchecked reaches a slot: a wrong name, row count, dtype or shape fails the batch with
an error that names the output; one row's output that does not fit its slot fails that row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any

import numpy as np

from batchpool.core.errors import InvalidInput, InvalidRequest, ModelError
from batchpool.core.tensors.arrays import from_lists, has_dtype, in_storage
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.worker.backends.backend import FAILED_ROWS, IN_PLACE, describe_error
from batchpool.worker.failed_rows import failed_rows, with_blanks


@dataclass
class CheckedOutputs:
    """The outputs of the real rows, ready to be stored, and the failed rows {row: why}.

    An output is an array [rows, *row shape] or a list of one array per row. refused: the rows
    whose input the model refused as invalid.
    """

    outputs: dict[str, Array | list[Array]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    refused: dict[int, InvalidInput] = field(default_factory=dict)


def check_outputs(
    spec: ModelSpec,
    found: Any,
    n: int,
    sizes: Mapping[str, Array | None],
    rows: int | None = None,
) -> CheckedOutputs:
    """Check one call's return value: n rows, of which the first `rows` are real (default: all).

    A backend may have checked its outputs itself; they are returned as they are.

    Outputs of padding rows are dropped unchecked. sizes: the inputs' dynamic sizes, at least
    [rows, dynamic dimensions]. Raises ModelError where the error concerns the whole batch.
    """
    if isinstance(found, CheckedOutputs):
        return found
    rows, noun = n if rows is None else rows, spec.output_noun
    if not isinstance(found, Mapping):
        advice = ": it is called and not awaited, so define it without async"
        raise ModelError(
            f"model {spec.name!r} returned a {type(found).__name__};"
            f" a dict of its {noun}s was expected{advice * isawaitable(found)}"
        )
    declared = {t.name for t in spec.outputs}
    for name in found:
        if name not in declared and name is not FAILED_ROWS:
            raise ModelError(
                f"model {spec.name!r} returned an undeclared {noun} {name!r}; it declares"
                f" {', '.join(map(repr, sorted(declared)))}"
            )
    named = _named_sizes(spec, sizes)
    checked = CheckedOutputs()
    by_model = failed_rows(found, rows)
    for tensor in spec.outputs:
        if tensor.name not in found:
            raise ModelError(f"model {spec.name!r} returned no {noun} {tensor.name!r}")
        value = found[tensor.name]
        if value is IN_PLACE:
            continue
        if by_model:
            value = with_blanks(tensor, value, by_model, rows)
        if tensor.is_bytes:
            checked.outputs[tensor.name] = _bytes_output(
                noun, tensor, value, n, rows, checked.failed
            )
        elif tensor.dynamic:
            checked.outputs[tensor.name] = _dynamic_output(
                noun, tensor, value, n, rows, named, checked.failed
            )
        else:
            checked.outputs[tensor.name] = _fixed_output(noun, tensor, value, n, rows)
    for row, error in by_model.items():
        if isinstance(error, InvalidInput):
            checked.refused[row] = error
        else:
            checked.failed[row] = describe_error(error)
    for row in checked.refused:
        checked.failed.pop(row, None)
    return checked


def _named_sizes(spec: ModelSpec, sizes: Mapping[str, Array | None]) -> dict[str, Array]:
    """The sizes [n] of every named dynamic dimension of the inputs."""
    named: dict[str, Array] = {}
    for tensor in spec.inputs:
        own = sizes.get(tensor.name)
        for k, at in enumerate(tensor.dynamic):
            dim = tensor.shape[at]
            if isinstance(dim, Dim) and dim.name and own is not None:
                named[dim.name] = own[:, k]
    return named


def _wrong(noun: str, tensor: Tensor, what: str, expected: str) -> ModelError:
    return ModelError(f"{noun} {tensor.name!r} {what}; {expected} was expected")


def _as_array(noun: str, tensor: Tensor, value: Any) -> Array:
    if isinstance(value, (list, tuple, int, float)):
        try:
            value = from_lists(tensor, value, noun)
        except InvalidRequest as exc:
            raise ModelError(exc.message) from None
    if not isinstance(value, (np.ndarray, np.generic)):
        raise _wrong(noun, tensor, f"is a {type(value).__name__}", "an array or a list of numbers")
    array = in_storage(tensor, value)
    if not has_dtype(tensor, array):
        raise _wrong(noun, tensor, f"has dtype {array.dtype.name}", tensor.dtype)
    return array


def _fixed_output(noun: str, tensor: Tensor, value: Any, n: int, rows: int) -> Array:
    if isinstance(value, (list, tuple)):
        return _stack(noun, tensor, value, n, rows)
    array = _as_array(noun, tensor, value)
    if array.shape != (n, *tensor.max_shape):
        expected = str([n, *tensor.max_shape])
        raise _wrong(noun, tensor, f"has shape {list(array.shape)}", expected)
    return array if rows == n else array[:rows]


def _stack(noun: str, tensor: Tensor, value: Sequence[Any], n: int, rows: int) -> Array:
    """The array [rows, *row shape] of a list of n rows."""
    if len(value) != n:
        raise _wrong(noun, tensor, f"has {len(value)} rows", str(n))
    if not any(isinstance(row, (np.ndarray, np.generic)) for row in value):
        return _fixed_output(noun, tensor, _as_array(noun, tensor, list(value[:rows])), rows, rows)
    stacked = np.empty((rows, *tensor.max_shape), dtype=tensor.np_dtype)
    for i, row in enumerate(value[:rows]):
        array = _as_array(noun, tensor, row)
        if array.shape != tensor.max_shape:
            expected = str(list(tensor.max_shape))
            raise _wrong(noun, tensor, f"has shape {list(array.shape)} in row {i}", expected)
        stacked[i] = array
    return stacked


def _dynamic_output(
    noun: str,
    tensor: Tensor,
    value: Any,
    n: int,
    rows: int,
    named: Mapping[str, Array],
    failed: dict[int, str],
) -> Array | list[Array]:
    if isinstance(value, (list, tuple)):
        if len(value) != n:
            raise _wrong(noun, tensor, f"has {len(value)} rows", str(n))
        if _are_stored_runs(tensor, value):
            return list(value[:rows])
        return [_one_row(noun, tensor, row, i, failed) for i, row in enumerate(value[:rows])]
    array = _as_array(noun, tensor, value)
    if array.ndim != 1 + len(tensor.shape) or array.shape[0] != n:
        raise _wrong(noun, tensor, f"has shape {list(array.shape)}", f"[{n}, *row shape]")
    array = array if rows == n else array[:rows]
    own = [
        (at, dim.name)
        for at in tensor.dynamic
        if isinstance(dim := tensor.shape[at], Dim) and dim.name in named
    ]
    if not own and _fits(tensor, array.shape[1:]):
        return array
    own_sized = []
    for i in range(rows):
        cut = [slice(None)] * len(tensor.shape)
        for at, name in own:
            cut[at] = slice(0, int(named[name][i]))
        own_sized.append(_one_row(noun, tensor, array[i][tuple(cut)], i, failed))
    return own_sized


def _are_stored_runs(tensor: Tensor, value: Sequence[Any]) -> bool:
    """True if all rows are arrays of one dimension that can be stored as they are, such as token
    ids: looked through in a tenth of the time that rows take one by one."""
    if len(tensor.shape) != 1 or {*map(type, value)} != {np.ndarray}:
        return False
    dtype, most = tensor.np_dtype, tensor.max_shape[0]
    for row in value:  # noqa: SIM110  # half of the cost of `all`
        if row.dtype is not dtype or row.ndim != 1 or len(row) > most:
            return False
    return True


def _fits(tensor: Tensor, shape: Sequence[int]) -> bool:
    return all(
        have <= want.max if isinstance(want, Dim) else have == want
        for have, want in zip(shape, tensor.shape, strict=True)
    )


def _one_row(noun: str, tensor: Tensor, row: Any, i: int, failed: dict[int, str]) -> Array:
    array = _as_array(noun, tensor, row)
    if array.ndim == len(tensor.shape) and _fits(tensor, array.shape):
        return array
    failed[i] = (
        f"{noun} {tensor.name!r} of this row has shape {list(array.shape)};"
        f" at most {list(tensor.max_shape)} fits"
    )
    return np.zeros([0 if isinstance(d, Dim) else d for d in tensor.shape], tensor.np_dtype)


def _bytes_output(
    noun: str, tensor: Tensor, value: Any, n: int, rows: int, failed: dict[int, str]
) -> Array | list[Array]:
    """Elements may be bytes or str; a numpy "S" array is refused: it drops trailing NULs."""
    assert tensor.max_bytes is not None
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OU":
        raise _wrong(
            noun, tensor, f"has dtype {value.dtype.name}", "an object array or list of bytes"
        )
    if not isinstance(value, (np.ndarray, list, tuple)):
        raise _wrong(noun, tensor, f"is a {type(value).__name__}", "a list of bytes")
    if isinstance(value, np.ndarray) and value.ndim == 0:
        raise _wrong(noun, tensor, "has shape []", f"[{n}, *row shape]")
    if len(value) != n:
        raise _wrong(noun, tensor, f"has {len(value)} rows", str(n))
    found = []
    for i, row in enumerate(value[:rows]):
        loose = np.asarray(row, dtype=object)
        if loose.ndim != len(tensor.shape) or not _fits(tensor, loose.shape):
            failed[i] = f"{noun} {tensor.name!r} of this row has shape {list(loose.shape)}"
            loose = np.empty([0 if isinstance(d, Dim) else d for d in tensor.shape], object)
            loose[...] = b""
        checked = np.empty(loose.shape, dtype=object)
        for at in np.ndindex(*loose.shape):
            checked[at] = _element(noun, tensor, loose[at], i, failed)
        found.append(checked)
    if tensor.dynamic:
        return found
    joined = np.empty((rows, *tensor.max_shape), dtype=object)
    for i, row in enumerate(found):
        joined[i] = row if row.ndim else row[()]
    return joined


def _element(noun: str, tensor: Tensor, element: Any, i: int, failed: dict[int, str]) -> bytes:
    assert tensor.max_bytes is not None
    raw = element
    if isinstance(element, str):
        try:
            raw = element.encode()
        except UnicodeEncodeError:
            failed[i] = f"{noun} {tensor.name!r} of this row has a lone surrogate, which is no text"
            return b""
    if not isinstance(raw, bytes):
        failed[i] = f"{noun} {tensor.name!r} of this row holds a {type(raw).__name__}, not bytes"
        return b""
    if len(raw) > tensor.max_bytes:
        failed[i] = (
            f"{noun} {tensor.name!r} of this row has {len(raw)} bytes;"
            f" at most {tensor.max_bytes} fit"
        )
        return b""
    return raw
