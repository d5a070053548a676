"""The size buckets of rows that come in: by the sizes and lengths of their inputs."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from batchpool.core.scheduler.size_buckets import SizeBuckets, inputs_sized_by_length
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import Tensor
from batchpool.shm.lane import Lane
from batchpool.shm.segment import Cells


class InputBuckets:
    """The buckets of a lane's rows, by what its client has written. many: False where all rows are
    in one."""

    def __init__(self, lane: Lane) -> None:
        self._buckets = SizeBuckets(lane.spec)
        self.many: Final = self._buckets.many
        self._sizes = lane.input_sizes
        self._size_cells: Cells = lane.scalars("size.in")
        self._width: int = lane.layout.columns["size.in"].shape[1]
        self._lengths = [_Lengths(lane, each) for each in inputs_sized_by_length(lane.spec)]

    def of(self, slots: Array) -> npt.NDArray[np.int64] | int:
        """The bucket of the row in each slot, [n], or 0 for all."""
        if not self.many:
            return 0
        sizes: Array = self._sizes[slots]
        if self._lengths:
            own = [lengths.of(slots)[:, np.newaxis] for lengths in self._lengths]
            sizes = np.concatenate([sizes, *own], axis=1)
        return self._buckets.of(sizes)

    def of_one(self, slot: int) -> int:
        """The bucket of the row in a slot: by plain numbers, in a tenth of the time of arrays."""
        first = slot * self._width
        sizes = [self._size_cells[first + i] for i in range(self._width)]
        for lengths in self._lengths:
            sizes.append(lengths.of_one(slot))
        return self._buckets.of_one(sizes)


class _Lengths:
    """The bytes of each row of an input."""

    def __init__(self, lane: Lane, tensor: Tensor) -> None:
        column = lane.inputs[tensor.name]
        assert column.lengths is not None
        self._column, self._is_one = column, not tensor.shape
        self._lengths = column.lengths
        self._cells: Cells = lane.scalars(f"len.in.{tensor.name}")
        self._most = tensor.max_bytes or 0

    def of(self, slots: Array) -> Array:
        lengths = np.minimum(self._lengths[slots], self._most).astype(np.int64)
        if self._is_one:
            return lengths
        sizes = self._column.sizes_of(slots)
        if sizes is not None:  # what stands behind a shorter row is of an earlier one
            for at, (_, dim) in enumerate(self._column.places):
                shape = [1] * lengths.ndim
                shape[1 + dim] = lengths.shape[1 + dim]
                of_row = sizes[:, at].reshape(-1, *[1] * (lengths.ndim - 1))
                lengths = np.where(np.arange(shape[1 + dim]).reshape(shape) < of_row, lengths, 0)
        total: Array = lengths.reshape(len(lengths), -1).sum(axis=1)
        return total

    def of_one(self, slot: int) -> int:
        if self._is_one:
            return self._cells[slot]
        return int(self.of(np.array([slot]))[0])
