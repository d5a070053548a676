"""The model of boxes that are killed: it takes time and no CPU; an answer tells its input."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import batchpool as bp


class Sleeper(bp.Model):
    """y = 2x + 1 after 5 ms and row_ms for each row."""

    framework = "numpy"
    inputs = (bp.Tensor("x", "int64"),)
    outputs = (bp.Tensor("y", "int64"),)
    max_batch = 32

    def __init__(self, row_ms: float = 1.0) -> None:
        self._row_s = row_ms / 1000

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        time.sleep(0.005 + self._row_s * batch.rows)
        return {"y": batch["x"] * 2 + 1}
