"""Rows that tell on whoever mixes them up, the model that answers them, and its beat.

Every row of every request has a tag of its own and its values follow from the tag; so does the
one right answer. The model's beat is a counter in a file of its process that is odd while a
batch runs: whoever kills a worker reads there that rows were RUNNING.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import batchpool as bp

WIDTH = 32
ROWS_MOST = 4
BEATS = "BENCH_BEATS"  # names the folder of the beats
BATCH_S = 0.004


def rows_of(tag: int) -> dict[str, Any]:
    """The inputs of the request with this tag, 1 to ROWS_MOST rows of it."""
    tags = tag * ROWS_MOST + np.arange(1 + tag % ROWS_MOST)
    x = (tags[:, None] * 31 + np.arange(WIDTH)) % 9973
    return {"tag": tags, "x": x.astype(np.float32)}


def is_right(tag: int, outputs: Mapping[str, Any]) -> bool:
    """True if this is the whole and exact answer to `rows_of(tag)`."""
    sent = rows_of(tag)
    y = 2 * sent["x"] + (sent["tag"] % 997)[:, None]
    return np.array_equal(outputs["of"], sent["tag"]) and np.array_equal(outputs["y"], y)


def own_beat() -> memoryview:
    """The beat of this process, at 0."""
    path = Path(os.environ[BEATS]) / str(os.getpid())
    path.write_bytes(bytes(8))
    with open(path, "r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 8)).cast("Q")


class Tagged(bp.Model):
    """y = 2x + tag % 997; a batch takes 4 ms."""

    framework = "numpy"
    inputs = (bp.Tensor("tag", "int64", ()), bp.Tensor("x", "float32", (WIDTH,)))
    outputs = (bp.Tensor("of", "int64", ()), bp.Tensor("y", "float32", (WIDTH,)))

    def load(self, device: str) -> None:
        self._beat = own_beat()

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        self._beat[0] += 1
        time.sleep(BATCH_S)
        tags = batch["tag"]
        y = (2 * batch["x"] + (tags % 997)[:, None]).astype(np.float32)
        self._beat[0] += 1
        return {"of": tags, "y": y}


class Beats:
    """The reader's side of the beats of all workers."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._maps: dict[int, memoryview] = {}

    def read(self, pid: int) -> int:
        """A worker's count of begun and ended batches: odd while one runs."""
        if pid not in self._maps:
            with open(self._folder / str(pid), "rb") as file:
                whole = mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)
            self._maps[pid] = memoryview(whole).cast("Q")
        return self._maps[pid][0]
