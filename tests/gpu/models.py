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


class Refuses(bp.Model):
    """y = 2x + 1; refuses rows by `how`: 1 named, 2 in a list in the row's place, 3 raised."""

    inputs = (bp.Tensor("x", "float32", (4,)), bp.Tensor("how", "int64"))
    outputs = (bp.Tensor("y", "float32", (4,)), bp.Tensor("z", "float32", (2,)))

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        y, hows = batch["x"] * 2 + 1, batch["how"].tolist()
        z: list[Any] = list(y[:, :2])
        if 3 in hows:
            raise bp.InvalidInput("raised")
        for row, how in enumerate(hows):
            if how == 1:
                batch.fail(row, bp.InvalidInput("named", {"row": row}))
            elif how == 2:
                z[row] = bp.InvalidInput("listed")
        return {"y": y, "z": z if 2 in hows else y[:, :2]}


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


class Graphs(bp.Model):
    """y = 2x as a CUDA graph, which exists for batches of 8 and of 64 rows only.

    Two batches may be in flight, each on its own stream, and a graph has fixed buffers: so
    there is one for every size and stream. Warm-up meets them all.
    """

    inputs = (
        bp.Tensor("x", "float32", (256,)),
        bp.Tensor("ids", "bfloat16", (bp.Dim(16),)),
        bp.Tensor("text", "bytes", (), max_bytes=16),
    )
    outputs = (
        bp.Tensor("y", "float32", (256,)),
        bp.Tensor("sum", "float32", ()),
        bp.Tensor("text", "bytes", (), max_bytes=16),
        *(bp.Tensor(name, "int64", ()) for name in ("n", "rows", "graphs")),
    )

    def load(self, device: str) -> None:
        import torch

        self._weight = 2 * torch.eye(256, device=device)
        self._graphs: dict[tuple[int, int], tuple[Any, Any, Any]] = {}

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        import torch

        if batch.n not in (8, 64):
            raise AssertionError(f"there is no graph for {batch.n} rows")
        assert batch["ids"].dtype == torch.bfloat16
        assert len(batch["ids"]) == len(batch["text"]) == batch.n
        key = (batch.n, torch.cuda.current_stream().cuda_stream)
        if key not in self._graphs:
            self._graphs[key] = self._capture(batch["x"])
        x, y, graph = self._graphs[key]
        x.copy_(batch["x"])
        graph.replay()
        counts = {"n": batch.n, "rows": batch.rows, "graphs": len(self._graphs)}
        return {
            "y": y,
            "sum": batch["ids"].float().sum(dim=1),
            "text": batch["text"],
            **{name: np.full(batch.n, count) for name, count in counts.items()},
        }

    def _capture(self, like: Any) -> tuple[Any, Any, Any]:
        import torch

        x, graph = like.clone(), torch.cuda.CUDAGraph()
        x @ self._weight  # what is made at the first call must not be captured
        with torch.cuda.graph(graph):
            y = x @ self._weight
        return x, y, graph
