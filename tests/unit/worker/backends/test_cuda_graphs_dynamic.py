"""Graphs of a model whose rows vary in size, with the CPU as the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import batchpool as bp
from batchpool.core.scheduler.graph_shapes import GraphShapes
from batchpool.model import spec_of
from batchpool.worker.backends.cuda_graphs import CudaGraphs
from batchpool.worker.backends.cuda_transfer import PinnedBuffer
from tests.lazy import library
from tests.unit.worker.backends.test_cuda_graphs import Recorder, cpu

torch = library("torch")

TOKENS = bp.Dim(40, "tokens")
MOST = 4


class Sums(bp.Model):
    """The sum of a row's own numbers, and their running sum."""

    inputs = [bp.Tensor("x", "int64", (TOKENS,), pad=7), bp.Tensor("by", "int64", (TOKENS, 2))]
    outputs = [bp.Tensor("sum", "int64"), bp.Tensor("running", "int64", (TOKENS,))]
    cuda_graphs = True
    graph_sizes = {"tokens": [8, 40]}

    def __init__(self) -> None:
        self.calls: list[tuple[int, ...]] = []
        self.seen: list[Any] = []

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        x, by = batch["x"], batch["by"]
        self.calls.append(tuple(x.shape))
        assert x.is_contiguous()
        assert by.shape == (*x.shape, 2)
        lengths = torch.as_tensor(batch.sizes["x"], device=x.device)[:, :1]
        self.seen = [x.clone(), lengths.clone(), by.clone()]
        own = torch.where(torch.arange(x.shape[1]) < lengths, x * by.sum(dim=2), 0)
        return {"sum": own.sum(dim=1), "running": own.cumsum(dim=1)}


def made_for(model: bp.Model, max_elements: int = 0) -> tuple[CudaGraphs, Recorder]:
    spec = spec_of(type(model))
    buffers = {t.name: PinnedBuffer(torch, t, MOST, pin=False) for t in spec.inputs}
    recorder = Recorder()
    shapes = GraphShapes(spec, model.graph_sizes, max_elements)
    sizes = (1, 2, MOST)
    return CudaGraphs(
        torch, model, spec, cpu(), buffers, set(), set(), sizes, shapes, recorder
    ), recorder


def run(made: CudaGraphs, rows: list[list[int]]) -> tuple[list[int], list[list[int]]]:
    """A batch of these rows, each times two: their sums and running sums."""
    n, longest = len(rows), max(map(len, rows))
    x, by = made.room_for("x", (n, longest)), made.room_for("by", (n, longest, 2))
    x[...], by[...] = 7, 1
    for at, row in enumerate(rows):
        x[at, : len(row)] = row
    sizes = np.array([[len(row)] for row in rows])
    found = made.launch(n, {"x": sizes, "by": sizes}).on_host
    cut = [found["running"][at, : len(row)].tolist() for at, row in enumerate(rows)]
    return found["sum"][:n].tolist(), cut


def test_a_batch_size_is_captured_for_every_row_shape_at_its_first_batch() -> None:
    model = Sums()
    made, recorder = made_for(model)
    assert run(made, [list(range(9))])[0] == [72], "of the longer shape, captured first"
    assert recorder.captured == 2
    assert set(model.calls) == {(1, 8), (1, 40)}
    assert run(made, [[1, 2, 3]]) == ([12], [[2, 6, 12]])
    assert recorder.captured == 2
    assert recorder.replayed == 2


def test_only_what_the_element_budget_allows_is_captured_and_the_rest_runs_as_it_is() -> None:
    """80 elements are 5 rows of 8 x 2, which are padded to 4 at most, and 1 of 40 x 2."""
    model = Sums()
    made, recorder = made_for(model, max_elements=80)
    assert run(made, [[1, 2, 3], [4]]) == ([12, 8], [[2, 6, 12], [8]])
    assert (recorder.captured, set(model.calls)) == (1, {(2, 8)})
    run(made, [[1]] * 4)
    assert recorder.captured == 2
    run(made, [[1] * 9])
    assert (recorder.captured, recorder.replayed) == (4, 3), "a lone row: both lengths"
    for twice in range(2):
        model.calls.clear()
        assert run(made, [[1] * 9, [5]])[0] == [18, 10]
        assert model.calls == [(2, 40)] * (2 - twice), "once more at first, to see its outputs"
    assert (recorder.captured, recorder.replayed) == (4, 3)


@pytest.mark.parametrize(
    "rows",
    [
        [[5]],
        [[], [4]],
        [[1] * 8, [2] * 3, [9]],
        [[3] * 9, [1], [2, 2]],
        [[1] * 40, [2] * 39, [], [5]],
    ],
)
def test_rows_are_answered_by_their_own_sizes(rows: list[list[int]]) -> None:
    made, _ = made_for(Sums())
    run(made, [[99] * 40] * 4)  # what earlier batches held
    expected = [[2 * sum(row[: k + 1]) for k in range(len(row))] for row in rows]
    assert run(made, rows) == ([2 * sum(row) for row in rows], expected)


def test_what_is_no_row_holds_the_pad_and_has_the_size_1() -> None:
    model = Sums()
    made, _ = made_for(model)
    run(made, [[99] * 40] * 4)
    run(made, [[1, 2], [3], [4]])
    x, lengths, by = model.seen
    assert x.tolist() == [[1, 2, *[7] * 6], [3, *[7] * 7], [4, *[7] * 7], [7] * 8]
    assert lengths.tolist() == [[2], [1], [1], [1]]
    assert by[3].tolist() == [[0, 0]] * 8
