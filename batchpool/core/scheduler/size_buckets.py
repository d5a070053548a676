"""Size buckets: rows whose dynamic dimensions are of like size ride together.

A batch is padded to its largest row, so that one long row among short ones costs as much as
if all were long. Sizes up to 16 share a bucket, beyond that those up to the same power of two,
for each dynamic dimension of the inputs; so a row is padded to less than twice its size in each.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec

_SHARED = 16  # below it padding costs less than a batch of one's own
_CLASSES = 32  # of one dimension: sizes are 32 bits


class SizeBuckets:
    """The buckets of one model; a model without dynamic inputs has one."""

    def __init__(self, spec: ModelSpec) -> None:
        most = [tensor.max_shape[at] for tensor in spec.inputs for at in tensor.dynamic]
        self.many = any(size > _SHARED for size in most)
        self._most = np.array(most, dtype=np.int64)
        self._weights = _CLASSES ** np.arange(len(most), dtype=np.int64)

    def of(self, sizes: Array) -> npt.NDArray[np.int64] | int:
        """The bucket of each row. sizes: [n, dynamic dimensions of all inputs], as a client
        wrote them: what is above a maximum counts as the maximum."""
        if not self.many:
            return 0
        capped = np.minimum(sizes, self._most)
        classes = np.frexp(np.maximum(capped, _SHARED) - 1)[1].astype(np.int64)
        found: npt.NDArray[np.int64] = (classes * self._weights).sum(axis=1)
        return found
