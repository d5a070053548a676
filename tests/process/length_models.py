"""A model with a stage before `infer` whose features are as long as its texts.

A text that begins with "gate N " waits until the note `gate-N` is there. Every call of each stage
leaves a line with its tags in the note of the stage.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import batchpool as bp
from tests.process.models import Numpy, note
from tests.process.staged_models import write_down

LONGEST = 4096
# Longer than the batches of which more than two are sent ahead, whatever the machine.
INFER_S = 0.01


class Lengths(Numpy):
    """length: of the text."""

    name = "lengths"
    inputs = [
        bp.Tensor("text", "bytes", (), max_bytes=LONGEST),
        bp.Tensor("tag", "int64", (), default=0),
    ]
    features = [bp.Tensor("ids", "int32", (bp.Dim(LONGEST),)), "tag"]
    outputs = [bp.Tensor("length", "int64")]

    def preprocess(self, batch: bp.Batch) -> dict[str, Any]:
        texts = batch["text"].tolist()
        write_down("pre", batch["tag"].tolist())
        for text in texts:
            if text.startswith(b"gate "):
                while not note(f"gate-{int(text.split()[1])}").exists():
                    time.sleep(0.002)
        return {"ids": [np.frombuffer(text, np.uint8).astype(np.int32) for text in texts]}

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        write_down("run", batch["tag"].tolist())
        time.sleep(INFER_S)
        return {"length": batch.sizes["ids"][:, 0]}
