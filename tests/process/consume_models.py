"""A model whose records may fail."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import batchpool as bp


class Doubler(bp.Model):
    """Twice x; a negative x is refused, and 13 makes the model fail."""

    framework = "numpy"
    inputs = (bp.Tensor("x", "float32"),)
    outputs = (bp.Tensor("y", "float32"),)

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        time.sleep(0.002)
        for at, x in enumerate(batch["x"].tolist()):
            if x < 0:
                batch.fail(at, bp.InvalidInput("x is negative"))
            if x == 13:
                batch.fail(at, RuntimeError("unlucky"))
        return {"y": 2 * batch["x"]}
