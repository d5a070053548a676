"""The backend that runs `preprocess`: numpy arrays in, features out, on the CPU.

It imports no framework. Where the model's own code has imported torch, a feature may be a tensor of
torch.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from batchpool.core.errors import InvalidInput
from batchpool.core.tensors.dtypes import Array
from batchpool.model import Model
from batchpool.worker.backends.backend import (
    FAILED_ROWS,
    BatchPart,
    batch_of,
    call_method,
    to_host,
)
from batchpool.worker.backends.cpu import CpuBackend, as_arguments


class PreprocessBackend(CpuBackend):
    """Runs `preprocess` in the worker's thread; inputs are views or copies as for a numpy model."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def launch(
        self,
        rows: int,
        inputs: dict[str, Any],
        sizes: dict[str, Array | None],
        views: bool,
        parts: Sequence[BatchPart] = (),
    ) -> Any:
        inputs = as_arguments(inputs, views=views, writable=self._model.writable)
        return call_method(self._model.preprocess, batch_of(rows, inputs, sizes))

    def finish(self, handle: Any) -> Any:
        if not isinstance(handle, Mapping):
            return handle
        torch = sys.modules.get("torch")
        found = dict(handle)
        if FAILED_ROWS in found:
            errors = found[FAILED_ROWS].items()
            found[FAILED_ROWS] = {row: _as_refusal(error) for row, error in errors}
        for name, value in found.items():
            if name is not FAILED_ROWS:
                found[name] = _with_refusals(value if torch is None else to_host(torch, value))
        return found


def _with_refusals(value: Any) -> Any:
    """A feature with an InvalidInput in the place of each ValueError."""
    if isinstance(value, (list, tuple)):
        return [_as_refusal(row) for row in value]
    if isinstance(value, np.ndarray) and value.dtype.hasobject and value.ndim:
        own = value.copy()
        for at, element in np.ndenumerate(value):
            if isinstance(element, ValueError):
                own[at] = _as_refusal(element)
        return own
    return value


def _as_refusal(element: Any) -> Any:
    """The ValueError of a row as the caller's fault; anything else unchanged."""
    if not isinstance(element, ValueError) or isinstance(element, InvalidInput):
        return element
    try:
        text = str(element)
    except Exception:
        text = ""
    return InvalidInput(text or type(element).__name__)
