"""The backend of a worker that runs `preprocess` and then `infer` of each batch, in one process.

It is for a model whose `infer` runs on the CPU: a second process would take the time of the same
cores, and cost each row another pair of wake-ups. The pool knows one stage of such a model.

    inputs [n, ...]   --preprocess: at most so many rows a call-->          features of n rows
    rows it did not fail, by the size buckets of what infer reads
                      --infer: a call or, by the element budget, some of
                        each bucket, padded to its longest-->               outputs of n rows

So both methods are called as they are with processes of their own: by two instances of the model,
with rows of like size, padded to an accepted batch size for `infer` alone.
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
from batchpool.core.tensors.stages import Stage, stage_spec
from batchpool.worker.backends.backend import Backend, BatchPart
from batchpool.worker.backends.cpu import CpuBackend
from batchpool.worker.outputs import CheckedOutputs, check_outputs
from batchpool.worker.padding import Padding
from batchpool.worker.some_rows import blank_outputs, joined_outputs, rows_of, sizes_of

Rows = npt.NDArray[np.int64]


class FusedBackend(CpuBackend):
    """Runs the stages of a model one after the other in the worker's thread.

    spec: as the model declares it, with features. preprocess, infer: the backends of the stages.
    preprocess_rows: the most of a call of `preprocess`. padding: of `infer`, None for any size.
    bucket_rows: the most rows of a call of `infer` by bucket; None for any number.
    `finish` returns `CheckedOutputs`.
    """

    def __init__(
        self,
        spec: ModelSpec,
        preprocess: Backend,
        infer: Backend,
        preprocess_rows: int,
        padding: Padding | None = None,
        bucket_rows: BucketRows | None = None,
    ) -> None:
        self._preprocess, self._infer = preprocess, infer
        self._first, self._last = (stage_spec(spec, s) for s in (Stage.PREPROCESS, Stage.INFER))
        self._most = preprocess_rows
        self._padding = padding
        self._buckets = SizeBuckets(self._last)
        self._bucket_rows = bucket_rows

    def launch(
        self,
        rows: int,
        inputs: dict[str, Any],
        sizes: dict[str, Array | None],
        views: bool,
        parts: Sequence[BatchPart] = (),
    ) -> CheckedOutputs:
        features = self._features(rows, inputs, sizes, views)
        own_sizes = {t.name: sizes_of(t, features.outputs[t.name]) for t in self._first.outputs}
        columns, all_sizes = {**inputs, **features.outputs}, {**sizes, **own_sizes}
        over = [*features.failed, *features.refused]
        left = np.delete(np.arange(rows), over)
        calls = [(g, self._outputs(g, columns, all_sizes)) for g in self._groups(left, all_sizes)]
        found = joined_outputs(self._last.outputs, rows, calls)
        found.failed |= features.failed
        found.refused |= features.refused
        return found

    def finish(self, handle: Any) -> Any:
        return handle

    def _features(
        self, n: int, inputs: dict[str, Any], sizes: dict[str, Array | None], views: bool
    ) -> CheckedOutputs:
        first, backend = self._first, self._preprocess
        if n <= self._most:
            return _call(first, backend, n, n, inputs, sizes, views)
        calls = []
        for start in range(0, n, self._most):
            rows = np.arange(start, min(n, start + self._most))
            some, own = _selected(first, rows, len(rows), inputs, sizes)
            calls.append((rows, _call(first, backend, len(rows), len(rows), some, own, True)))
        return joined_outputs(first.outputs, n, calls)

    def _groups(self, rows: Rows, sizes: Mapping[str, Array | None]) -> list[Rows]:
        """The rows of each call of `infer`, rising: those of a bucket, or of a part of it."""
        if len(rows) < 2:
            return [rows] if len(rows) else []
        if not self._buckets.many:
            return self._within_budget(rows, 0)
        own = [found for t in self._last.inputs if (found := sizes[t.name]) is not None]
        buckets = np.asarray(self._buckets.of(np.concatenate(own, axis=1)[rows]))
        groups = [(rows[buckets == bucket], int(bucket)) for bucket in np.unique(buckets)]
        return [part for group, bucket in groups for part in self._within_budget(group, bucket)]

    def _within_budget(self, rows: Rows, bucket: int) -> list[Rows]:
        """The rows of a bucket in parts that keep to the element budget."""
        if self._bucket_rows is None:
            return [rows]
        most = self._bucket_rows.of(bucket)
        return [rows[start : start + most] for start in range(0, len(rows), most)]

    def _outputs(
        self, rows: Rows, columns: Mapping[str, Any], sizes: Mapping[str, Array | None]
    ) -> CheckedOutputs:
        """One call of `infer` with these rows."""
        padding, k = self._padding, len(rows)
        n = k if padding is None else padding.size_for(k)
        arrays, own = _selected(self._last, rows, n, columns, sizes)
        if padding is not None and n > k:
            for name, array in arrays.items():
                found = padding.fill(name, array, own.get(name), k)
                if found is not None:
                    own[name] = found
        return _call(self._last, self._infer, k, n, arrays, own, True)


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
