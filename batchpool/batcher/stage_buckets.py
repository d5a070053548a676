"""The size buckets of rows that a later stage runs: by the sizes of all that it reads."""

from __future__ import annotations

import numpy as np

from batchpool.core.layout.tensor_columns import size_columns
from batchpool.core.scheduler.size_buckets import SizeBuckets
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.stages import Stage, stage_spec
from batchpool.shm.lane import Lane
from batchpool.shm.segment import Cells


class StageBuckets:
    """The buckets of one stage of a lane's model. many: False where all rows are in one."""

    def __init__(self, lane: Lane, stage: Stage) -> None:
        spec = lane.spec
        read = stage_spec(spec, stage)
        self._buckets = SizeBuckets(read)
        self.many = self._buckets.many
        names = {tensor.name for tensor in read.inputs}
        # In the order of what the stage reads: inputs, features, predictions.
        self._places: list[tuple[Array, list[int]]] = []
        self._words: list[tuple[Cells, int, int]] = []  # of each size: column, its width, place
        for road, tensors in (
            ("in", spec.inputs),
            ("feat", spec.features),
            ("pred", spec.predictions),
        ):
            places = size_columns(tensors)
            own = [at for name in places if name in names for at, _ in places[name]]
            if own:
                column = lane.layout.columns[f"size.{road}"]
                self._places.append((lane.memory.array(column), own))
                words, width = lane.memory.scalars(column), column.shape[1]
                self._words += [(words, width, at) for at in own]

    def of(self, slots: Array, *, few: bool) -> Array | list[int] | int:
        """The bucket of the row in each slot, [n], or 0 for all. few: they are so few that plain
        numbers are cheaper than arrays."""
        if not self.many:
            return 0
        if few:
            bucket_of, words = self._buckets.of_one, self._words
            return [
                bucket_of([column[slot * width + at] for column, width, at in words])
                for slot in slots.tolist()
            ]
        sizes = [column[slots][:, own] for column, own in self._places]
        return self._buckets.of(sizes[0] if len(sizes) == 1 else np.concatenate(sizes, axis=1))
