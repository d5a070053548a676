"""Calls before ready: the first batch of a request must not be the first batch of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from batchpool.core.errors import ModelError
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.numbers import as_row_value
from batchpool.core.tensors.rows import as_rows
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.model import Model
from batchpool.worker.outputs import check_answers


def warm_up_rows(model: Model, spec: ModelSpec) -> dict[str, Array]:
    """One row [1, *row shape] of every input and every parameter, as the model wants it."""
    given = model.warm_up_row()
    rows = {tensor.name: _row(tensor, given) for tensor in spec.inputs}
    for parameter in spec.parameters:
        value = as_row_value(parameter.name, parameter.element, parameter.default or 0)
        rows[parameter.name] = np.full(1, value, dtype=parameter.np_dtype)
    return rows


def warm_up(
    spec: ModelSpec, runner: Any, rows: Mapping[str, Array], batch_sizes: Sequence[int]
) -> None:
    """Run a batch of every size twice, made of one row, and check the answers as for requests.

    Raises what the model raises; ModelError where its answer does not fit its declaration.
    """
    for n in batch_sizes:
        for _ in range(2):
            inputs = {name: np.repeat(row, n, axis=0) for name, row in rows.items()}
            sizes = {tensor.name: _sizes(tensor, rows[tensor.name], n) for tensor in spec.inputs}
            found = runner.finish(runner.launch(n, inputs, sizes, True))
            answers = check_answers(spec, found, n, sizes)
            if answers.failed:
                raise ModelError(next(iter(answers.failed.values())))


def _row(tensor: Tensor, given: Mapping[str, Any]) -> Array:
    if tensor.name in given:
        value = given[tensor.name]
        return as_rows(tensor, [value] if tensor.is_bytes else np.asarray(value)[np.newaxis])
    if tensor.is_bytes:
        assert tensor.max_bytes is not None
        return np.full((1, *tensor.max_shape), b"warm up"[: tensor.max_bytes], dtype=object)
    return np.full((1, *tensor.max_shape), tensor.stored_pad, dtype=tensor.np_dtype)


def _sizes(tensor: Tensor, row: Array, n: int) -> Array | None:
    if not tensor.dynamic:
        return None
    own = [row.shape[1 + dim] for dim in tensor.dynamic]
    return np.tile(np.array(own, dtype=np.int64), (n, 1))
