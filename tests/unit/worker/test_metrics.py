"""Counts of a worker: every batch once, its rows by how they ended, and where its time went."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from batchpool.core.errors import InvalidInput
from batchpool.core.metrics.table import BLOCKS
from batchpool.core.metrics.totals import Totals
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import Dim, Tensor
from tests.unit.specs import X, model
from tests.unit.worker.worker_bench import ROWS, Bench, affine, raising

SEAT = ("m", "0", "cpu", "infer")
PHASES = ("gather", "compute", "scatter")


def counts(bench: Bench) -> Totals:
    block = BLOCKS["worker"]
    totals = Totals()
    totals.add("worker", SEAT, bench.worker._metrics.cells[: block.used].tolist())
    return totals


def slow(bench: Bench, infer_ns: int, answer: Any = None) -> None:
    """From now on the model takes so long by the bench's clock."""

    def infer(n: int, inputs: dict[str, Array], sizes: Mapping[str, Any]) -> Any:
        bench.now_ns += infer_ns
        if isinstance(answer, BaseException):
            raise answer
        return affine(n, inputs, {})

    bench.backend.infer = infer


@pytest.mark.parametrize("raises_in", ["launch", "finish"])
def test_the_time_of_the_model_is_apart_from_that_of_its_rows(raises_in: str) -> None:
    bench = Bench(raises_in=raises_in)
    slow(bench, 7_000_000)
    for rows in (((1, 2), (1, 3), (4, 0)), ((1, 5),)):
        batch = bench.send(*rows)
        bench.run()
        bench.proxy.finished()
        bench.proxy.free(batch)
        bench.proxy.advance()
    totals = counts(bench)
    assert totals.histogram("worker_compute_seconds").total == pytest.approx(0.014)
    assert [totals.histogram(f"worker_{phase}_seconds").count for phase in PHASES] == [2, 2, 2]
    assert totals.histogram("worker_gather_seconds").total == 0
    assert totals.values("worker_batches_total", "outcome") == {"ok": 2}
    assert totals.values("worker_rows_total", "outcome") == {"ok": 4}


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(ValueError("no"), "failed"), (MemoryError("out of memory"), "no_memory")],
)
@pytest.mark.parametrize("raises_in", ["launch", "finish"])
def test_rows_of_a_failed_batch_failed(error: Exception, outcome: str, raises_in: str) -> None:
    bench = Bench(raises_in=raises_in)
    slow(bench, 1000, error)
    bench.send((1, 2), (1, 3))
    bench.run()
    totals = counts(bench)
    assert totals.values("worker_batches_total", "outcome") == {outcome: 1}
    assert totals.values("worker_rows_total", "outcome") == {"failed": 2}
    assert totals.histogram("worker_scatter_seconds").count == 0


def test_single_rows_that_the_answer_marks_are_counted_as_failed() -> None:
    spec = model(X, outputs=(Tensor("y", "float32", (Dim(max=2),)),))

    def infer(n: int, inputs: dict[str, Array], sizes: Mapping[str, Any]) -> Any:
        return {"y": [np.zeros(size, np.float32) for size in (1, 3, 2)]}

    bench = Bench(spec, infer)
    bench.send((1, 2), (1, 3), (4, 0))
    bench.run()
    totals = counts(bench)
    assert totals.values("worker_batches_total", "outcome") == {"ok": 1}
    assert totals.values("worker_rows_total", "outcome") == {"ok": 2, "failed": 1}


class Ticking(Bench):
    """A bench whose clock goes on by a millisecond whenever it is read."""

    read = 0

    @property
    def now_ns(self) -> int:
        self.read += 1
        return 1_000_000 * self.read

    @now_ns.setter
    def now_ns(self, now_ns: int) -> None:
        """It starts where it starts."""


def test_every_phase_takes_the_time_between_its_ends() -> None:
    bench = Ticking()
    bench.send(*ROWS)
    bench.run()
    totals = counts(bench)
    for phase in PHASES:
        assert totals.histogram(f"worker_{phase}_seconds").total == pytest.approx(0.001), phase


def test_a_batch_of_rows_that_are_over_takes_no_time_of_the_model() -> None:
    bench = Ticking()
    bench.send(*ROWS, due_ns=(1, 1, 1))
    bench.run()
    totals = counts(bench)
    taken = [totals.histogram(f"worker_{phase}_seconds").total for phase in PHASES]
    assert taken == pytest.approx([0, 0, 0.001])


def test_a_row_that_the_model_refuses_alone_takes_its_time() -> None:
    bench = Ticking(infer=raising(InvalidInput("no")))
    bench.send((1, 2))
    bench.run()
    totals = counts(bench)
    assert totals.histogram("worker_compute_seconds").total == pytest.approx(0.001)
    assert totals.values("worker_rows_total", "outcome") == {"invalid_input": 1}
