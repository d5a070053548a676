"""Models that the edge's tests serve: numpy, in the test's own process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

import batchpool as bp


class Affine(bp.Model):
    """`y` = 2 `x` + 1 on four floats."""

    framework = "numpy"
    inputs = [bp.Tensor("x", "float32", (4,))]
    outputs = [bp.Tensor("y", "float32", (4,))]

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        return {"y": batch["x"] * np.float32(2) + np.float32(1)}


class Echo(bp.Model):
    """`text_out` is `text`; elements of up to a megabyte."""

    framework = "numpy"
    inputs = [bp.Tensor("text", "bytes", (), max_bytes=1 << 20)]
    outputs = [bp.Tensor("text_out", "bytes", (), max_bytes=1 << 20)]

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        return {"text_out": batch["text"]}


class Two(bp.Model):
    """`tag` and the parameter `scale` in, `tag` and `scaled` = `tag` * `scale` out."""

    framework = "numpy"
    inputs = [bp.Tensor("tag", "int64", (1,))]
    outputs = [bp.Tensor("same", "int64", (1,)), bp.Tensor("scaled", "int64", (1,))]
    parameters = [bp.Tensor("scale", "int64", (), default=10)]
    batches: ClassVar[list[int]] = []

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        self.batches.append(batch.n)
        return {"same": batch["tag"], "scaled": batch["tag"] * batch["scale"][:, np.newaxis]}


class Picky(bp.Model):
    """Raises if any row is negative; otherwise its square root, NaN and infinity included."""

    framework = "numpy"
    inputs = [bp.Tensor("x", "float64", (2,))]
    outputs = [bp.Tensor("root", "float64", (2,))]

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        if (batch["x"] < 0).any():
            raise ValueError("a negative number came")
        return {"root": np.sqrt(batch["x"])}


class Wide(bp.Model):
    """Rows of a megabyte, for bodies and answers that do not fit any buffer."""

    framework = "numpy"
    inputs = [bp.Tensor("x", "uint8", (1 << 20,))]
    outputs = [bp.Tensor("y", "uint8", (1 << 20,))]

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        return {"y": batch["x"]}


class Embed(bp.Model):
    """A text's length, first byte and two constants; a token is a word. "no" is refused."""

    framework = "numpy"
    inputs = [bp.Tensor("text", "bytes", (), max_bytes=64)]
    outputs = [bp.Tensor("vector", "float32", (4,)), bp.Tensor("prompt_tokens", "int32", ())]
    parameters = [bp.Tensor("scale", "float32", (), default=1.0)]

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        vectors, tokens = np.empty((batch.n, 4), np.float32), []
        for row, text in enumerate(batch["text"]):
            vectors[row] = len(text), text[0] if text else 0, 0.1, -3.5e-7
            vectors[row] *= batch["scale"][row]
            tokens.append(len(text.split()))
            if text == b"no":
                batch.fail(row, bp.InvalidInput("no is no text", {"offset": 0}))
        return {"vector": vectors, "prompt_tokens": np.array(tokens, np.int32)}
