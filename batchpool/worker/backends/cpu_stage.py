"""The backend of a stage in a CPU process of its own: numpy arrays in, numpy arrays out.

It imports no framework. Where the model's own code has imported torch, what the method returns may
be tensors of torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from batchpool.core.tensors.dtypes import Array
from batchpool.model import Batch
from batchpool.worker.backends.backend import (
    FAILED_ROWS,
    BatchPart,
    batch_of,
    call_method,
    to_host,
)
from batchpool.worker.backends.cpu import CpuBackend, as_arguments


class CpuStageBackend(CpuBackend):
    """Runs one method of a model in the worker's thread.

    Inputs are views or copies as for a numpy model; writable: as the model says.
    """

    def __init__(self, method: Callable[[Batch], Any], *, writable: bool) -> None:
        self._method = method
        self._writable = writable

    def launch(
        self,
        rows: int,
        inputs: dict[str, Any],
        sizes: dict[str, Array | None],
        views: bool,
        parts: Sequence[BatchPart] = (),
    ) -> Any:
        inputs = as_arguments(inputs, views=views, writable=self._writable)
        return call_method(self._method, batch_of(rows, inputs, sizes))

    def finish(self, handle: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(handle, Mapping):
            return handle
        return {
            name: value if name is FAILED_ROWS else to_host(torch, value)
            for name, value in handle.items()
        }
