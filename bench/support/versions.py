"""A model whose version stands in a file, for bench/reload.py."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

import batchpool as bp

FILE = "BATCHPOOL_BENCH_VERSION"  # environment: where the version stands
TAKES_S = 0.004  # a batch: so that one worker alone does not get everything


class Version(bp.Model):
    """Every row gets its tag back, the version and the pid of the worker. Version 0 cannot load
    in the second worker of two."""

    framework = "numpy"
    inputs = [bp.Tensor("tag", "int64")]
    outputs = [bp.Tensor(name, "int64") for name in ("tag", "version", "pid")]

    def load(self, device: str) -> None:
        path = Path(os.environ[FILE])
        self.version, _, load = path.read_text().partition(" ")
        if load == "first":
            path.write_text(f"{self.version} second")
        elif load == "second":
            raise ValueError("the weights are broken")

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        time.sleep(TAKES_S)
        n = batch.n
        version, pid = np.full(n, int(self.version)), np.full(n, os.getpid())
        return {"tag": batch["tag"], "version": version, "pid": pid}
