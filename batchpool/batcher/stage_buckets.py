"""The size buckets of rows that a later stage runs: by the sizes of all that it reads."""

from __future__ import annotations

import numpy as np

from batchpool.core.layout.tensor_columns import size_columns
from batchpool.core.scheduler.size_buckets import SizeBuckets
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec
from batchpool.core.tensors.stages import Stage, stage_spec
from batchpool.shm.lane import Lane


class StageBuckets:
    """The buckets of one stage of a model. many: False where all rows are in one."""

    def __init__(self, spec: ModelSpec, stage: Stage) -> None:
        read = stage_spec(spec, stage)
        self._buckets = SizeBuckets(read)
        self.many = self._buckets.many
        names = {tensor.name for tensor in read.inputs}
        # In the order of what the stage reads: inputs, features, predictions.
        self._places: list[tuple[str, list[int]]] = []
        for column, tensors in (
            ("input_sizes", spec.inputs),
            ("feature_sizes", spec.features),
            ("prediction_sizes", spec.predictions),
        ):
            places = size_columns(tensors)
            own = [at for name in places if name in names for at, _ in places[name]]
            if own:
                self._places.append((column, own))

    def of(self, lane: Lane, slots: Array) -> Array | int:
        """The bucket of the row in each slot, [n], or 0 for all."""
        if not self.many:
            return 0
        sizes = [getattr(lane, column)[slots][:, own] for column, own in self._places]
        return self._buckets.of(sizes[0] if len(sizes) == 1 else np.concatenate(sizes, axis=1))
