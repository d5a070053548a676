"""Rows of different sizes: lists of rows as one padded array with the rows' sizes, and back.

A tensor with dynamic dimensions is kept as an array [n, *row shape] of the largest size along each
of them, filled up with the declared pad, beside the sizes int64 [n, dynamic dimensions]. Where all
rows have one size there are no sizes: the array's shape says it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from batchpool.core.errors import InvalidRequest, TooLarge
from batchpool.core.tensors.arrays import as_rows
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import Dim, Tensor

Sizes = npt.NDArray[np.int64]
_BLOCK = 64  # rows that are looked through together for one that is wrong
_MOST_ROWS_OF_STRANGERS = 1024  # of several dimensions, which are converted one by one


def as_sized_rows(
    tensor: Tensor, value: Any, most_padded_bytes: int | None = None
) -> tuple[Array, Sizes | None]:
    """`value` as `as_rows` takes it, or a list of rows of different sizes, and the rows' sizes.

    An iterator, such as a generator, gives one row after another. most_padded_bytes: of rows of
    different sizes from a stranger, which become as large as the largest of them. Raises
    InvalidRequest or TooLarge that names the input and the row.
    """
    if hasattr(value, "__next__"):
        value = list(value)
    if not (tensor.dynamic and isinstance(value, (list, tuple)) and value):
        return as_rows(tensor, value), None
    if _are_alike(tensor, value):
        return as_rows(tensor, value), None
    if len(tensor.shape) == 1 and all(isinstance(row, (list, tuple)) for row in value):
        return _padded_lists(tensor, value, most_padded_bytes)
    if all(_is_stored(tensor, row) for row in value):
        return _padded_arrays(tensor, value, most_padded_bytes)
    if most_padded_bytes is not None and len(value) > _MOST_ROWS_OF_STRANGERS:
        raise TooLarge(
            f"input {tensor.name!r} has {len(value)} rows of different sizes; at most"
            f" {_MOST_ROWS_OF_STRANGERS} at once are taken"
        )
    rows = [_one_row(tensor, i, row) for i, row in enumerate(value)]
    if most_padded_bytes is not None:
        largest = [max(row.shape[at] for row in rows) for at in range(len(tensor.shape))]
        _check_padded(tensor, [len(rows), *largest], most_padded_bytes)
    return padded(tensor, rows)


def _padded_lists(
    tensor: Tensor, rows: Sequence[Sequence[Any]], most_padded_bytes: int | None
) -> tuple[Array, Sizes | None]:
    """Lists of elements as one padded array. Converted together: alone each costs 25 us."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    largest = int(lengths.max())
    if largest > tensor.max_shape[0]:
        at = int(lengths.argmax())
        _one_row(tensor, at, rows[at])  # raises
    if most_padded_bytes is not None:
        _check_padded(tensor, [len(rows), largest], most_padded_bytes)
    element = replace(tensor, shape=(), default=None)
    try:
        values = as_rows(element, list(chain.from_iterable(rows)))
    except (InvalidRequest, TooLarge):
        _raise_for_row(tensor, element, rows)
        raise
    sizes = lengths[:, np.newaxis]
    whole = np.full((len(rows), largest), tensor.stored_pad, dtype=tensor.np_dtype)
    whole[np.arange(largest) < sizes] = values
    return whole, sizes if are_ragged(sizes) else None


def _is_stored(tensor: Tensor, row: Any) -> bool:
    """True for a row of one dimension that is an array of the storage dtype already."""
    return (
        type(row) is np.ndarray
        and row.ndim == len(tensor.shape) == 1
        and row.dtype is tensor.np_dtype
        and not tensor.is_bytes
    )


def _padded_arrays(
    tensor: Tensor, rows: Sequence[Array], most_padded_bytes: int | None
) -> tuple[Array, Sizes | None]:
    """Arrays of one dimension as one padded array. Converted together: alone each costs 25 us."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    largest = int(lengths.max())
    if largest > tensor.max_shape[0]:
        at = int(lengths.argmax())
        _one_row(tensor, at, rows[at])  # raises
    if most_padded_bytes is not None:
        _check_padded(tensor, [len(rows), largest], most_padded_bytes)
    sizes = lengths[:, np.newaxis]
    whole = np.full((len(rows), largest), tensor.stored_pad, dtype=tensor.np_dtype)
    whole[np.arange(largest) < sizes] = np.concatenate(rows)
    return whole, sizes if are_ragged(sizes) else None


def _raise_for_row(tensor: Tensor, element: Tensor, rows: Sequence[Sequence[Any]]) -> None:
    """Raise the error of the first row that is wrong, which is looked for in blocks."""
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        try:
            as_rows(element, list(chain.from_iterable(block)))
        except (InvalidRequest, TooLarge):
            for i, row in enumerate(block, start):
                _one_row(tensor, i, row)


def _check_padded(tensor: Tensor, shape: Sequence[int], most_bytes: int) -> None:
    size = math.prod(shape) * tensor.np_dtype.itemsize
    if size > most_bytes:
        raise TooLarge(
            f"input {tensor.name!r}: its rows differ so much in size that they take {size} bytes as"
            f" large as the largest of them; at most {most_bytes} are taken for a body of this"
            " size: send rows of like size together"
        )


def padded(tensor: Tensor, rows: Sequence[Array]) -> tuple[Array, Sizes | None]:
    """Rows [*row shape] of the storage dtype as one array, and their sizes if they differ."""
    sizes = np.array([[row.shape[at] for at in tensor.dynamic] for row in rows], dtype=np.int64)
    shape = list(tensor.max_shape)
    for at, most in zip(tensor.dynamic, sizes.max(axis=0).tolist(), strict=True):
        shape[at] = most
    if not are_ragged(sizes):
        return np.stack(rows), None
    whole = np.full((len(rows), *shape), tensor.stored_pad, dtype=tensor.np_dtype)
    for row, place in zip(rows, whole, strict=True):
        place[tuple(slice(0, length) for length in row.shape)] = row
    return whole, sizes


def separate(tensor: Tensor, rows: Array, sizes: Sizes) -> list[Array]:
    """The rows of a padded array, each a copy of its own size."""
    parts = []
    for row, own in zip(rows, sizes.tolist(), strict=True):
        cut = [slice(None)] * len(tensor.shape)
        for at, size in zip(tensor.dynamic, own, strict=True):
            cut[at] = slice(0, size)
        parts.append(row[tuple(cut)].copy())
    return parts


def trimmed(tensor: Tensor, rows: Array, sizes: Sizes) -> tuple[Array, Sizes | None]:
    """A padded array cut to the largest of its rows, and the sizes if they differ.

    Raises InvalidRequest for a size that is not inside the array.
    """
    extent = np.array([rows.shape[1 + at] for at in tensor.dynamic], dtype=np.int64)
    wrong = ((sizes < 0) | (sizes > extent)).any(axis=1)
    if wrong.any():
        row = int(wrong.argmax())
        raise InvalidRequest(
            f"input {tensor.sizes_name!r}: row {row} has {sizes[row].tolist()};"
            f" at most {extent.tolist()}, as in input {tensor.name!r}, was expected"
        )
    cut = [slice(None)] * rows.ndim
    for at, most in zip(tensor.dynamic, sizes.max(axis=0).tolist(), strict=True):
        cut[1 + at] = slice(0, most)
    return rows[tuple(cut)], sizes if are_ragged(sizes) else None


def are_ragged(sizes: Sizes) -> bool:
    """True unless all rows have the same sizes."""
    return len(sizes) > 1 and bool((sizes[1:] != sizes[0]).any())


def _are_alike(tensor: Tensor, rows: Sequence[Any]) -> bool:
    """True if all rows look as if they had one shape, by the first element at each depth."""
    rank = len(tensor.shape)
    shapes = {_shape(row, rank) for row in rows}
    return len(shapes) == 1 and len(shapes.pop()) == rank


def _shape(row: Any, rank: int) -> tuple[int, ...]:
    shape: list[int] = []
    while isinstance(row, (list, tuple)) and len(shape) < rank:
        shape.append(len(row))
        if not row:
            break
        row = row[0]
    own = getattr(row, "shape", ())
    return (*shape, *own) if isinstance(own, tuple) else tuple(shape)


def _one_row(tensor: Tensor, i: int, row: Any) -> Array:
    if isinstance(row, (list, tuple)) and not row and isinstance(tensor.shape[0], Dim):
        empty = [0 if isinstance(dim, Dim) else dim for dim in tensor.shape]
        return np.empty(empty, dtype=tensor.np_dtype)
    try:
        array: Array = as_rows(tensor, [row])[0]
    except (InvalidRequest, TooLarge) as exc:
        raise type(exc)(f"row {i}: {exc.message}") from None
    return array
