"""Torch models for the tests of real processes, of which their workers alone import it."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from typing import Any

import batchpool as bp
from tests.process.sized_models import INPUTS, OUTPUTS, PARAMETERS, check_size


class Threads(bp.Model):
    """y = Wx by a matrix product; with how many threads this worker computes it, and how many
    objects the garbage collector lets be."""

    inputs = [bp.Tensor("x", "float32", (256,))]
    outputs = [bp.Tensor("y", "float32", (256,)), bp.Tensor("threads", "int64"),
               bp.Tensor("pid", "int64"), bp.Tensor("frozen", "int64")]  # fmt: skip

    def load(self, device: str) -> None:
        import torch

        self.weight = 2 * torch.eye(256, device=device)

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        import torch

        x = batch["x"]
        assert isinstance(x, torch.Tensor)
        n = x.shape[0]
        y = x @ self.weight
        x += 1  # its own copy: a neighbour or a retry never sees this
        threads = torch.full((n,), torch.get_num_threads())
        pid, frozen = torch.full((n,), os.getpid()), torch.full((n,), gc.get_freeze_count())
        return {"y": y, "threads": threads, "pid": pid, "frozen": frozen}


class SizedTorch(bp.Model):
    """A copy of the numpy model `Sized` that spoils its inputs."""

    allowed: Sequence[int] = (1, 8, 32)
    inputs, outputs, parameters = INPUTS, OUTPUTS, PARAMETERS

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        import torch

        check_size(batch, self.allowed)
        found = {
            "tag": batch["tag"].clone(),
            "next": batch["ids"] + 1,
            "text": batch["text"].copy(),
            "scale": batch["scale"].clone(),
            "n": torch.full((batch.n,), batch.n),
            "rows": torch.full((batch.n,), batch.rows),
        }
        assert (found["tag"][batch.rows :] == 0).all()
        for name in ("tag", "ids", "scale"):
            batch[name].fill_(9)
        return found


class FullTorch(SizedTorch):
    """Takes 64 rows and nothing else."""

    allowed = (64,)
