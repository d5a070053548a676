"""Rows that fill a batch up where the model accepts certain batch sizes only.

A batch of `rows` rows is loaded into arrays of n rows, the smallest accepted size that holds it.
The rest of the arrays is filled with copies of the warm-up row, which the model has accepted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from batchpool.core.scheduler.batch_sizes import padded_size
from batchpool.core.tensors.dtypes import Array, filled
from batchpool.core.tensors.spec import ModelSpec


class Padding:
    """The accepted batch sizes of a model, and the row that fills a batch up to one of them.

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
        self._sizes: dict[str, Array] = {}  # of the row's dynamic dimensions
        for tensor in (*spec.inputs, *spec.parameters):
            row = warm_up_rows[tensor.name]
            full = filled((1, *tensor.max_shape), tensor.stored_pad, tensor.np_dtype)
            full[tuple(slice(0, length) for length in row.shape)] = row
            self._rows[tensor.name] = full
            if tensor.dynamic:
                sizes = [row.shape[1 + dim] for dim in tensor.dynamic]
                self._sizes[tensor.name] = np.array(sizes, dtype=np.int64)

    def size_for(self, rows: int) -> int:
        """The smallest accepted size of a batch that has this many rows."""
        return padded_size(self._batch_sizes, rows)

    def row(self, name: str) -> Array:
        """The padding row of one input at full size, [1, *max row shape]."""
        return self._rows[name]

    def fill(self, name: str, array: Array, sizes: Array | None, rows: int) -> Array | None:
        """Fill array [n, *row shape] from row `rows` on.

        The padding row is cut to the array, whose dynamic dimensions are the largest of the real
        rows. sizes: [rows, dynamic dimensions] of the real rows, None if the tensor is fixed.
        Returns the sizes of all rows, [n, dynamic dimensions], or None.
        """
        shape = array.shape[1:]
        array[rows:] = self._rows[name][(slice(None), *(slice(0, length) for length in shape))]
        if sizes is None:
            return None
        cut = np.minimum(self._sizes[name], sizes.max(axis=0))
        return np.concatenate([sizes, np.tile(cut, (len(array) - rows, 1))])
