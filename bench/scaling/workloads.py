"""Rows of the scaling benchmark, and the check of their answers.

All rows differ, and so do their answers by far more than half precision blurs them; whoever gets
another row's answer notices. The judge compares the first COLUMNS values of every row, and
of one row in each window all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
COLUMNS = 64
FLOOR = 3e-3  # of the largest value: a difference that small is no error
_VARIANTS_MOST = 64
_COMPARED = 256  # rows whose answers are compared with each other


@dataclass(frozen=True)
class Workload:
    """A model and what is sent to it.

    window: rows of one `Client.infer`.  rows: how many different ones there are.
    client_slots: of a local client's lane, at most.
    """

    name: str
    import_name: str
    input: str
    output: str
    window: int
    rows: int
    client_slots: int
    make: Callable[[int, np.random.Generator], Array]

    def make_rows(self) -> Array:
        return self.make(self.rows, np.random.default_rng(20))


def _floats(n: int, random: np.random.Generator) -> Array:
    return random.standard_normal((n, 512), dtype=np.float32)


def _images(n: int, random: np.random.Generator) -> Array:
    """Sixteen random colours each: noise, which looks like any other noise from afar, would do
    for the speed, but not to tell images apart."""
    coarse = random.integers(0, 256, (n, 3, 4, 4), dtype=np.uint8)
    return coarse.repeat(56, axis=2).repeat(56, axis=3)


def _ids(n: int, random: np.random.Generator) -> Array:
    return random.integers(0, 30_522, (n, 64), dtype=np.int64)


WORKLOADS = {
    "mlp": Workload("mlp", "batchpool.examples.mlp:MLP", "x", "y", 1024, 4096, 1 << 20, _floats),
    "resnet": Workload(
        "resnet50", "bench.support.gpu_models:ResNet50", "image", "logits", 256, 640, 1024, _images
    ),
    "encoder": Workload(
        "encoder", "bench.support.gpu_models:Encoder", "ids", "embedding", 1024, 4096, 1 << 20, _ids
    ),
}


@dataclass(frozen=True)
class Judge:
    """right: the answers [rows, width].  tolerance: the largest difference that is no error."""

    right: Array
    tolerance: float

    def error(self, at: int, y: Array) -> float:
        """The largest difference seen in the answers to the rows from `at` on; nan and another
        shape are infinitely wrong."""
        want = self.right[at : at + len(y)]
        if y.shape != want.shape:
            return float("inf")
        one = at % len(y)
        first = float(np.abs(y[:, :COLUMNS] - want[:, :COLUMNS]).max())
        whole = float(np.abs(y[one] - want[one]).max())
        worst = max(first, whole)
        return worst if np.isfinite(first + whole) else float("inf")


class Known:
    """Judges single rows by their bytes: an answer that was right once is right again.

    In half precision the last bits depend on the size of the batch, so a row has several.
    """

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._seen: list[set[bytes]] = [set() for _ in judge.right]

    def is_right(self, row: int, raw: bytes) -> bool:
        seen = self._seen[row]
        if raw in seen:
            return True
        right = self._judge.right[row]
        if len(raw) != right.nbytes:
            return False
        y = np.frombuffer(raw, right.dtype)
        if not np.abs(y - right).max() <= self._judge.tolerance:
            return False
        if len(seen) < _VARIANTS_MOST:
            seen.add(raw)
        return True


def separation(right: Array) -> float:
    """The least difference between the answers to two of the rows, as a judge sees it."""
    some = right[:_COMPARED, :COLUMNS]
    least = float("inf")
    for i in range(1, len(some)):
        least = min(least, float(np.abs(some[:i] - some[i]).max(axis=1).min()))
    return least


def judge_of(path: str, tolerance: float) -> Judge:
    """The judge that the answers in a file make; see `bench.scaling.bare`."""
    return Judge(np.load(Path(path)), tolerance)
