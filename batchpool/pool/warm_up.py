"""Calls before ready: the first batch of a request must not be the first batch of the model."""

from __future__ import annotations

from typing import Any

import numpy as np

from batchpool.core.errors import ModelError
from batchpool.core.tensors import Array, ModelSpec, Tensor, as_rows
from batchpool.model import Model
from batchpool.pool.answers import check_answers


def warm_up(model: Model, spec: ModelSpec, runner: Any, max_batch: int) -> None:
    """Run one row and a full batch, twice each, and check the answers as for real requests.

    Raises what the model raises; ModelError where its answer does not fit its declaration.
    """
    given = model.warm_up_row()
    for n in (1, max_batch):
        for _ in range(2):
            inputs: dict[str, Array] = {}
            sizes: dict[str, Array | None] = {}
            for tensor in spec.inputs:
                inputs[tensor.name], sizes[tensor.name] = _rows(tensor, given, n)
            for parameter in spec.parameters:
                value = 0 if parameter.default is None else parameter.default
                inputs[parameter.name] = np.full(n, value, dtype=parameter.np_dtype)
            found = runner.finish(runner.launch(n, inputs, sizes, True))
            answers = check_answers(spec, found, n, sizes)
            if answers.failed:
                raise ModelError(next(iter(answers.failed.values())))


def _rows(tensor: Tensor, given: Any, n: int) -> tuple[Array, Array | None]:
    if tensor.name in given:
        value = given[tensor.name]
        row = as_rows(tensor, [value] if tensor.is_bytes else np.asarray(value)[np.newaxis])
    elif tensor.is_bytes:
        assert tensor.max_bytes is not None
        row = np.full((1, *tensor.max_shape), b"warm up"[: tensor.max_bytes], dtype=object)
    else:
        row = np.full((1, *tensor.max_shape), tensor.stored_pad, dtype=tensor.np_dtype)
    rows = np.repeat(row, n, axis=0)
    if not tensor.dynamic:
        return rows, None
    own = [rows.shape[1 + dim] for dim in tensor.dynamic]
    return rows, np.tile(np.array(own, dtype=np.int64), (n, 1))
