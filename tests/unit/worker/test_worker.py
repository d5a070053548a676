"""The worker's core on real memories, with a backend that a test controls."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import numpy as np
import pytest

from batchpool.core.errors import InvalidRequest, Status
from batchpool.core.layout.segments import MESSAGE_BYTES
from batchpool.core.layout.states import BatchOutcome
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import Dim, Tensor
from batchpool.shm.lane import Lane
from batchpool.worker.backends.backend import describe_error
from tests.unit.lanes import new_lane
from tests.unit.specs import model
from tests.unit.worker.worker_bench import ROWS, Bench, FakeBackend, affine, raising

# -- what goes well -------------------------------------------------------------------------


@pytest.mark.parametrize("raises_in", ["launch", "finish"])
def test_a_batch_of_two_lanes(raises_in: str) -> None:
    bench = Bench(raises_in=raises_in)
    bench.fill(*ROWS)
    for lane in bench.lanes.values():
        lane.status[:] = Status.INTERNAL  # what another use of the slot left there
        lane.outputs["y"].values[:] = -1
    batch = bench.send(*ROWS)
    assert bench.run() == 2
    assert bench.y(*ROWS) == [[25] * 4, [27] * 4, [81] * 4]
    assert bench.statuses(*ROWS) == [(Status.OK, "")] * 3
    assert bench.outcome(batch) == BatchOutcome.OK
    assert bench.worker_segment.extents[batch.record] == 2
    assert bench.rings == ["worker", "batcher"]
    assert bench.proxy.has_finished(batch)
    assert bench.proxy.finished() == [batch]
    # Nothing else was touched.
    assert bench.y((1, 1), (1, 4), (4, 1)) == [[-1] * 4] * 3
    assert bench.lanes[1].status.tolist() == [6, 6, 0, 0, 6, 6, 6, 6]


def test_the_backend_is_told_when_inputs_are_views_of_a_lane() -> None:
    bench = Bench()
    for rows, views in (
        (((1, 2), (1, 3)), True),
        (((1, 2), (1, 4)), False),
        (((1, 2), (4, 3)), False),
        (((4, 7),), True),
    ):
        batch = bench.send(*rows)
        bench.run()
        n, inputs, told = bench.backend.launched[-1]
        assert (n, told) == (len(rows), views)
        shared = any(
            np.shares_memory(inputs["x"], lane.inputs["x"].values)
            for lane in (bench.worker.lanes[1], bench.worker.lanes[4])
        )
        assert shared == views
        assert bench.proxy.finished() == [batch]
        bench.proxy.free(batch)
        bench.proxy.advance()


def test_inputs_parameters_and_sizes_come_by_name() -> None:
    spec = model(
        Tensor("x", "float32"),
        Tensor("ids", "int64", (Dim(3),), pad=-7),
        parameters=(Tensor("k", "int32"),),
    )
    seen: list[Any] = []

    def infer(n: int, inputs: dict[str, Array], sizes: dict[str, Array | None]) -> Any:
        seen.append((n, inputs, sizes))
        return {"y": inputs["x"] + inputs["k"].astype(np.float32)}

    bench = Bench(spec, infer)
    bench.fill(*ROWS)
    for i, (lane, slot) in enumerate(ROWS):
        bench.lanes[lane].inputs["ids"].store(slice(slot, slot + 1), np.full((1, i), 9))
        bench.lanes[lane].parameters["k"].values[slot] = 100 * i
    bench.send(*ROWS)
    bench.run()
    ((n, inputs, sizes),) = seen
    assert n == 3
    assert list(inputs) == ["x", "ids", "k"]
    assert inputs["ids"].tolist() == [[-7, -7], [9, -7], [9, 9]]
    assert sizes["ids"].tolist() == [[0], [1], [2]]
    assert sizes["x"] is None
    assert bench.y(*ROWS) == [12, 113, 240]


def test_nothing_to_do() -> None:
    bench = Bench()
    assert not bench.worker.step()
    assert bench.rings == []


def test_batches_are_finished_in_order_and_counted() -> None:
    bench = Bench(depth=2)
    batches = [bench.send((1, slot)) for slot in range(4)]
    bench.run()
    assert bench.proxy.finished() == batches
    assert bench.worker_segment.batches.get() == 4
    assert bench.worker_segment.rows.get() == 4
    assert [n for n, _, _ in bench.backend.launched] == [1, 1, 1, 1]


def test_the_records_can_be_used_again_and_again() -> None:
    bench = Bench()
    tokens = set()
    for again in range(20):
        bench.lanes[1].inputs["x"].values[0] = again
        batch = bench.send((1, 0))
        tokens.add(batch.token)
        bench.run()
        assert bench.proxy.finished() == [batch]
        assert bench.y((1, 0)) == [[2 * again + 1] * 4]
        bench.proxy.free(batch)
        bench.proxy.advance()
    assert len(tokens) == 20


def test_acknowledged_lanes_are_told() -> None:
    bench = Bench()
    assert bench.worker_segment.lanes.tolist() == [0, 11, 0, 0, 44, 0, 0, 0]
    bench.worker.drop_lane(4)
    bench.worker.drop_lane(4)
    assert bench.worker_segment.lanes.tolist() == [0, 11, 0, 0, 0, 0, 0, 0]
    assert list(bench.worker.lanes) == [1]


class Pinning(FakeBackend):
    """A backend that transfers rows of lanes by itself."""

    def __init__(self) -> None:
        super().__init__(affine)
        self.events: list[tuple[str, Lane]] = []

    def pin(self, lane: Lane) -> None:
        self.events.append(("pin", lane))

    def unpin(self, lane: Lane) -> None:
        self.events.append(("unpin", lane))


def test_a_device_pins_the_lanes_that_it_may_and_unpins_each_once() -> None:
    backend = Pinning()
    bench = Bench(backend=backend)
    assert backend.events == [], "these are not pinned"
    lane = new_lane(bench.spec, 8)
    bench.worker.add_lane(2, 22, lane, pinned=True)
    assert backend.events == [("pin", lane)]
    assert bench.worker_segment.lanes[2] == 22
    for _ in range(2):
        bench.worker.drop_lane(2)
    assert backend.events == [("pin", lane), ("unpin", lane)]


class Direct(FakeBackend):
    """A backend that reads x out of the lanes by itself, where it can."""

    direct = frozenset({"x"})

    def __init__(self, fetched: Array | None) -> None:
        super().__init__(affine)
        self.fetched = fetched
        self.asked: list[tuple[str, int, Array | None]] = []

    def fetch(self, tensor: Tensor, parts: Any, n: int, padding: Array | None) -> Any:
        self.asked.append((tensor.name, n, padding))
        return self.fetched


@pytest.mark.parametrize("can", [True, False])
def test_a_device_fetches_what_it_can_and_is_handed_the_rest(can: bool) -> None:
    backend = Direct(np.full((3, 4), 7, np.float32) if can else None)
    bench = Bench(backend=backend)
    bench.fill(*ROWS)
    bench.send(*ROWS)
    bench.run()
    assert backend.asked == [("x", 3, None)]
    assert bench.y(*ROWS) == ([[15] * 4] * 3 if can else [[25] * 4, [27] * 4, [81] * 4])


def test_a_batch_is_announced_by_its_last_stores() -> None:
    """The fence stands between what a batch holds and the store that says that it is there."""
    bench = Bench()
    segment = bench.worker_segment
    batch = bench.send(*ROWS)
    bench.fill(*ROWS)
    seen: list[tuple[int, int, int, list[Any]]] = []

    def look() -> None:
        at = batch.record
        words = segment.outcome_of[at], int(segment.finished[at]), len(bench.rings)
        seen.append((*words, bench.y(ROWS[0])))

    segment.fence = look
    bench.run()
    assert seen[0] == (BatchOutcome.OK, 0, 1, [[25] * 4])
    assert segment.finished[batch.record] == batch.token
    assert len(bench.rings) == 2


# -- progress: a hung batch is judged from when it became the oldest -------------------------


def progress(bench: Bench) -> tuple[int, int]:
    return bench.worker_segment.running.get(), bench.worker_segment.progress_ns.get()


def test_progress_of_two_batches_in_flight() -> None:
    bench = Bench(depth=2)
    first, second = bench.send((1, 0)), bench.send((1, 1))
    bench.now_ns = 2000
    assert bench.worker.step()
    assert progress(bench) == (first.token, 2000)
    bench.now_ns = 3000
    assert bench.worker.step()
    assert len(bench.backend.launched) == 2
    assert progress(bench) == (first.token, 2000), "a second launch is no progress of the first"
    bench.now_ns = 4000
    assert bench.worker.step()
    assert bench.proxy.has_finished(first)
    assert progress(bench) == (second.token, 4000), "the second is the oldest from now on"
    bench.now_ns = 5000
    assert bench.worker.step()
    assert progress(bench) == (0, 5000)
    assert bench.worker_segment.start_ns[[first.record, second.record]].tolist() == [2000, 3000]
    assert bench.worker_segment.end_ns[[first.record, second.record]].tolist() == [4000, 5000]


def test_a_worker_tells_with_which_batch_it_began() -> None:
    bench = Bench(depth=2)
    batches = [bench.send((1, slot)) for slot in range(3)]
    told = []
    for _ in range(3):
        bench.worker.step()
        told.append(bench.worker_segment.launched.get())
    first, second, _ = batches
    assert told == [first.token, second.token, second.token]


def test_a_launched_batch_is_not_launched_again() -> None:
    bench = Bench(depth=2)
    bench.send((1, 0))
    assert bench.worker.step()
    assert bench.worker_segment.sq_consumer().pending() == 1, (
        "the entry stays until its outputs stand"
    )
    assert bench.worker.step()
    assert len(bench.backend.launched) == 1
    assert bench.worker_segment.sq_consumer().pending() == 0


# -- what goes wrong ------------------------------------------------------------------------


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Speechless(Exception):
    def __str__(self) -> str:
        return None  # type: ignore[return-value]  # noqa: PLE0307


TEXT_BYTES = MESSAGE_BYTES - len(f"\x1e1 0 {os.getpid()}")  # behind it stands where the row failed
CAUSES: list[tuple[BaseException, str]] = [
    (ValueError("row 3 is odd"), "ValueError: row 3 is odd"),
    (ValueError("two\nlines   and\ttabs"), "ValueError: two lines and tabs"),
    (ValueError(), "ValueError"),
    (KeyError("z"), "KeyError: 'z'"),
    (Unspeakable(), "Unspeakable: (its message cannot be shown)"),
    (Speechless(), "Speechless: (its message cannot be shown)"),
    (SystemExit(3), "SystemExit: 3"),
    (SystemExit(), "SystemExit"),
    (MemoryError(), "MemoryError"),
    (RecursionError("too deep"), "RecursionError: too deep"),
    (InvalidRequest("the text is empty"), "the text is empty"),
    (FileNotFoundError(2, "No such file", "a\udcffb"), "[Errno 2] No such file: 'a\\udcffb'"),
    (ValueError("a\udcffb"), "ValueError: a?b"),
    (ValueError("é" * 10**6), "ValueError: " + "é" * ((TEXT_BYTES - 12) // 2)),
    (InvalidRequest("x" * 10**6), "x" * TEXT_BYTES),
]


@pytest.mark.parametrize("raises_in", ["launch", "finish"])
@pytest.mark.parametrize(("cause", "text"), CAUSES, ids=[type(c).__name__ for c, _ in CAUSES])
def test_what_a_model_raises_fails_its_batch_and_the_worker_goes_on(
    cause: BaseException, text: str, raises_in: str
) -> None:
    bench = Bench(infer=raising(cause), raises_in=raises_in)
    bench.fill(*ROWS)
    batch = bench.send(*ROWS)
    bench.run()
    want = text if not isinstance(cause, OSError) else f"FileNotFoundError: {text}"
    assert bench.statuses(*ROWS) == [(Status.MODEL_ERROR, want)] * 3
    small = isinstance(cause, MemoryError)
    assert bench.outcome(batch) == (BatchOutcome.NO_MEMORY if small else BatchOutcome.FAILED)
    assert bench.proxy.finished() == [batch]
    assert bench.lanes[1].status[0] == Status.OK, "rows of nobody else"
    bench.proxy.free(batch)
    bench.proxy.advance()
    bench.backend.infer = affine
    bench.send(*ROWS)
    bench.run()
    assert [status for status, _ in bench.statuses(*ROWS)] == [Status.OK] * 3
    assert bench.y(*ROWS) == [[25] * 4, [27] * 4, [81] * 4]


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (None, "model 'm' returned a NoneType; a dict of its outputs was expected"),
        ({}, "model 'm' returned no output 'y'"),
        (
            {"y": np.zeros((2, 4), np.float32)},
            "output 'y' has shape [2, 4]; [3, 4] was expected",
        ),
        ({"y": np.zeros((3, 4))}, "output 'y' has dtype float64; float32 was expected"),
        (
            {"y": np.zeros((3, 4), np.float32), "z": 1},
            "model 'm' returned an undeclared output 'z'; it declares 'y'",
        ),
    ],
)
def test_a_wrong_answer_fails_the_batch_before_any_of_it_is_stored(found: Any, text: str) -> None:
    bench = Bench(infer=lambda n, inputs, sizes: found)
    batch = bench.send(*ROWS)
    bench.run()
    assert bench.statuses(*ROWS) == [(Status.MODEL_ERROR, text)] * 3
    assert bench.outcome(batch) == BatchOutcome.FAILED
    assert bench.y(*ROWS) == [[0] * 4] * 3


def test_one_row_that_does_not_fit_fails_alone() -> None:
    spec = model(Tensor("x", "float32"), outputs=(Tensor("y", "bytes", (), max_bytes=3),))
    bench = Bench(spec, lambda n, inputs, sizes: {"y": ["ab", "abcd", "abc"]})
    batch = bench.send(*ROWS)
    bench.run()
    text = "output 'y' of this row has 4 bytes; at most 3 fit"
    assert bench.statuses(*ROWS) == [(0, ""), (Status.MODEL_ERROR, text), (0, "")]
    origins = [bench.lanes[lane].read_origin(slot) for lane, slot in ROWS]
    assert origins == [None, (batch.token, 0, os.getpid()), None]
    assert bench.outcome(batch) == BatchOutcome.OK, "the batch itself is no suspect"
    assert bench.lanes[1].outputs["y"].load(slice(2, 3)).tolist() == [b"ab"]
    assert bench.lanes[4].outputs["y"].load(slice(0, 1)).tolist() == [b"abc"]


def test_only_batches_that_gave_outputs_are_counted_as_good() -> None:
    bench = Bench(infer=raising(ValueError("no")))
    bench.send(*ROWS)
    bench.run()
    counted = bench.worker_segment.batches.get(), bench.worker_segment.good.get()
    assert counted == (1, 0)
    bench.backend.infer = affine
    bench.send(*ROWS)
    bench.run()
    counted = bench.worker_segment.batches.get(), bench.worker_segment.good.get()
    assert counted == (2, 1)


def test_a_batch_that_fails_in_flight_leaves_the_other_alone() -> None:
    bench = Bench(depth=2)
    first, second = bench.send((1, 0)), bench.send((1, 1))
    bench.worker.step()
    bench.worker.step()
    bench.backend.infer = raising(ValueError("no"))
    bench.worker.step()
    bench.backend.infer = affine
    bench.worker.step()
    assert (bench.outcome(first), bench.outcome(second)) == (BatchOutcome.FAILED, BatchOutcome.OK)
    assert bench.statuses((1, 0), (1, 1)) == [(1, "ValueError: no"), (0, "")]
    assert bench.proxy.finished() == [first, second]


def test_the_end_of_the_process_is_not_caught() -> None:
    """A backend turns what a model raises into errors; these come from outside of it."""
    for cause in (KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()):
        bench = Bench(infer=raising(cause))
        bench.send(*ROWS)
        with pytest.raises(type(cause)):
            bench.run()
        assert bench.proxy.finished() == []


def test_a_described_error_is_one_bounded_line() -> None:
    """C17: also of exceptions whose text cannot be had."""
    for cause, text in CAUSES:
        found = describe_error(cause)
        assert "\n" not in found
        assert len(found) <= 2100
        assert found.startswith(type(cause).__name__) or found == cause.args[0][:2000], text
