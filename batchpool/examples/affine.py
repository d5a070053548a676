"""The smallest model: y = 2x + 1 on four floats, in numpy; no extra is needed.

    batchpool serve --model batchpool.examples.affine:Affine --devices cpu

    curl -s localhost:8000/v2/models/affine/infer -d \
      '{"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}'
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import batchpool as bp


class Affine(bp.Model):
    """`x` [n, 4] float32 -> `y` [n, 4] float32."""

    name = "affine"
    framework = "numpy"
    inputs = [bp.Tensor("x", "float32", (4,))]
    outputs = [bp.Tensor("y", "float32", (4,))]

    def infer(self, batch: bp.Batch) -> dict[str, npt.NDArray[np.float32]]:
        return {"y": batch["x"] * np.float32(2) + np.float32(1)}
