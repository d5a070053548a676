"""A model with options, which decide its numbers and its tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

import batchpool as bp


class Scale(bp.Model):
    """`x` times `by`, `width` numbers a row, and the name by which the model is served."""

    framework = "numpy"

    def __init__(self, by: float, width: int = 2) -> None:
        self._by = by
        self._name = self.name.encode()
        self.inputs = [bp.Tensor("x", "float32", (width,))]
        self.outputs = [
            bp.Tensor("y", "float32", (width,)),
            bp.Tensor("name", "bytes", max_bytes=64),
        ]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        return {"y": batch["x"] * np.float32(self._by), "name": [self._name] * batch.n}
