"""The backend of a stage in a CPU process of its own: numpy arrays in, numpy arrays out.

It imports no framework. Where the model's own code has imported torch, what the method returns may
be tensors of torch.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from batchpool.worker.backends.backend import FAILED_ROWS, to_host
from batchpool.worker.backends.cpu import NumpyMethodBackend


class CpuStageBackend(NumpyMethodBackend):
    """Runs `preprocess` or `postprocess`, as a numpy model's `infer` is run."""

    def finish(self, handle: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(handle, Mapping):
            return handle
        return {
            name: value if name is FAILED_ROWS else to_host(torch, value)
            for name, value in handle.items()
        }
