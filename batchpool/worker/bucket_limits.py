"""The sizes and lengths that a batch's bucket allows its rows, whatever their clients write
meanwhile.

The batcher decides how many rows share a batch by their sizes when it admits them, and a client may
write others until the worker reads them. A row that has grown since is cut to its bucket, so that
it makes no batch larger than the element budget, nor pads the rows of other callers any further.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from batchpool.core.scheduler.size_buckets import (
    inputs_sized_by_length,
    most_sizes,
    sizes_of_bucket,
)
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec

Sizes = npt.NDArray[np.int64]


class BucketLimits:
    """The largest sizes of one stage's inputs by bucket. spec: the declaration of the stage."""

    def __init__(self, spec: ModelSpec) -> None:
        self._dynamic = [(tensor.name, len(tensor.dynamic)) for tensor in spec.inputs]
        self._lengths = [tensor.name for tensor in inputs_sized_by_length(spec)]
        self._most = most_sizes(spec)
        # Of the last bucket only: clients choose how many there are.
        self._last: tuple[int, Mapping[str, Sizes], Mapping[str, int]] = (0, {}, {})

    def of(self, bucket: int) -> Mapping[str, Sizes]:
        """The most that each dynamic input has in a bucket, {name: [dynamic dimensions]}; empty
        where only the declared maxima count, as in bucket 0."""
        self._find(bucket)
        return self._last[1]

    def lengths_of(self, bucket: int) -> Mapping[str, int]:
        """The most bytes of a row in a bucket, of each input whose length is a size; empty in
        bucket 0."""
        self._find(bucket)
        return self._last[2]

    def cut(self, bucket: int, inputs: dict[str, Array]) -> None:
        """Cut each row of the inputs to the most bytes that it has in a bucket."""
        for name, most in self.lengths_of(bucket).items():
            inputs[name] = cut_strings(inputs[name], most)

    def _find(self, bucket: int) -> None:
        if bucket == self._last[0]:
            return
        lengths: dict[str, int] = {}
        if bucket and self._lengths:
            own = sizes_of_bucket(bucket, self._most)[-len(self._lengths) :]
            lengths = dict(zip(self._lengths, own, strict=True))
        self._last = bucket, self._sizes(bucket), lengths

    def _sizes(self, bucket: int) -> Mapping[str, Sizes]:
        if not bucket:
            return {}
        sizes = np.array(sizes_of_bucket(bucket, self._most), dtype=np.int64)
        found, at = dict[str, Sizes](), 0
        for name, dimensions in self._dynamic:
            if dimensions:
                found[name] = sizes[at : at + dimensions]
                at += dimensions
        return found


def cut_strings(rows: Array, most: int) -> Array:
    """Cut byte strings [n, *row shape] in place, and return them: of each row the first `most`
    bytes are left."""
    if rows.ndim == 1 and max(map(len, rows.tolist())) <= most:  # as texts are, mostly
        return rows
    for row in rows.reshape(len(rows), -1):
        left = most
        for at, string in enumerate(row.tolist()):
            if len(string) > left:
                row[at] = string[:left]
            left -= len(row[at])
    return rows
