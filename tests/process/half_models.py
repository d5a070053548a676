"""Models of half precision: torch on the real types, numpy on what it has for them.

Of the processes of a pool only the worker whose model uses torch imports it, which takes seconds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import batchpool as bp

WIDTH = 256
TENSORS = [bp.Tensor("half", "float16", (WIDTH,)), bp.Tensor("brain", "bfloat16", (WIDTH,))]


class TorchHalves(bp.Model):
    """Its inputs as they came, and `rounded`: a float32 as the bfloat16 that torch makes of it."""

    inputs = [*TENSORS, bp.Tensor("single", "float32")]
    outputs = [*TENSORS, bp.Tensor("rounded", "bfloat16")]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        import torch

        half, brain, single = batch["half"], batch["brain"], batch["single"]
        assert isinstance(half, torch.Tensor)
        assert isinstance(brain, torch.Tensor)
        assert isinstance(single, torch.Tensor)
        assert (half.dtype, brain.dtype) == (torch.float16, torch.bfloat16)
        return {"half": half, "brain": brain, "rounded": single.to(torch.bfloat16)}


class NumpyHalves(bp.Model):
    """Its inputs as they came; a bfloat16 is its bits here."""

    framework = "numpy"
    inputs = TENSORS
    outputs = TENSORS

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        assert (batch["half"].dtype, batch["brain"].dtype) == (np.float16, np.uint16)
        return {"half": batch["half"], "brain": batch["brain"]}
