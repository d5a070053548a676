"""Models that edit or convert their inputs with torch, which only their workers import."""

from __future__ import annotations

import os
import signal
import warnings
from typing import Any

import batchpool as bp
from tests.process.models import Inplace, first_time


class TorchInplace(bp.Model):
    """Edits its input; the first call with a mark dies after that."""

    inputs, outputs = Inplace.inputs, Inplace.outputs

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        x = batch["x"]
        x += 1
        for mark in batch["mark"].tolist():
            if mark and first_time(f"torch-{mark}"):
                os.kill(os.getpid(), signal.SIGKILL)
        return {"y": x}


class Converts(bp.Model):
    """A numpy model that goes on with torch, on the same memory; y = x + 1."""

    framework = "numpy"
    inputs, outputs = Inplace.inputs, Inplace.outputs

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        import torch

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that the array is read-only
            x = torch.from_numpy(batch["x"])
        return {"y": (x + 1).numpy()}
