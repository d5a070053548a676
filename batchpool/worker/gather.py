"""Gather and scatter: the rows of a batch between the slots of its lanes and arrays [n, ...]."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from batchpool.core.few_rows import FEW_ROWS
from batchpool.core.tensors.dtypes import Array
from batchpool.shm.columns import TensorColumn, Where, pad_rows, where_of
from batchpool.shm.lane import Lane
from batchpool.worker.backends.backend import BatchPart


def parts_of(lanes: Mapping[int, Lane], numbers: Array, slots: Array) -> list[BatchPart]:
    """Split rows, which are sorted by lane, into one part for each lane.

    numbers, slots: the lane number and the slot of every row. Raises KeyError where a lane is not
    mapped here.
    """
    n = len(numbers)
    if numbers[0] == numbers[-1]:  # sorted, so all are equal
        return [BatchPart(lanes[int(numbers[0])], slots, where_of(slots), 0, n)]
    if n <= FEW_ROWS:
        return _few_parts(lanes, numbers.tolist(), slots)
    cuts = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), n]
    return [
        BatchPart(lanes[int(numbers[a])], slots[a:b], where_of(slots[a:b]), a, b)
        for a, b in itertools.pairwise(cuts)
    ]


def _few_parts(lanes: Mapping[int, Lane], numbers: Sequence[int], slots: Array) -> list[BatchPart]:
    """`parts_of` so few rows that plain numbers are cheaper than arrays."""
    parts, each, start, n = [], slots.tolist(), 0, len(numbers)
    for stop in range(1, n + 1):
        if stop == n or numbers[stop] != numbers[start]:
            own, first, last = slots[start:stop], each[start], each[stop - 1]
            # In rising order, as the batcher sorts them, these are neighbours.
            joined = last - first == stop - start - 1 and each[start:stop] == [
                *range(first, last + 1)
            ]
            where = slice(first, last + 1) if joined else own
            parts.append(BatchPart(lanes[numbers[start]], own, where, start, stop))
            start = stop
    return parts


def count_extents(parts: Sequence[BatchPart]) -> int:
    """The number of runs of neighbouring slots in the batch: the copies that a transfer needs."""
    return sum([part.extents for part in parts])


def load_input(
    parts: Sequence[BatchPart],
    name: str,
    *,
    parameter: bool = False,
    allocate: Callable[[tuple[int, ...]], Array] | None = None,
    most: npt.NDArray[np.int64] | None = None,
) -> tuple[Array, Array | None]:
    """One input of the batch: array [rows, *row shape], sizes [rows, dynamic dimensions] or None.

    most: what the sizes are clipped to, [dynamic dimensions]; None for the declared maxima.
    Without `allocate` the array is a view of the lane where the tensor is fixed and the batch is
    one extent. With it, the array is always a copy, in the array that `allocate(row shape)`
    returns; where that has more rows than the batch, the rest is left as it is.
    """
    columns = [_column(part, name, parameter) for part in parts]
    if len(parts) == 1 and allocate is None:
        sizes = columns[0].sizes_of(parts[0].where, most)
        return columns[0].load(parts[0].where, sizes=sizes), sizes
    tensor = columns[0].tensor
    if tensor.is_bytes and not tensor.shape and allocate is None:
        return _strings_of(columns, parts), None
    each = [c.sizes_of(p.where, most) for c, p in zip(columns, parts, strict=True)]
    known = [own for own in each if own is not None]
    sizes = np.concatenate(known) if known else None
    shape = list(tensor.max_shape)
    if sizes is not None:
        largest = sizes.max(axis=0, initial=0).tolist()
        for size, dim in zip(largest, tensor.dynamic, strict=True):
            shape[dim] = size
    if allocate is None:
        array: Array = np.empty((parts[-1].stop, *shape), dtype=tensor.np_dtype)
    else:
        array = allocate(tuple(shape))
    for column, part, own in zip(columns, parts, each, strict=True):
        _copy(column, part.where, own, array[part.start : part.stop])
    if sizes is not None and not tensor.is_bytes:
        pad_rows(array[: len(sizes)], sizes, tensor.dynamic, tensor.stored_pad)
    return array, sizes


def _strings_of(columns: Sequence[TensorColumn], parts: Sequence[BatchPart]) -> Array:
    """The byte strings of the batch, one a row: [rows]."""
    rows = np.empty(parts[-1].stop, object)
    rows[:] = [
        each
        for column, part in zip(columns, parts, strict=True)
        for each in column.strings(part.where)
    ]
    return rows


def _copy(column: TensorColumn, where: Where, own: Array | None, rows: Array) -> None:
    """Copy the rows of one part into `rows` [n, *row shape], by a single copy where that is
    possible. What stands behind a shorter row is undefined, but for byte strings."""
    tensor = column.tensor
    if tensor.is_bytes:
        found = column.load(where, sizes=own)
        rows[...] = tensor.stored_pad
        rows[(slice(None), *(slice(0, m) for m in found.shape[1:]))] = found
    elif own is not None:
        column.copy_to(where, own, rows)
    elif isinstance(where, slice):
        rows[...] = column.values[where]
    else:  # the slots are in range; numpy's default mode would copy twice
        np.take(column.values, where, axis=0, out=rows, mode="clip")


def _column(part: BatchPart, name: str, parameter: bool) -> TensorColumn:
    return (part.lane.parameters if parameter else part.lane.inputs)[name]


def store_output(parts: Sequence[BatchPart], name: str, rows: Array | list[Array]) -> None:
    """Write one output of the batch into its slots: an array, or a list of one array per row."""
    for part in parts:
        column = part.lane.outputs[name]
        if isinstance(rows, list):
            column.store_ragged(part.slots.tolist(), rows[part.start : part.stop])
        else:
            column.store(part.where, rows[part.start : part.stop])
