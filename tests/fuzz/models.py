"""Models that return their inputs, so that an answer shows what was understood."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import batchpool as bp


class Vector(bp.Model):
    """Rows of three floats."""

    framework = "numpy"
    inputs = [bp.Tensor("x", "float32", (3,))]
    outputs = [bp.Tensor("x", "float32", (3,))]

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        return {"x": batch["x"]}


class Square(bp.Model):
    """Rows of two by two small integers."""

    framework = "numpy"
    inputs = [bp.Tensor("x", "uint8", (2, 2))]
    outputs = [bp.Tensor("x", "uint8", (2, 2))]

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        return {"x": batch["x"]}


class Blob(bp.Model):
    """Rows of one byte string."""

    framework = "numpy"
    inputs = [bp.Tensor("x", "bytes", (), max_bytes=40)]
    outputs = [bp.Tensor("x", "bytes", (), max_bytes=40)]

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        return {"x": batch["x"]}


class Mixed(bp.Model):
    """A dynamic tensor, a text and two flags; `knobs` are the parameters."""

    framework = "numpy"
    inputs = [
        bp.Tensor("ids", "int64", (bp.Dim(4),)),
        bp.Tensor("text", "bytes", (), max_bytes=16),
        bp.Tensor("flag", "bool", (2,)),
    ]
    outputs = [
        bp.Tensor("ids", "int64", (bp.Dim(4),)),
        bp.Tensor("text", "bytes", (), max_bytes=16),
        bp.Tensor("flag", "bool", (2,)),
        bp.Tensor("knobs", "float64", (2,)),
    ]
    parameters = [
        bp.Tensor("top_k", "int64", (), default=5),
        bp.Tensor("ratio", "float32", (), default=1.0),
    ]

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        sizes = batch.sizes["ids"][:, 0].tolist()
        return {
            "ids": [row[:n] for row, n in zip(batch["ids"], sizes, strict=True)],
            "text": batch["text"],
            "flag": batch["flag"],
            "knobs": np.stack([batch["top_k"], batch["ratio"]], axis=1).astype(np.float64),
        }


MODELS: tuple[type[bp.Model], ...] = (Vector, Square, Blob, Mixed)
