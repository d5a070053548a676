"""The model of bench.chaos.tagged in three stages, each with its beat; its answers are the same."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

import batchpool as bp
from bench.chaos.tagged import WIDTH, Tagged, own_beat

BATCH_S = 0.003  # of each stage


class TaggedStages(Tagged):
    """preprocess doubles x, infer adds tag % 997, postprocess checks and answers.

    A row that met another row's tensors between two stages fails its batch.
    """

    name = "tagged"
    features = (bp.Tensor("doubled", "float32", (WIDTH,)), "tag")
    predictions = (bp.Tensor("sum", "float32", (WIDTH,)), "tag", "x", "doubled")

    def load_preprocess(self) -> None:
        self._beat = own_beat()

    def preprocess(self, batch: bp.Batch) -> Mapping[str, Any]:
        with _Running(self._beat):
            return {"doubled": 2 * batch["x"]}

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        with _Running(self._beat):
            total = batch["doubled"] + (batch["tag"] % 997)[:, None]
            return {"sum": total.astype(np.float32)}

    def load_postprocess(self) -> None:
        self._beat = own_beat()

    def postprocess(self, batch: bp.Batch) -> Mapping[str, Any]:
        with _Running(self._beat):
            whole = np.array_equal(batch["doubled"], 2 * batch["x"])
            added = batch["sum"] - batch["doubled"]
            if not whole or not np.array_equal(added, _added(batch["tag"], added)):
                raise RuntimeError("a row met the tensors of another one between two stages")
            return {"of": batch["tag"], "y": batch["sum"]}


class _Running:
    """A batch that takes a while; the beat is odd meanwhile."""

    def __init__(self, beat: memoryview) -> None:
        self._beat = beat

    def __enter__(self) -> None:
        self._beat[0] += 1
        time.sleep(BATCH_S)

    def __exit__(self, *exc: object) -> None:
        self._beat[0] += 1


def _added(tags: Any, like: Any) -> Any:
    return np.broadcast_to((tags % 997)[:, None].astype(np.float32), like.shape)
