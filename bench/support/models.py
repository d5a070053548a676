"""The models the benchmarks serve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import batchpool as bp

WIDTH = 512


class Affine(bp.Model):
    """y = 2x + 1 on 512 floats: no work, so that only the transport is measured."""

    framework = "numpy"
    inputs = (bp.Tensor("x", "float32", (WIDTH,)),)
    outputs = (bp.Tensor("y", "float32", (WIDTH,)),)

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        return {"y": batch["x"] * 2 + 1}
