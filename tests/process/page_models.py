"""Models whose errors do not mean well."""

from __future__ import annotations

from typing import Any

import numpy as np

import batchpool as bp

HTML = (
    "<img src=x onerror=\"document.title='injected'\"><script>document.title='injected'</script>"
    "</td></table><b>bold</b> & &amp;"
)


class Touchy(bp.Model):
    """`y` = 2 `x`; raises a text full of HTML where a row is negative."""

    framework = "numpy"
    inputs = [bp.Tensor("x", "float32", (4,))]
    outputs = [bp.Tensor("y", "float32", (4,))]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        if (batch["x"] < 0).any():
            raise ValueError(HTML)
        return {"y": batch["x"] * np.float32(2)}


class Sentences(bp.Model):
    """Text and numbers in, half-precision numbers and a parameter's echo out."""

    framework = "numpy"
    inputs = [
        bp.Tensor("text", "bytes", (), max_bytes=64),
        bp.Tensor("weights", "float16", (16, 16)),
    ]
    outputs = [bp.Tensor("half", "float16", (2,)), bp.Tensor("length", "int64")]
    parameters = [bp.Tensor("scale", "int64", (), default=3)]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        length = np.array([len(text) for text in batch["text"]], np.int64)
        return {"half": batch["weights"][:, 0, :2], "length": length * batch["scale"]}
