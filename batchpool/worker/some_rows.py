"""Some rows of a batch as arrays of their own, and the outputs of several calls as those of one.

A column is one tensor of n rows: an array [n, *row shape], or a list of n arrays where they differ
in size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from batchpool.core.tensors.dtypes import Array, filled
from batchpool.core.tensors.spec import Tensor
from batchpool.worker.failed_rows import blank_row
from batchpool.worker.outputs import CheckedOutputs

Column: TypeAlias = "Array | list[Array]"


def sizes_of(tensor: Tensor, column: Column) -> npt.NDArray[np.int64] | None:
    """The rows' dynamic sizes, [n, dynamic dimensions]; None if the tensor is fixed."""
    if not tensor.dynamic:
        return None
    found = [[row.shape[dim] for dim in tensor.dynamic] for row in column]
    return np.array(found, dtype=np.int64)


def rows_of(tensor: Tensor, column: Column, sizes: Array | None, rows: Array, n: int) -> Array:
    """The rows with these numbers, padded to the longest: [n, *row shape].

    sizes: [rows, dynamic dimensions], of these rows; None if the tensor is fixed. Of more than
    these rows, the others are undefined. A fixed column is returned itself where all its rows are
    asked for.
    """
    k = len(rows)
    if sizes is None:
        assert not isinstance(column, list)
        if n == k:
            return column if k == len(column) else column[rows]
        fixed: Array = np.empty((n, *column.shape[1:]), dtype=column.dtype)
        fixed[:k] = column[rows]
        return fixed
    shape = list(tensor.max_shape)
    for most, dim in zip(sizes.max(axis=0, initial=0).tolist(), tensor.dynamic, strict=True):
        shape[dim] = most
    array = filled((n, *shape), tensor.stored_pad, tensor.np_dtype)
    cut = [slice(None)] * len(shape)
    for to, (row, own) in enumerate(zip(rows.tolist(), sizes.tolist(), strict=True)):
        for dim, length in zip(tensor.dynamic, own, strict=True):
            cut[dim] = slice(0, length)
        array[to][tuple(cut)] = column[row][tuple(cut)]
    return array


def blank_outputs(tensors: Sequence[Tensor]) -> dict[str, Column]:
    """A valid row of each tensor, which is never sent."""
    return {t.name: [blank_row(t)] if t.dynamic else blank_row(t)[np.newaxis] for t in tensors}


def joined_outputs(
    tensors: Sequence[Tensor],
    n: int,
    calls: Sequence[tuple[npt.NDArray[np.int64], CheckedOutputs]],
) -> CheckedOutputs:
    """The outputs of n rows from those of calls, each of which had the rows with some numbers.

    A row that was in no call has a valid row in its place.
    """
    if len(calls) == 1 and len(calls[0][0]) == n:
        return calls[0][1]
    whole = CheckedOutputs({tensor.name: _joined(tensor, n, calls) for tensor in tensors})
    for rows, found in calls:
        whole.failed |= {int(rows[at]): text for at, text in found.failed.items()}
        whole.refused |= {int(rows[at]): error for at, error in found.refused.items()}
    return whole


def _joined(
    tensor: Tensor, n: int, calls: Sequence[tuple[npt.NDArray[np.int64], CheckedOutputs]]
) -> Column:
    if tensor.dynamic:
        each = [blank_row(tensor)] * n
        for rows, found in calls:
            for row, own in zip(rows.tolist(), found.outputs[tensor.name], strict=True):
                each[row] = own
        return each
    array = filled((n, *tensor.max_shape), tensor.stored_pad, tensor.np_dtype)
    for rows, found in calls:
        array[rows] = found.outputs[tensor.name]
    return array
