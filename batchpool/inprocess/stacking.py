"""Arrays of one shape as one array: what a function on batches usually takes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from batchpool.inprocess.function import ModelFn


def stacking(model_fn: ModelFn) -> ModelFn:
    """model_fn for lists of inputs, which gets arrays of one kind as one array [n, ...]."""

    @wraps(model_fn, updated=())
    def run_stacked(inputs: Any) -> Any:
        return model_fn(stacked(inputs))

    return run_stacked


def stacked(inputs: Any) -> Any:
    """A list of arrays of one shape and dtype, all of numpy or all of torch on one device, as one
    array [n, ...]; anything else as it is."""
    if type(inputs) is not list or not inputs:
        return inputs
    kinds = set(map(type, inputs))
    if kinds == {np.ndarray}:
        return np.stack(inputs) if _are_alike(inputs, "shape", "dtype") else inputs
    torch = sys.modules.get("torch")  # without it nobody has a tensor of it
    stack: Callable[[list[Any]], Any] | None = getattr(torch, "stack", None)
    if stack is not None and kinds == {torch.Tensor}:  # type: ignore[union-attr]
        return stack(inputs) if _are_alike(inputs, "shape", "dtype", "device") else inputs
    return inputs


def _are_alike(arrays: list[Any], *attributes: str) -> bool:
    return all(
        len({repr(getattr(array, attribute)) for array in arrays}) == 1 for attribute in attributes
    )
