"""Size buckets: rows share a batch only with rows of similar size.

A batch is padded to its largest row, so one long row among short ones makes it as expensive as a
batch of long rows. Sizes up to 16 share a bucket; above that those up to the same power of two do,
for each dynamic dimension of the inputs, and for the length in bytes of each input that
`sized_by_length` names. So a dimension is padded to less than twice its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec, Tensor

SHARED_SIZES_MOST = 16  # up to this size padding costs less than a separate batch
_CLASSES = 32  # buckets of one dimension
_LENGTH_MOST = (1 << 31) - 1  # of bytes; a longer row counts as one of so many
_DIMENSIONS = 12  # more classes have no room in 64 bits; rows differ freely in later dimensions


def most_sizes(spec: ModelSpec) -> list[int]:
    """The maxima of the sizes that tell a row's bucket: of the dynamic dimensions of all inputs,
    then of the lengths of those that `sized_by_length` names, both in the order of the inputs."""
    dimensions = [tensor.max_shape[at] for tensor in spec.inputs for at in tensor.dynamic]
    return [*dimensions, *(tensor.row_bytes for tensor in inputs_sized_by_length(spec))]


def inputs_sized_by_length(spec: ModelSpec) -> list[Tensor]:
    """The inputs whose length in bytes is a size of the row."""
    return [tensor for tensor in spec.inputs if tensor.name in spec.sized_by_length]


def sizes_of_bucket(bucket: int, most: Sequence[int]) -> list[int]:
    """The largest sizes that rows of a bucket have.

    most: as `most_sizes` gives them. bucket: as `SizeBuckets.of` gives it; 0 where all rows
    are in one.
    """
    if not bucket:
        return list(most)
    told = most[:_DIMENSIONS]
    classes = [bucket // _CLASSES**at % _CLASSES for at in range(len(told))]
    # Class 0 is of a size that the bucket does not tell; the last one has no end.
    each = zip(told, classes, strict=True)
    bounded = [min(size, 1 << own) if 0 < own < _CLASSES - 1 else size for size, own in each]
    return [*bounded, *most[_DIMENSIONS:]]


def joined_bucket(buckets: Iterable[int]) -> int:
    """The bucket that holds rows of all of these: in each dimension the largest. 0, which rows of
    any size are in, where one of them is 0."""
    left = [*buckets]
    if not all(left):
        return 0
    found, weight = 0, 1
    while any(left):
        found += max([bucket % _CLASSES for bucket in left]) * weight
        left = [bucket // _CLASSES for bucket in left]
        weight *= _CLASSES
    return found


class SizeBuckets:
    """The buckets of one model. many: False where all rows are in one, as of fixed inputs."""

    def __init__(self, spec: ModelSpec) -> None:
        most, lengths = most_sizes(spec), len(inputs_sized_by_length(spec))
        first = len(most) - lengths
        most = [*most[:first], *(min(size, _LENGTH_MOST) for size in most[first:])][:_DIMENSIONS]
        self.many = any(size > SHARED_SIZES_MOST for size in most)
        self._most = np.array(most, dtype=np.int64)
        self._weights = _CLASSES ** np.arange(len(most), dtype=np.int64)
        self._bounds = most

    def of(self, sizes: Array) -> npt.NDArray[np.int64] | int:
        """The bucket of each row, [n], or 0 for all.

        sizes: [n, as many as `most_sizes`], as a client wrote them; a size above the maximum
        counts as the maximum.
        """
        if not self.many:
            return 0
        capped = np.minimum(sizes[:, :_DIMENSIONS], self._most)
        classes = np.frexp(np.maximum(capped, SHARED_SIZES_MOST) - 1)[1].astype(np.int64)
        found: npt.NDArray[np.int64] = (classes * self._weights).sum(axis=1)
        return found

    def of_one(self, sizes: Sequence[int]) -> int:
        """The bucket of one row by its sizes, as plain numbers: a tenth of the time of arrays."""
        if not self.many:
            return 0
        bucket, weight = 0, 1
        for size, most in zip(sizes, self._bounds, strict=False):
            capped = size if size < most else most
            shared = capped if capped > SHARED_SIZES_MOST else SHARED_SIZES_MOST
            bucket += (shared - 1).bit_length() * weight
            weight *= _CLASSES
        return bucket
