"""The model of bench.chaos.tagged as it is too slow for its queue, and as it has other tensors."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import batchpool as bp
from bench.chaos.tagged import WIDTH, Tagged

SLOW_BATCH_S = 0.25


class Slow(Tagged):
    """A batch takes so long that what is submitted stays queued."""

    name = "tagged"

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        time.sleep(SLOW_BATCH_S)
        return super().infer(batch)


class Wider(Tagged):
    """It takes rows of another width: tasks that were checked before cannot run."""

    name = "tagged"
    inputs = (bp.Tensor("tag", "int64", ()), bp.Tensor("x", "float32", (WIDTH + 1,)))

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        return {"of": batch["tag"], "y": batch["x"][:, :WIDTH]}
