"""Batches that run before a worker is ready, so that no request pays for a model's first calls."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from batchpool.core.errors import ModelError
from batchpool.core.tensors.arrays import as_rows
from batchpool.core.tensors.dtypes import Array, filled
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.model import Model
from batchpool.worker.backends.backend import Backend
from batchpool.worker.failed_rows import failed_rows, refusal_text
from batchpool.worker.outputs import check_outputs


class WarmUpRowFailed(ModelError):
    """The model failed or refused the row of the warm-up, and no other."""


class BatchTime(NamedTuple):
    """The time that a batch of so many rows took."""

    rows: int
    seconds: float


def warm_up_rows(model: Model, spec: ModelSpec) -> dict[str, Array]:
    """One row [1, *row shape] of every input and every parameter, from `Model.warm_up_row`."""
    given = model.warm_up_row()
    rows = {tensor.name: _row(tensor, given) for tensor in spec.inputs}
    for parameter in spec.parameters:
        value = parameter.default
        if value is None:
            value = _warm_up_text(parameter) if parameter.is_bytes else 0
        rows[parameter.name] = filled(1, parameter.scalar(value), parameter.np_dtype)
    return rows


def warm_up(
    spec: ModelSpec,
    backend: Backend,
    rows: Mapping[str, Array],
    batch_sizes: Sequence[int],
    times: int = 2,
    *,
    max_elements: int = 0,
) -> BatchTime:
    """Run a batch of every size, made of one row, and check its outputs as for requests.

    Returns the slowest of the last runs of all sizes: an earlier run pays for what is done once.

    times: how often each size runs. max_elements: of each input of a batch, 0 for any number; where
    the row is too long for a size, that size is run with the row cut in its dynamic dimensions.
    Raises what the model raises; WarmUpRowFailed where it fails or refuses a row, ModelError where
    an output does not fit its declaration.
    """
    slowest = BatchTime(0, 0.0)
    for n in batch_sizes:
        own = _cut_to(max_elements // n, spec, rows) if max_elements else rows
        for _ in range(times):
            begun_s = time.monotonic()
            inputs = {name: np.repeat(row, n, axis=0) for name, row in own.items()}
            sizes = {tensor.name: _sizes(tensor, own[tensor.name], n) for tensor in spec.inputs}
            found = backend.finish(backend.launch(n, inputs, sizes, True, ()))
            checked = check_outputs(spec, found, n, sizes)
            if checked.failed:
                text = next(iter(checked.failed.values()))
                raise WarmUpRowFailed(text) if _names_rows(found, n) else ModelError(text)
            if checked.refused:
                text = refusal_text(next(iter(checked.refused.values())))
                raise WarmUpRowFailed(f"the model refused its own warm-up row: {text}")
        took_s = time.monotonic() - begun_s
        if took_s >= slowest.seconds:
            slowest = BatchTime(n, took_s)
    return slowest


def _names_rows(found: Any, n: int) -> bool:
    """True if the model itself failed a row of its answer; False also where a backend has checked
    the answer."""
    return isinstance(found, Mapping) and bool(failed_rows(found, n))


def largest_input(spec: ModelSpec, rows: Mapping[str, Array]) -> int:
    """The elements of the largest input of a row. rows: {input: [1, *row shape]}."""
    return max((rows[tensor.name].size for tensor in spec.inputs), default=1)


def _cut_to(most: int, spec: ModelSpec, rows: Mapping[str, Array]) -> dict[str, Array]:
    """A row of at most so many elements in each input, or as few as it can have.

    All dynamic dimensions are halved together, so that those that belong together stay equal.
    """
    cut = dict(rows)
    dynamic = [tensor for tensor in spec.inputs if tensor.dynamic]
    while any(_is_longer(tensor, cut[tensor.name], most) for tensor in dynamic):
        for tensor in dynamic:
            halves = [
                slice(0, -(-size // 2) if at in tensor.dynamic else size)
                for at, size in enumerate(cut[tensor.name].shape[1:])
            ]
            cut[tensor.name] = cut[tensor.name][(slice(None), *halves)]
    return cut


def _is_longer(tensor: Tensor, row: Array, most: int) -> bool:
    """True if a row [1, *row shape] has more elements, and can be cut."""
    return row.size > most and any(row.shape[1 + at] > 1 for at in tensor.dynamic)


def _row(tensor: Tensor, given: Mapping[str, Any]) -> Array:
    if tensor.name in given:
        value = given[tensor.name]
        return as_rows(tensor, [value] if tensor.is_bytes else np.asarray(value)[np.newaxis])
    if tensor.default is not None:
        return filled((1, *tensor.max_shape), tensor.scalar(tensor.default), tensor.np_dtype)
    if tensor.is_bytes:
        return filled((1, *tensor.max_shape), _warm_up_text(tensor), np.dtype(object))
    return filled((1, *tensor.max_shape), tensor.stored_pad, tensor.np_dtype)


def _warm_up_text(tensor: Tensor) -> bytes:
    return b"warm up"[: tensor.max_bytes]


def _sizes(tensor: Tensor, row: Array, n: int) -> Array | None:
    if not tensor.dynamic:
        return None
    own = [row.shape[1 + dim] for dim in tensor.dynamic]
    return np.tile(np.array(own, dtype=np.int64), (n, 1))
