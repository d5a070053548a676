"""The order of stores, as one side makes them, recorded store by store.

On x86-64 no run of two processes shows a missing fence: the processor keeps ordinary stores in
order by itself. So here the stores of the real code are written down and held against the
order of publication in shm/ring.py: payload, header, entry, one fence, tail.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.client.lane_client import LaneClient
from batchpool.core.errors import Status
from batchpool.core.layout.segments import Column, Layout, lane_layout, worker_layout
from batchpool.core.layout.states import DispatchReason, LaneGate
from batchpool.core.scheduler.queue import I64, QUEUE_COLUMNS, QueueColumn
from batchpool.core.tensors.rows import check_rows
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.shm import ring
from batchpool.shm.lane import Lane
from batchpool.shm.segment import Segment, create, map_checked
from batchpool.shm.worker_segment import WorkerSegment
from batchpool.worker.backends.cpu import CpuBackend
from batchpool.worker.worker import Worker
from tests.litmus.mutants import FENCE_MUTANTS, RING_MUTANTS, Mutant

SPEC = ModelSpec(
    "affine",
    "numpy",
    (Tensor("x", "float32", (4,)),),
    (Tensor("y", "float32", (4,)),),
    (Tensor("k", "int32", default=1),),
)


class RecordedCells:
    """Integers by index that write their stores down; loads are the segment's own."""

    def __init__(self, cells: Any, name: Callable[[int], str], order: list[str]) -> None:
        self._cells, self._name, self._order = cells, name, order

    def __getitem__(self, at: int) -> int:
        return int(self._cells[at])

    def __setitem__(self, at: int, value: int) -> None:
        self._order.append(self._name(at))
        self._cells[at] = value


class RecordedColumn:
    """A column that writes its stores down."""

    def __init__(self, array: Any, name: str, order: list[str]) -> None:
        self._array, self._name, self._order = array, name, order
        self.shape = array.shape

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, key: Any) -> Any:
        return self._array[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._order.append(self._name)
        self._array[key] = value

    def __eq__(self, other: object) -> Any:
        return self._array == other

    __hash__ = None  # type: ignore[assignment]

    def max(self) -> Any:
        return self._array.max()


class Recorded:
    """A real segment whose every store is written down by the name of what it changes."""

    def __init__(self, layout: Layout, order: list[str]) -> None:
        fd = create(layout, sealed=True)
        self._segment: Segment = map_checked(fd, layout)
        self._order = order
        self._words = {at // 8: name for name, at in layout.words.items()}

    def cells(self) -> RecordedCells:
        return RecordedCells(self._segment.cells(), self._words.__getitem__, self._order)

    def scalars(self, column: Column) -> RecordedCells:
        return RecordedCells(self._segment.scalars(column), lambda at: column.name, self._order)

    def array(self, column: Column) -> Any:
        return RecordedColumn(self._segment.array(column), column.name, self._order)

    def octets(self, column: Column) -> Any:
        return RecordedColumn(self._segment.octets(column), column.name, self._order)


# -- one ring: the real one, and broken ones -------------------------------------------------


def publications(module: ModuleType) -> list[list[str]]:
    """Stores of a producer of this module, for groups of several kinds and sizes."""
    order: list[str] = []
    layout = lane_layout(SPEC, 8)
    memory = Recorded(layout, order)
    cells, entries = memory.cells(), memory.array(layout.columns["sq"])
    tail, head = layout.words["sq_tail"] // 8, layout.words["sq_head"] // 8
    producer = module.Producer(cells, entries, tail, head, lambda: order.append("fence"))
    consumer = ring.Consumer(cells, entries, tail, head)
    recorded = []
    for n in (1, 3, 5, 8):
        for push in (
            lambda values: producer.push_few(values.tolist()),
            producer.push,
        ):
            order.clear()
            push(np.arange(1, n + 1, dtype=np.uint64))
            recorded.append(order.copy())
            consumer.advance(n)
    return recorded


def check_publication(order: list[str]) -> None:
    """Entries, then exactly one fence, then the tail, and nothing else."""
    assert set(order) == {"sq", "fence", "sq_tail"}, order
    entries = order.count("sq")
    assert order == ["sq"] * entries + ["fence", "sq_tail"], order


def test_one_fence_stands_between_the_last_entry_and_the_tail() -> None:
    for order in publications(ring):
        check_publication(order)


ORDER_MUTANTS = [mutant for mutant in RING_MUTANTS if "the tail before" in mutant.rule]


@pytest.mark.parametrize("mutant", FENCE_MUTANTS + ORDER_MUTANTS, ids=lambda mutant: mutant.rule)
def test_a_fence_in_a_wrong_place_is_noticed(mutant: Mutant) -> None:
    orders = publications(mutant.module_object())
    assert any(not _keeps(order) for order in orders)


def _keeps(order: list[str]) -> bool:
    try:
        check_publication(order)
    except AssertionError:
        return False
    return True


# -- the client -----------------------------------------------------------------------------


def new_lane_client(order: list[str]) -> LaneClient:
    layout = lane_layout(SPEC, 8)
    lane = Lane(SPEC, Recorded(layout, order), layout, lambda: order.append("fence"))
    lane.gate.set(LaneGate.OPEN)
    return LaneClient(lane)


def rows_of(n: int, *, as_bytes: bool = False) -> Any:
    array = np.ones((n, 4), np.float32)
    rows = check_rows(SPEC, {"x": array})
    if as_bytes:
        rows.tensors["x"] = memoryview(array.tobytes())
    return rows


HEADER = {"deadline_ns", "submit_ns", "priority", "flow", "sequence"}


@pytest.mark.parametrize("as_bytes", [False, True], ids=["arrays", "bytes"])
@pytest.mark.parametrize("requests", [(1,), (3,), (1, 1, 2)])
def test_a_client_publishes_payload_header_entry_fence_tail(
    requests: tuple[int, ...], as_bytes: bool
) -> None:
    order: list[str] = []
    lane_client = new_lane_client(order)
    order.clear()
    for n in requests:
        start = len(order)
        lane_client.submit(rows_of(n, as_bytes=as_bytes), 1, 2)
        stores = order[start:]
        payload = [at for at, name in enumerate(stores) if name in ("in.x", "par.k")]
        states = [at for at, name in enumerate(stores) if name == "state"]
        # All rows at once: FILLING first, SUBMITTED last.
        assert states == [0, len(stores) - 1]
        assert min(payload) == 1
        assert {stores[at] for at in payload} == {"in.x", "par.k"}
        header = [name for name in stores if name in HEADER]
        assert set(header) == HEADER
        assert header.count("sequence") == n
        assert not {"sq", "sq_tail", "fence"} & set(stores), "only flush publishes"
    start = len(order)
    lane_client.flush()
    total = sum(requests)
    assert order[start:] == ["sq"] * total + ["fence", "sq_tail", "claimed"]


def test_a_cancel_word_stands_before_its_count() -> None:
    order: list[str] = []
    lane_client = new_lane_client(order)
    pending = lane_client.submit(rows_of(2), 1, 2)
    lane_client.flush()
    order.clear()
    lane_client.abandon(pending)
    assert order == ["cancel", "cancel", "cancels"]


# -- the batcher ----------------------------------------------------------------------------


# The rows, and up to how many they are plain numbers for the batcher, each stored by itself.
BY_NUMBERS_AND_ARRAYS = pytest.mark.parametrize(("n", "few"), [(1, 16), (3, 16), (3, 1)])


def batchers_lane(lane_client: LaneClient, order: list[str], few: int) -> AdmittedLane:
    lane = Lane(
        SPEC, lane_client.lane.memory, lane_client.lane.layout, lambda: order.append("fence")
    )
    return AdmittedLane(0, 1, 0, lane, lambda: order.append("bell"), few=few)


@BY_NUMBERS_AND_ARRAYS
def test_the_batcher_admits_before_it_moves_the_head(n: int, few: int) -> None:
    order: list[str] = []
    lane_client = new_lane_client(order)
    lane_client.submit(rows_of(n), 1, 2)
    lane_client.flush()
    side = batchers_lane(lane_client, order, few)
    order.clear()
    side.admit()
    assert order == ["attempt", "state"] * (n if n <= few else 1) + ["sq_head"]


@BY_NUMBERS_AND_ARRAYS
def test_the_batcher_writes_done_then_the_entry_then_rings(n: int, few: int) -> None:
    order: list[str] = []
    lane_client = new_lane_client(order)
    lane_client.submit(rows_of(n), 1, 2)
    lane_client.flush()
    side = batchers_lane(lane_client, order, few)
    rows = side.admit()
    order.clear()
    side.complete(rows[QueueColumn.SLOT], rows[QueueColumn.SEQUENCE])
    stores = n if n <= few else 1
    assert order == [*["state"] * stores, *["cq"] * stores, "fence", "cq_tail", "bell"]


def test_the_client_takes_a_completion_before_it_moves_the_head() -> None:
    order: list[str] = []
    lane_client = new_lane_client(order)
    pending = lane_client.submit(rows_of(1), 1, 2)
    lane_client.flush()
    side = batchers_lane(lane_client, order, 16)
    rows = side.admit()
    side.complete(rows[QueueColumn.SLOT], rows[QueueColumn.SEQUENCE])
    order.clear()
    assert lane_client.reap(3) == [pending]
    assert order == ["cq_head"]
    lane_client.result(pending)
    assert order == ["cq_head", "state", "claimed"]


# -- batcher and worker ---------------------------------------------------------------------


class Affine(CpuBackend):
    def launch(self, n: int, inputs: Any, sizes: Any, views: bool, parts: Any = ()) -> Any:
        return {"y": inputs["x"] * 2 + 1}

    def finish(self, flight: Any) -> Any:
        return flight


def test_a_batch_there_and_back() -> None:
    order: list[str] = []
    layout = worker_layout(4, 2)
    worker_segment = WorkerSegment(Recorded(layout, order), layout, lambda: order.append("fence"))
    proxy = WorkerProxy(0, 0, worker_segment, lambda: order.append("worker's bell"))
    rows: I64 = np.zeros((QUEUE_COLUMNS, 2), dtype=np.int64)
    rows[QueueColumn.SLOT] = (2, 3)
    rows[QueueColumn.DEADLINE_NS] = 6
    batch = proxy.prepare(rows, DispatchReason.FULL, 1, 1)
    assert order[-1] == "token", "it makes the record the rows' own"
    assert {"n", "tickets", "check", "due_ns", "cancels"} <= set(order[:-1])
    order.clear()
    proxy.publish(batch)
    assert order == ["sq", "fence", "sq_tail", "worker's bell"]

    lane_client = new_lane_client(order)
    lane_client.lane.deadline_ns[:] = 6
    worker = Worker(
        SPEC, worker_segment, Affine(), lambda: order.append("batcher's bell"), lambda: 5
    )
    worker.add_lane(0, 1, lane_client.lane)
    order.clear()
    while worker.step():
        pass
    finished, published, passed = map(order.index, ("finished", "cq", "sq_head"))
    assert order[finished - 1] == "fence", "outputs of any kind of store stand before `finished`"
    for earlier in ("out.y", "status", "outcome", "end_ns"):
        assert order.index(earlier) < finished
        assert earlier not in order[finished:]
    assert finished < published < passed
    assert order[published : published + 3] == ["cq", "fence", "cq_tail"]
    assert order[passed:] == ["sq_head", "batcher's bell"]


def test_a_failed_batch_has_its_statuses_before_it_is_finished() -> None:
    order: list[str] = []
    lane_client = new_lane_client(order)
    layout = worker_layout(4, 2)
    worker_segment = WorkerSegment(Recorded(layout, order), layout, lambda: order.append("fence"))
    worker = Worker(SPEC, worker_segment, Affine(), lambda: None, lambda: 5)
    worker.add_lane(0, 1, lane_client.lane)
    worker.spec = ModelSpec("affine", "numpy", SPEC.inputs, (Tensor("z", "int8"),), SPEC.parameters)
    proxy = WorkerProxy(0, 0, worker_segment, lambda: None)
    rows: I64 = np.zeros((QUEUE_COLUMNS, 1), dtype=np.int64)
    rows[QueueColumn.DEADLINE_NS] = lane_client.lane.deadline_ns[:] = 6
    proxy.publish(proxy.prepare(rows, DispatchReason.FULL, 1, 1))
    order.clear()
    while worker.step():
        pass
    assert lane_client.lane.status[0] == Status.MODEL_ERROR
    for earlier in ("message", "message_len", "status", "outcome"):
        assert order.index(earlier) < order.index("fence") < order.index("finished")
