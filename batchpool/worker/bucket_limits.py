"""The sizes that a batch's bucket allows its rows, whatever their clients write meanwhile.

The batcher decides how many rows share a batch by their sizes when it admits them, and a client may
write others until the worker reads them. A row that has grown since is cut to its bucket, so that
it makes no batch larger than the element budget, nor pads the rows of other callers any further.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from batchpool.core.scheduler.size_buckets import sizes_of_bucket
from batchpool.core.tensors.spec import ModelSpec

Sizes = npt.NDArray[np.int64]


class BucketLimits:
    """The largest sizes of one stage's inputs by bucket. spec: the declaration of the stage."""

    def __init__(self, spec: ModelSpec) -> None:
        self._dynamic = [(tensor.name, len(tensor.dynamic)) for tensor in spec.inputs]
        self._most = [tensor.max_shape[at] for tensor in spec.inputs for at in tensor.dynamic]
        self._last: tuple[int, Mapping[str, Sizes]] = (0, {})  # clients choose how many there are

    def of(self, bucket: int) -> Mapping[str, Sizes]:
        """The most that each dynamic input has in a bucket, {name: [dynamic dimensions]}; empty
        where only the declared maxima count, as in bucket 0."""
        if bucket != self._last[0]:
            self._last = bucket, self._sizes(bucket)
        return self._last[1]

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
