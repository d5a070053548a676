"""Models that fail in ways which say something of a row, of the device, or of its memory."""

from __future__ import annotations

import os
import signal
from typing import Any

import batchpool as bp
from tests.process.models import Numpy, note


def count(name: str) -> None:
    """Add one to a count that outlives the worker: one byte in a file."""
    with open(note(name), "ab", buffering=0) as file:
        file.write(b".")


class Poison(Numpy):
    """Gives tags back; a row with poison 1 makes the call raise, with 2 it kills the worker."""

    inputs = [bp.Tensor("tag", "int64"), bp.Tensor("poison", "int64")]
    outputs = [bp.Tensor("tag", "int64")]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        if batch["tag"].any():  # not the warm-up
            count("calls")
        if (batch["poison"] == 2).any():
            os.kill(os.getpid(), signal.SIGKILL)
        if (batch["poison"] == 1).any():
            raise ValueError("a poisonous row")
        return {"tag": batch["tag"]}


class Broken(Poison):
    """After a row with poison 3 every later call of this process raises as a CUDA context does."""

    broken = False

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        self.broken |= bool((batch["poison"] == 3).any())
        if self.broken:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return super().infer(batch)


class Greedy(Numpy):
    """Has memory for five rows; for none at all when one of them is marked."""

    inputs = [bp.Tensor("tag", "int64"), bp.Tensor("huge", "int64")]
    outputs = [bp.Tensor("tag", "int64"), bp.Tensor("rows", "int64")]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        if batch["tag"].any() and (batch.n > 5 or batch["huge"].any()):
            raise MemoryError(f"no memory for {batch.n} rows")
        return {"tag": batch["tag"], "rows": batch["tag"] * 0 + batch.n}
