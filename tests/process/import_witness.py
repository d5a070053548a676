"""Leaves a note with the pid of every process that imports it."""

from __future__ import annotations

import os
from typing import Any

import batchpool as bp
from tests.process.models import note

note(f"imported-{os.getpid()}").touch()


class Witness(bp.Model):
    framework = "numpy"
    inputs = [bp.Tensor("x", "float32")]
    outputs = [bp.Tensor("y", "float32")]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        return {"y": batch["x"]}
