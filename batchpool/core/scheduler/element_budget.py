"""The element budget: fewer rows share a batch where they are long.

`max_batch` counts rows, and a batch of 64 rows of 2,048 tokens takes 128 times the memory and the
time of one of 64 rows of 16 tokens. `max_batch_elements` bounds the elements of each input of a
batch, rows x padded row shape. The padded shape of a row is that of its bucket
(core/scheduler/size_buckets.py): every dynamic dimension at the largest size of the bucket.

Where all stages run in the worker, rows are known by the length of their bytes, and the elements
that `preprocess` makes of them are not. `BYTES_EACH` bytes count as one: the tokens of most texts
have fewer. Without a bound of its own such a model gets `ELEMENTS_BY_LENGTH`, since it runs on a
CPU, where a batch takes as long as all of its elements: a full one of long rows would let
everybody else wait, and is no faster a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from batchpool.core.scheduler.size_buckets import (
    inputs_sized_by_length,
    most_sizes,
    sizes_of_bucket,
)
from batchpool.core.tensors.spec import ModelSpec

BYTES_EACH = 8  # of inputs whose length is a size of the row
_KNOWN_MOST = 1024  # buckets whose figures are kept
ELEMENTS_BY_LENGTH = 2048  # of such inputs in a batch: 16 KiB, as 64 rows of up to 256 bytes have


def rows_within(
    max_elements: int, row_elements: int, max_batch: int, sizes: Sequence[int] = ()
) -> int:
    """The most rows of a batch whose rows have `row_elements` elements each.

    max_elements: of the batch; 0 for any number. sizes: the allowed batch sizes, rising; () for
    any. A row that exceeds the budget alone runs alone, or in a batch of the smallest size.
    """
    if not max_elements:
        return max_batch
    rows = max(1, min(max_batch, max_elements // max(1, row_elements)))
    if not sizes:
        return rows
    return max((size for size in sizes if size <= rows), default=sizes[0])


@dataclass(frozen=True)
class InputShape:
    """The elements of one input's fixed dimensions, multiplied, and its sizes, as positions among
    those of a row. bytes_each: of an element, where the size is a length in bytes."""

    fixed: int
    dynamic: tuple[int, ...]
    bytes_each: int = 1

    def elements(self, sizes: Sequence[int]) -> int:
        """The elements of a row of these sizes."""
        return -(-self.fixed * math.prod(sizes[at] for at in self.dynamic) // self.bytes_each)


@dataclass(frozen=True)
class RowElements:
    """The padded elements of a row by its bucket, for one stage of a model.

    most: the maxima of a row's sizes, in order.
    """

    inputs: tuple[InputShape, ...]
    most: tuple[int, ...]
    _known: dict[int, int] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of_stage(cls, spec: ModelSpec) -> RowElements:
        """spec: the declaration of the stage."""
        inputs, start = [], 0
        for tensor in spec.inputs:
            fixed = [size for at, size in enumerate(tensor.max_shape) if at not in tensor.dynamic]
            places = range(start, start + len(tensor.dynamic))
            start += len(tensor.dynamic)
            if tensor.name not in spec.sized_by_length:
                inputs.append(InputShape(math.prod(fixed), tuple(places)))
        lengths = cls.of_lengths(spec)
        return cls((*inputs, *lengths.inputs), lengths.most)

    @classmethod
    def of_lengths(cls, spec: ModelSpec) -> RowElements:
        """Of the inputs alone whose length is a size of the row."""
        most, named = most_sizes(spec), inputs_sized_by_length(spec)
        places = range(len(most) - len(named), len(most))
        return cls(tuple(InputShape(1, (place,), BYTES_EACH) for place in places), tuple(most))

    def of(self, bucket: int) -> int:
        """The elements of the largest input of a row of this bucket."""
        known = self._known.get(bucket)
        if known is None:
            sizes = sizes_of_bucket(bucket, self.most)
            known = max([own.elements(sizes) for own in self.inputs], default=1)
            _keep(self._known, bucket, known)
        return known


@dataclass(frozen=True)
class BucketRows:
    """The most rows of a batch by bucket, for one stage of a model.

    sizes: the allowed batch sizes, rising; () for any.
    """

    max_elements: int
    max_batch: int
    sizes: tuple[int, ...]
    row_elements: RowElements
    _known: dict[int, int] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of_stage(
        cls, spec: ModelSpec, max_elements: int, max_batch: int, sizes: tuple[int, ...]
    ) -> BucketRows:
        """spec: the declaration of the stage."""
        return cls(max_elements, max_batch, sizes, RowElements.of_stage(spec))

    @classmethod
    def by_length(cls, spec: ModelSpec, max_batch: int, sizes: tuple[int, ...]) -> BucketRows:
        """The bound of a model that has none of its own, of the inputs that `sized_by_length`
        names."""
        return cls(ELEMENTS_BY_LENGTH, max_batch, sizes, RowElements.of_lengths(spec))

    def of(self, bucket: int) -> int:
        """The most rows of a batch of this bucket; at least 1."""
        known = self._known.get(bucket)
        if known is None:
            elements = self.row_elements.of(bucket)
            known = rows_within(self.max_elements, elements, self.max_batch, self.sizes)
            _keep(self._known, bucket, known)
        return known


def _keep(known: dict[int, int], bucket: int, value: int) -> None:
    """Keep what is calculated from a bucket; callers choose the sizes, so there may be many."""
    if len(known) >= _KNOWN_MOST:
        known.clear()
    known[bucket] = value
