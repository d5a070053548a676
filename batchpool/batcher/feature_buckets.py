"""The size buckets of rows whose features are made: by the sizes of all that `infer` reads."""

from __future__ import annotations

import numpy as np

from batchpool.core.layout.tensor_columns import size_columns
from batchpool.core.scheduler.size_buckets import SizeBuckets
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec
from batchpool.core.tensors.stages import Stage, stage_spec
from batchpool.shm.lane import Lane


class FeatureBuckets:
    """The buckets of `infer` of one model with features. many: False where all rows are in one."""

    def __init__(self, spec: ModelSpec) -> None:
        self._buckets = SizeBuckets(stage_spec(spec, Stage.INFER))
        self.many = self._buckets.many
        places = size_columns(spec.inputs)
        kept = [name for name in places if name in spec.kept_inputs]
        self._kept = [column for name in kept for column, _ in places[name]]

    def of(self, lane: Lane, slots: Array) -> Array | int:
        """The bucket of the row in each slot, [n], or 0 for all."""
        if not self.many:
            return 0
        sizes = lane.feature_sizes[slots]
        if self._kept:
            sizes = np.concatenate([lane.input_sizes[slots][:, self._kept], sizes], axis=1)
        return self._buckets.of(sizes)
