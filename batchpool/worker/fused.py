"""The backend of a worker that runs all stages of each batch, one after the other.

It is for a model whose `infer` runs on the CPU: further processes would take the time of the same
cores, and cost each row further pairs of wake-ups. The pool knows one stage of such a model.

    inputs [n, ...]   --preprocess: at most so many rows a call-->             features
    rows not failed, by the size buckets of what infer reads
                      --infer: a call or, by the element budget, some of each
                        bucket, padded to its longest-->                       predictions
    rows not failed   --postprocess: at most so many rows a call-->            outputs of n rows

So the methods are called as they are with processes of their own: by an instance of the model each,
`infer` with rows of like size, padded to an accepted batch size for it alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from batchpool.core.errors import InvalidInput
from batchpool.core.scheduler.element_budget import BucketRows
from batchpool.core.scheduler.size_buckets import SizeBuckets
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.core.tensors.stages import Stage, stage_spec, stages_of
from batchpool.worker.backends.backend import Backend, BatchPart
from batchpool.worker.backends.cpu import CpuBackend
from batchpool.worker.outputs import CheckedOutputs, check_outputs
from batchpool.worker.padding import Padding
from batchpool.worker.some_rows import blank_outputs, joined_outputs, rows_of, sizes_of

Rows = npt.NDArray[np.int64]


class FusedBackend(CpuBackend):
    """Runs the stages of a model one after the other in the worker's thread.

    spec: as the model declares it. backends: of each stage. most_rows: of a call of each stage but
    `infer`, by its label. padding: of `infer`, None for any size. bucket_rows: the most rows of a
    call of `infer` by bucket; None for any number. `finish` returns `CheckedOutputs`.
    """

    def __init__(
        self,
        spec: ModelSpec,
        backends: Mapping[Stage, Backend],
        most_rows: Mapping[str, int],
        padding: Padding | None = None,
        bucket_rows: BucketRows | None = None,
    ) -> None:
        self._backends = backends
        self._specs = {stage: stage_spec(spec, stage) for stage in stages_of(spec)}
        self._most_rows = most_rows
        self._padding = padding
        self._buckets = SizeBuckets(self._specs[Stage.INFER])
        self._bucket_rows = bucket_rows

    def launch(
        self,
        rows: int,
        inputs: dict[str, Any],
        sizes: dict[str, Array | None],
        views: bool,
        parts: Sequence[BatchPart] = (),
    ) -> CheckedOutputs:
        columns, own_sizes = dict(inputs), dict(sizes)
        failed: dict[int, str] = {}
        refused: dict[int, InvalidInput] = {}
        left, found = np.arange(rows), CheckedOutputs({})
        for stage, spec in self._specs.items():
            if stage is Stage.INFER:
                calls = self._infer(left, columns, own_sizes)
            else:
                calls = self._run_on_all(stage, left, columns, own_sizes, views)
            found = joined_outputs(spec.outputs, rows, calls)
            failed |= found.failed
            refused |= found.refused
            left = np.delete(np.arange(rows), [*failed, *refused])
            columns |= found.outputs
            own_sizes |= {t.name: sizes_of(t, found.outputs[t.name]) for t in spec.outputs}
        return CheckedOutputs(found.outputs, failed, refused)

    def finish(self, handle: Any) -> Any:
        return handle

    def _run_on_all(
        self,
        stage: Stage,
        left: Rows,
        columns: dict[str, Any],
        sizes: dict[str, Array | None],
        views: bool,
    ) -> list[tuple[Rows, CheckedOutputs]]:
        """The calls of a stage before or after `infer`. The inputs of a batch that one call takes
        are handed on as they came."""
        spec, backend = self._specs[stage], self._backends[stage]
        most, n = self._most_rows[stage.label], len(left)
        if stage is Stage.PREPROCESS and n <= most:
            return [(left, _call(spec, backend, n, n, columns, sizes, views))]
        calls = []
        for start in range(0, n, most):
            rows = left[start : start + most]
            some, own = _selected(spec, rows, len(rows), columns, sizes)
            calls.append((rows, _call(spec, backend, len(rows), len(rows), some, own, True)))
        return calls

    def _infer(
        self, left: Rows, columns: Mapping[str, Any], sizes: Mapping[str, Array | None]
    ) -> list[tuple[Rows, CheckedOutputs]]:
        groups = self._groups(left, sizes)
        return [(rows, self._infer_some(rows, columns, sizes)) for rows in groups]

    def _groups(self, rows: Rows, sizes: Mapping[str, Array | None]) -> list[Rows]:
        """The rows of each call of `infer`, rising: those of a bucket, or of a part of it."""
        if len(rows) < 2:
            return [rows] if len(rows) else []
        if not self._buckets.many:
            return self._within_budget(rows, 0)
        own = [
            found for t in self._specs[Stage.INFER].inputs if (found := sizes[t.name]) is not None
        ]
        buckets = np.asarray(self._buckets.of(np.concatenate(own, axis=1)[rows]))
        groups = [(rows[buckets == bucket], int(bucket)) for bucket in np.unique(buckets)]
        return [part for group, bucket in groups for part in self._within_budget(group, bucket)]

    def _within_budget(self, rows: Rows, bucket: int) -> list[Rows]:
        """The rows of a bucket in parts that keep to the element budget."""
        if self._bucket_rows is None:
            return [rows]
        most = self._bucket_rows.of(bucket)
        return [rows[start : start + most] for start in range(0, len(rows), most)]

    def _infer_some(
        self, rows: Rows, columns: Mapping[str, Any], sizes: Mapping[str, Array | None]
    ) -> CheckedOutputs:
        """One call of `infer` with these rows."""
        spec, padding, k = self._specs[Stage.INFER], self._padding, len(rows)
        n = k if padding is None else padding.size_for(k)
        arrays, own = _selected(spec, rows, n, columns, sizes)
        if padding is not None and n > k:
            for name, array in arrays.items():
                found = padding.fill(name, array, own.get(name), k)
                if found is not None:
                    own[name] = found
        return _call(spec, self._backends[Stage.INFER], k, n, arrays, own, True)


def _call(
    spec: ModelSpec,
    backend: Backend,
    rows: int,
    n: int,
    inputs: dict[str, Any],
    sizes: dict[str, Array | None],
    views: bool,
) -> CheckedOutputs:
    """One call of a stage with n rows, of which the first `rows` are no padding. An `InvalidInput`
    that it raises refuses the row that was alone in the call."""
    try:
        found = backend.finish(backend.launch(rows, inputs, sizes, views, ()))
        return check_outputs(spec, found, n, sizes, rows)
    except InvalidInput as error:
        if rows > 1:
            raise
        return CheckedOutputs(blank_outputs(spec.outputs), refused={0: error})


def _selected(
    spec: ModelSpec,
    rows: Rows,
    n: int,
    columns: Mapping[str, Any],
    sizes: Mapping[str, Array | None],
) -> tuple[dict[str, Array], dict[str, Array | None]]:
    """The tensors of a stage, of some rows: arrays of n rows, and the sizes of the first ones."""
    tensors: tuple[Tensor, ...] = (*spec.inputs, *spec.parameters)
    own = {t.name: found[rows] for t in spec.inputs if (found := sizes[t.name]) is not None}
    arrays = {t.name: rows_of(t, columns[t.name], own.get(t.name), rows, n) for t in tensors}
    return arrays, {t.name: own.get(t.name) for t in spec.inputs}
