"""What fills a batch up where the engine takes certain batch sizes only.

A batch of `rows` rows is loaded into arrays of n rows, the smallest allowed size that holds it.
What is left of them becomes copies of the warm-up row, which the model has proven to accept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec, Tensor

# From a tensor and a shape [n, *row shape] to an array of its storage dtype, good for one batch.
Room: TypeAlias = Callable[[Tensor, tuple[int, ...]], Array]


def host_room(tensor: Tensor, shape: tuple[int, ...]) -> Array:
    """Room in memory of its own."""
    return np.empty(shape, dtype=tensor.np_dtype)


class Padding:
    """The allowed batch sizes, and rows to reach them with.

    batch_sizes: rising.  warm_up_rows: {input or parameter: [1, *row shape]}, which are copied.
    """

    def __init__(
        self,
        spec: ModelSpec,
        batch_sizes: Sequence[int],
        warm_up_rows: Mapping[str, Array],
    ) -> None:
        self._batch_sizes = tuple(batch_sizes)
        self._rows: dict[str, Array] = {}  # at full size, [1, *max row shape]
        self._own: dict[str, Array] = {}  # [dynamic dims]
        for tensor in (*spec.inputs, *spec.parameters):
            row = warm_up_rows[tensor.name]
            full = np.full((1, *tensor.max_shape), tensor.stored_pad, dtype=tensor.np_dtype)
            full[tuple(slice(0, length) for length in row.shape)] = row
            self._rows[tensor.name] = full
            if tensor.dynamic:
                own = [row.shape[1 + dim] for dim in tensor.dynamic]
                self._own[tensor.name] = np.array(own, dtype=np.int64)

    def size_for(self, rows: int) -> int:
        """The smallest allowed size of a batch that has this many rows."""
        return self._batch_sizes[bisect_left(self._batch_sizes, rows)]

    def row(self, name: str) -> Array:
        """The row of one input at full size, [1, *max row shape]."""
        return self._rows[name]

    def fill(self, name: str, array: Array, sizes: Array | None, rows: int) -> Array | None:
        """Fill array [n, *row shape] up from `rows` on; returns the sizes [n, dynamic dims].

        Padding is cut to the array, whose dynamic dimensions are the largest of the real rows.
        sizes: [rows, dynamic dims] of the real rows, None if the tensor is fixed.
        """
        shape = array.shape[1:]
        array[rows:] = self._rows[name][(slice(None), *(slice(0, length) for length in shape))]
        if sizes is None:
            return None
        own = np.minimum(self._own[name], sizes.max(axis=0))
        return np.concatenate([sizes, np.tile(own, (len(array) - rows, 1))])
