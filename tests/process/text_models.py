"""A model that embeds texts, for OpenAI's clients."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import batchpool as bp
from tests.process.models import note


class Words(bp.Model):
    """A text's bytes, words and first byte as a vector, and its words as tokens.

    "refuse" is refused, "raise" fails the batch, "wait" waits for the note "go".
    """

    framework = "numpy"
    inputs = [bp.Tensor("text", "bytes", (), max_bytes=256)]
    outputs = [bp.Tensor("vector", "float32", (3,)), bp.Tensor("prompt_tokens", "int64", ())]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        rows = []
        for row, text in enumerate(batch["text"]):
            if text == b"refuse":
                batch.fail(row, bp.InvalidInput("this is no text", {"offset": 0}))
            if text == b"raise":
                raise ValueError("a text that the model cannot take")
            while text == b"wait" and not note("go").exists():
                time.sleep(0.003)
            rows.append((len(text), len(text.split()), text[0] if text else 0))
        table = np.array(rows)
        return {"vector": table.astype(np.float32), "prompt_tokens": table[:, 1]}
