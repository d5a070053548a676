"""Copies of a batch on every path into a CUDA worker and out of it, counted.

`check_copies` runs one worker in this process, on real lanes, and compares both the counts and
every byte of the answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

import batchpool as bp
from batchpool.core.tensors.spec import Dim, ModelSpec
from batchpool.model import spec_of
from batchpool.worker.backends.cuda import CudaBackend
from batchpool.worker.warm_up import warm_up, warm_up_rows
from tests.unit.worker.worker_bench import Bench

SIDE = 256  # of a uint8 image with 3 channels: 192 KiB


class Negative(bp.Model):
    """Images: 255 - x."""

    inputs = [bp.Tensor("x", "uint8", (3, SIDE, SIDE))]
    outputs = [bp.Tensor("y", "uint8", (3, SIDE, SIDE))]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        return {"y": 255 - batch["x"]}


class Small(bp.Model):
    inputs = [bp.Tensor("x", "float32", (64,))]
    outputs = [bp.Tensor("y", "float32", (64,))]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        return {"y": batch["x"] * 2 + 1}


class Ragged(bp.Model):
    inputs = [bp.Tensor("x", "int64", (Dim(10_000, "t"),), pad=0)]
    outputs = [bp.Tensor("y", "int64", (Dim(10_000, "t"),))]

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        return {"y": batch["x"] + 1}


class NegativeGraph(Negative):
    cuda_graphs = True


class SmallGraph(Small):
    cuda_graphs = True


ONE = ((1, 0), (1, 1), (1, 2))
TWO_RUNS = ((1, 0), (1, 1), (1, 5))
TWO_LANES = ((1, 3), (4, 0), (4, 1))


def run(model: type[bp.Model], pinned: bool, *rows: tuple[int, int]) -> dict[str, int]:
    """One batch of these rows; returns the copies that it took."""
    spec: ModelSpec = spec_of(model)
    loaded = model()
    loaded.load("cuda:0")
    backend = CudaBackend(loaded, spec, "cuda:0", 8)
    if backend.graph_sizes:
        warm_up(spec, backend, warm_up_rows(loaded, spec), backend.graph_sizes)
        backend.transfer.copies.clear()
    bench = Bench(spec, backend=backend)
    if pinned:
        for lane in bench.worker.lanes.values():
            backend.pin(lane)
    random = np.random.default_rng(1)
    given = {}
    for number, slot in rows:
        column = bench.lanes[number].inputs["x"]
        tensor = spec.inputs[0]
        shape = (7 + slot,) if tensor.dynamic else tensor.max_shape
        given[number, slot] = random.integers(0, 100, shape).astype(tensor.np_dtype)
        column.store(slice(slot, slot + 1), given[number, slot][np.newaxis])
    batch = bench.send(*rows)
    bench.run()
    assert bench.outcome(batch) == 1, bench.statuses(*rows)
    for (number, slot), x in given.items():
        y = bench.lanes[number].outputs["y"].load(slice(slot, slot + 1))[0]
        right = loaded.infer(cast(bp.Batch, {"x": x}))["y"]  # the same arithmetic in numpy
        assert np.array_equal(y, right), (model.__name__, number, slot)
    if pinned:
        for lane in bench.worker.lanes.values():
            backend.unpin(lane)
    return dict(backend.transfer.copies)


def check_copies() -> dict[str, Any]:
    """Every road's count, as it must be."""
    gathered = {"in, gathered": 1, "out, gathered": 1}
    expected: dict[str, tuple[Callable[[], dict[str, int]], dict[str, int]]] = {
        "large rows, one extent": (
            lambda: run(Negative, True, *ONE),
            {"in, direct": 1, "out, direct": 1},
        ),
        "large rows, lane not registered": (lambda: run(Negative, False, *ONE), gathered),
        "large rows, two extents": (
            lambda: run(Negative, True, *TWO_RUNS),
            {"in, direct": 2, "out, direct": 2},
        ),
        "large rows of two lanes": (
            lambda: run(Negative, True, *TWO_LANES),
            {"in, direct": 2, "out, direct": 2},
        ),
        "graph, large rows, one extent": (
            lambda: run(NegativeGraph, True, *ONE),
            {"in, direct": 1, "out, direct": 1},
        ),
        "graph, large rows of two lanes": (
            lambda: run(NegativeGraph, True, *TWO_LANES),
            {"in, direct": 2, "out, direct": 2},
        ),
        "graph, large rows, lane not registered": (
            lambda: run(NegativeGraph, False, *TWO_RUNS),
            gathered,
        ),
        "graph, small rows": (lambda: run(SmallGraph, True, *TWO_LANES), gathered),
        "small rows": (lambda: run(Small, True, *TWO_LANES), gathered),
        "dynamic rows": (lambda: run(Ragged, True, *TWO_LANES), gathered),
    }
    told = {}
    for name, (count, right) in expected.items():
        found = count()
        assert found == right, f"{name}: {found}, not {right}"
        told[f"copies, {name}"] = found
    return told
