"""Models that take as long as they are told to: a device's time is slept, not worked.

SLEEP_BASE_MS and SLEEP_ROW_MS say how long a batch of n rows takes: base + n x row. With
batch sizes n is what the engine is given, padding and all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import batchpool as bp
from bench.support.models import WIDTH


class Sleeper(bp.Model):
    """y = 2x + 1 on 512 floats (2 KB), in the time of a pretended device."""

    framework = "numpy"
    inputs = (bp.Tensor("x", "float32", (WIDTH,)),)
    outputs = (bp.Tensor("y", "float32", (WIDTH,)),)

    def load(self, device: str) -> None:
        self._base_s = float(os.environ["SLEEP_BASE_MS"]) / 1e3
        self._row_s = float(os.environ["SLEEP_ROW_MS"]) / 1e3

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        until_s = time.perf_counter() + self._base_s + len(batch["x"]) * self._row_s
        y = batch["x"] * 2 + 1
        time.sleep(max(0.0, until_s - time.perf_counter()))
        return {"y": y}


def sleeping(base_ms: float, row_ms: float) -> dict[str, str]:
    """The environment of a pool that serves `Sleeper`."""
    return {"SLEEP_BASE_MS": str(base_ms), "SLEEP_ROW_MS": str(row_ms)}
