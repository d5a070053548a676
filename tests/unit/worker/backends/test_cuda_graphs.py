"""A model's call captured by batch size, with the CPU as the device: a capture runs the call
once, a replay runs what it recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from batchpool.core.errors import ConfigError, ModelError
from batchpool.core.scheduler.graph_shapes import GraphShapes
from batchpool.core.tensors.spec import Dim
from batchpool.model import spec_of
from batchpool.worker.backends.cuda_graphs import CudaGraphs, graph_sizes
from batchpool.worker.backends.cuda_transfer import PinnedBuffer
from tests.lazy import library

torch = library("torch")


def cpu() -> Any:
    return torch.device("cpu")


MOST = 8


class Shift(bp.Model):
    inputs = [bp.Tensor("x", "float32", (3,)), bp.Tensor("wide", "int64", (5,))]
    outputs = [bp.Tensor("y", "float32", (3,)), bp.Tensor("sum", "int64", ())]
    parameters = [bp.Tensor("by", "float32", (), default=0)]
    cuda_graphs = True

    def __init__(self) -> None:
        self.calls: list[int] = []

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        self.calls.append(batch.n)
        assert batch.rows == batch.n
        return {"y": batch["x"] + batch["by"][:, None], "sum": batch["wide"].sum(dim=1)}


class Recorder:
    """Counts what a device would do; a replay repeats the call."""

    def __init__(self) -> None:
        self.captured = 0
        self.replayed = 0

    def __call__(self, call: Callable[[], None]) -> Callable[[], None]:
        self.captured += 1
        call()

        def replay() -> None:
            self.replayed += 1
            call()

        return replay


def graphs(
    model: bp.Model, sizes: tuple[int, ...] = (1, 4, 8)
) -> tuple[CudaGraphs, dict[str, PinnedBuffer], Recorder]:
    spec = spec_of(type(model))
    tensors = (*spec.inputs, *spec.parameters)
    buffers = {t.name: PinnedBuffer(torch, t, MOST, pin=False) for t in tensors}
    recorder = Recorder()
    shapes = GraphShapes(spec, model.graph_sizes)
    large = {"wide"}, {"sum"}
    made = CudaGraphs(torch, model, spec, cpu(), buffers, *large, sizes, shapes, recorder)
    return made, buffers, recorder


def run(
    made: CudaGraphs, buffers: dict[str, PinnedBuffer], x: list[float], wide: list[int]
) -> tuple[Any, Any]:
    """A batch of rows that have one value each; the outputs of exactly those rows."""
    n = len(x)
    buffers["x"].array((n, 3))[...] = np.array(x)[:, None]
    buffers["by"].array((n,))[...] = 0.5
    made.inputs["wide"][:n] = torch.tensor(wide)[:, None]
    captured = made.launch(n, {})
    return captured.on_host["y"][:n].tolist(), captured.on_device["sum"][:n].tolist()


def test_each_size_is_captured_once_and_serves_all_up_to_it() -> None:
    model = Shift()
    made, buffers, recorder = graphs(model)
    assert run(made, buffers, [1], [2]) == ([[1.5] * 3], [10])
    assert run(made, buffers, [1, 2, 3], [1, 2, 3]) == (
        [[1.5] * 3, [2.5] * 3, [3.5] * 3],
        [5, 10, 15],
    )
    assert run(made, buffers, [7, 8, 9, 6], [4, 3, 2, 1])[1] == [20, 15, 10, 5]
    assert run(made, buffers, list(range(5)), [0] * 5)[0] == [[k + 0.5] * 3 for k in range(5)]
    assert recorder.captured == 3
    assert recorder.replayed == 4
    assert set(model.calls) == {1, 4, 8}, "the model sees no other sizes"


def test_the_rows_beyond_a_batch_are_such_that_the_model_has_seen() -> None:
    made, buffers, _ = graphs(Shift())
    run(made, buffers, [3], [9])  # the first that is captured gives the spare row
    run(made, buffers, [0, 0, 0, 0], [5, 5, 5, 5])
    made.inputs["wide"][:4] = -1  # as a model may that writes into its input
    run(made, buffers, [1, 1], [4, 4])
    assert made.inputs["wide"][:4, 0].tolist() == [4, 4, 9, 9]
    assert buffers["x"].array((4, 3))[:, 0].tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("most", "allowed", "sizes"),
    [
        (1, (), (1,)),
        (2, (), (1, 2)),
        (8, (), (1, 2, 4, 8)),
        (100, (), (1, 2, 4, 8, 16, 32, 64, 100)),
        (64, (16, 64), (16, 64)),
    ],
)
def test_sizes(most: int, allowed: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    assert graph_sizes(most, allowed) == sizes


def test_outputs_elsewhere_are_refused_by_name() -> None:
    class Elsewhere(Shift):
        def infer(self, batch: bp.Batch) -> dict[str, Any]:
            return {**super().infer(batch), "y": batch["x"].numpy()}

    made, buffers, _ = graphs(Elsewhere())
    with pytest.raises(ModelError, match="output 'y' must be a tensor on cpu; it is a ndarray"):
        run(made, buffers, [1], [1])


def test_a_call_that_cannot_be_captured_says_so() -> None:
    made, buffers, _ = graphs(Shift())

    def refuse(call: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("operation not permitted when stream is capturing")

    made._capture = refuse
    with pytest.raises(
        ModelError, match=r"'shift' has cuda_graphs = True, but its call with 4 rows"
    ):
        run(made, buffers, [1, 2], [1, 2])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"framework": "numpy"}, "needs framework \"torch\", not 'numpy'"),
        (
            {"outputs": [bp.Tensor("y", "float32", (Dim(4, "t"),))]},
            "needs outputs of fixed shapes, or of dimensions that have the name of an input's;"
            " 'y' is",
        ),
        ({"outputs": [bp.Tensor("y", "bytes", (), max_bytes=9)]}, "needs numbers; 'y' is a bytes"),
    ],
)
def test_models_that_cannot_be_graphs(change: dict[str, Any], error: str) -> None:
    wrong = type("Wrong", (Shift,), change)
    with pytest.raises(ConfigError, match=error):
        spec_of(wrong)


def test_bfloat16_buffers_are_bit_patterns_on_the_host() -> None:
    buffer = PinnedBuffer(torch, bp.Tensor("x", "bfloat16", (2,)), 4, pin=False)
    buffer.array((1, 2))[...] = 0x3F80
    assert buffer.tensor((1, 2)).dtype == torch.bfloat16
    assert buffer.tensor((1, 2)).tolist() == [[1.0, 1.0]]


def test_a_dynamic_buffer_is_cut_to_the_batch() -> None:
    buffer = PinnedBuffer(torch, bp.Tensor("x", "int64", (Dim(6, "t"),), pad=0), 4, pin=False)
    buffer.array((3, 2))[...] = [[1, 2], [3, 4], [5, 6]]
    assert buffer.tensor((3, 2)).tolist() == [[1, 2], [3, 4], [5, 6]]


def test_a_captured_call_cannot_fail_rows() -> None:
    class Failing(Shift):
        def infer(self, batch: bp.Batch) -> dict[str, Any]:
            batch.fail(0, bp.InvalidInput("no"))
            return super().infer(batch)

    made, buffers, _ = graphs(Failing())
    with pytest.raises(ModelError, match="infer runs while it is captured and cannot fail rows"):
        run(made, buffers, [1], [2])
