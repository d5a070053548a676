"""Models that tell where they run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

import batchpool as bp


class Where(bp.Model):
    """Echoes a tag with the worker's pid, the UUID of its only GPU and what it was told."""

    inputs = (bp.Tensor("tag", "int64", ()),)
    outputs = (
        bp.Tensor("tag", "int64", ()),
        bp.Tensor("pid", "int64", ()),
        bp.Tensor("uuid", "bytes", (), max_bytes=64),
        bp.Tensor("visible", "bytes", (), max_bytes=256),
        bp.Tensor("device", "bytes", (), max_bytes=32),
    )

    def load(self, device: str) -> None:
        import torch

        assert torch.cuda.device_count() == 1, "a worker sees its own GPU only"
        self._device = device
        self._uuid = str(torch.cuda.get_device_properties(device).uuid)

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        assert batch["tag"].is_cuda
        return {
            "tag": batch["tag"] * 1,
            "pid": np.full(batch.n, os.getpid(), dtype=np.int64),
            "uuid": [self._uuid] * batch.n,
            "visible": [os.environ.get("CUDA_VISIBLE_DEVICES", "")] * batch.n,
            "device": [self._device] * batch.n,
        }


class Raises(bp.Model):
    """Raises a CUDA-side error free of charge: a wrong shape, for rows that ask for it."""

    inputs = (bp.Tensor("x", "float32", (4,)),)
    outputs = (bp.Tensor("y", "float32", (4,)),)

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        x = batch["x"]
        if bool((x < 0).any()):
            raise ValueError("a negative row")
        return {"y": x * 2 + 1}


class Hungry(bp.Model):
    """Wants memory for every row, more than the card has for more than a few of them."""

    inputs = (bp.Tensor("tag", "int64", ()), bp.Tensor("gib", "int64", ()))
    outputs = (bp.Tensor("tag", "int64", ()), bp.Tensor("rows", "int64", ()))

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        import torch

        gib = int(batch["gib"].sum())
        wanted = torch.empty(gib * 2**30, dtype=torch.uint8, device=batch["gib"].device)
        del wanted
        return {"tag": batch["tag"] * 1, "rows": torch.full_like(batch["tag"], batch.n)}


class Asserts(bp.Model):
    """Looks a row up in a table of ten; a number beyond it breaks the CUDA context for good."""

    inputs = (bp.Tensor("at", "int64", ()),)
    outputs = (bp.Tensor("found", "int64", ()),)

    def load(self, device: str) -> None:
        import torch

        self._table = torch.arange(10, device=device) * 100

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        return {"found": self._table[batch["at"]]}
