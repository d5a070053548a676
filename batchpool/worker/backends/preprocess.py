"""The backend that runs `preprocess`: a ValueError in a row's place is the caller's fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from batchpool.core.errors import InvalidInput
from batchpool.model import Model
from batchpool.worker.backends.backend import FAILED_ROWS
from batchpool.worker.backends.cpu_stage import CpuStageBackend


class PreprocessBackend(CpuStageBackend):
    """Runs `preprocess`, whose features are returned with a refusal for each ValueError."""

    def __init__(self, model: Model) -> None:
        super().__init__(model.preprocess, writable=model.writable)

    def finish(self, handle: Any) -> Any:
        found = super().finish(handle)
        if not isinstance(found, Mapping):
            return found
        return {
            name: {row: _as_refusal(error) for row, error in value.items()}
            if name is FAILED_ROWS
            else _with_refusals(value)
            for name, value in found.items()
        }


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
