"""Rows of different sizes: lists of rows as one padded array with the rows' sizes, and back.

A tensor with dynamic dimensions is kept as an array [n, *row shape] of the largest size along each
of them, filled up with the declared pad, beside the sizes int64 [n, dynamic dimensions]. Where all
rows have one size there are no sizes: the array's shape says it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from batchpool.core.errors import InvalidRequest, TooLarge
from batchpool.core.tensors.arrays import as_rows
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import Dim, Tensor

Sizes = npt.NDArray[np.int64]


def as_sized_rows(tensor: Tensor, value: Any) -> tuple[Array, Sizes | None]:
    """`value` as `as_rows` takes it, or a list of rows of different sizes, and the rows' sizes.

    An iterator, such as a generator, gives one row after another. Raises InvalidRequest or TooLarge
    that names the input and the row.
    """
    if hasattr(value, "__next__"):
        value = list(value)
    if not (tensor.dynamic and isinstance(value, (list, tuple)) and value):
        return as_rows(tensor, value), None
    return (
        (as_rows(tensor, value), None)
        if _are_alike(tensor, value)
        else padded(tensor, [_one_row(tensor, i, row) for i, row in enumerate(value)])
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
