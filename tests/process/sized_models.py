"""Models of engines that take certain batch sizes only: any other is an error."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

import numpy as np

import batchpool as bp
from tests.process.models import Numpy, note

INPUTS = [
    bp.Tensor("tag", "int64"),
    bp.Tensor("ids", "int64", (bp.Dim(16, "length"),), pad=-1),
    bp.Tensor("text", "bytes", max_bytes=16),
]
OUTPUTS = [
    bp.Tensor("tag", "int64"),
    bp.Tensor("next", "int64", (bp.Dim(16, "length"),)),
    bp.Tensor("text", "bytes", max_bytes=16),
    bp.Tensor("scale", "int64"),
    bp.Tensor("n", "int64"),
    bp.Tensor("rows", "int64"),
]
PARAMETERS = [bp.Tensor("scale", "int64", default=3)]


def check_size(batch: bp.Batch, allowed: Sequence[int]) -> None:
    """The size is an allowed one, the smallest that will do, and so are all arrays."""
    if batch.n != min(size for size in allowed if size >= batch.rows):
        raise AssertionError(f"a batch of {batch.n} for {batch.rows} rows")
    for name in batch:
        assert len(batch[name]) == batch.n
    for sizes in batch.sizes.values():
        assert len(sizes) == batch.n
        assert (sizes[batch.rows :] <= sizes[: batch.rows].max(axis=0)).all()


class Sized(Numpy):
    """Answers its inputs, ids plus one, and the sizes of the batch; leaves a note of each size."""

    allowed: Sequence[int] = (1, 8, 32)
    inputs, outputs, parameters = INPUTS, OUTPUTS, PARAMETERS

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        check_size(batch, self.allowed)
        with open(note("sizes"), "a", buffering=1) as file:
            file.write(f"{batch.n}\n")
        return {
            "tag": batch["tag"],
            "next": batch["ids"] + 1,
            "text": batch["text"],
            "scale": batch["scale"],
            "n": np.full(batch.n, batch.n),
            "rows": np.full(batch.n, batch.rows),
        }


class Full(Sized):
    """Takes 64 rows and nothing else."""

    allowed = (64,)


class Editing(Full):
    """And spoils its inputs, padding included, which must be whole in the next batch again."""

    writable = True

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        assert (batch["tag"][batch.rows :] == 0).all()
        assert (batch["scale"][batch.rows :] == 3).all()
        assert (batch["text"][batch.rows :] == b"warm up").all()
        found = {name: np.array(value) for name, value in super().infer(batch).items()}
        for name, spoilt in (("tag", 9), ("ids", 9), ("scale", 9), ("text", b"spoilt")):
            batch[name][...] = spoilt
        return found


class Long(Numpy):
    """Sums ids of any number, and tells the shape of the call; leaves a note of each shape."""

    inputs = [bp.Tensor("ids", "int64", (bp.Dim(256, "length"),))]
    outputs = [bp.Tensor("sum", "int64"), bp.Tensor("shape", "int64", (2,))]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        ids = batch["ids"]
        with open(note("shapes"), "a", buffering=1) as file:
            file.write(f"{ids.shape[0]}x{ids.shape[1]}\n")
        return {"sum": ids.sum(axis=1), "shape": np.tile(ids.shape, (len(ids), 1))}


class FullPoison(Numpy):
    """Gives tags back; a row with poison 1 makes the call raise, with 2 it kills the worker."""

    inputs = [bp.Tensor("tag", "int64"), bp.Tensor("poison", "int64")]
    outputs = [bp.Tensor("tag", "int64")]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        check_size(batch, (64,))
        if (batch["poison"] == 2).any():
            os.kill(os.getpid(), signal.SIGKILL)
        if (batch["poison"] == 1).any():
            raise ValueError("a poisonous row")
        return {"tag": batch["tag"]}
