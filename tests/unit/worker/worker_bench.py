"""A worker's core on real memories with the batcher's side of it, for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from batchpool.batcher.dispatched_batch import DispatchedBatch
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.core.layout.states import DispatchReason
from batchpool.core.scheduler.limits import NEVER_NS
from batchpool.core.scheduler.queue import I64, QUEUE_COLUMNS, QueueColumn
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec
from batchpool.shm.lane import Lane
from batchpool.worker.backends.cpu import CpuBackend
from batchpool.worker.padding import Padding
from batchpool.worker.worker import Worker
from tests.unit.lanes import new_lane, new_worker_segment, other_side
from tests.unit.specs import AFFINE

Infer = Callable[[int, dict[str, Array], dict[str, Array | None]], Any]


class FakeBackend(CpuBackend):
    """Calls `infer` in finish, as a device would; `raises_in` puts it into launch."""

    def __init__(self, infer: Infer, depth: int = 1, raises_in: str = "finish") -> None:
        self.depth = depth
        self.infer = infer
        self.raises_in = raises_in
        self.launched: list[tuple[int, dict[str, Array], bool]] = []

    def launch(
        self,
        n: int,
        inputs: dict[str, Array],
        sizes: dict[str, Array | None],
        views: bool,
        parts: Any = (),
    ) -> Any:
        self.launched.append((n, inputs, views))
        return self.infer(n, inputs, sizes) if self.raises_in == "launch" else (n, inputs, sizes)

    def finish(self, flight: Any) -> Any:
        return flight if self.raises_in == "launch" else self.infer(*flight)


def affine(n: int, inputs: dict[str, Array], sizes: dict[str, Array | None]) -> Any:
    return {"y": inputs["x"] * 2 + 1}


def raising(cause: BaseException) -> Infer:
    def infer(n: int, inputs: dict[str, Array], sizes: dict[str, Array | None]) -> Any:
        raise cause

    return infer


class Bench:
    """A worker of one model with two lanes, and the batcher's side of it."""

    def __init__(
        self,
        spec: ModelSpec = AFFINE,
        infer: Infer = affine,
        *,
        backend: Any = None,
        padding: Padding | None = None,
        max_batch: int = 8,
        run_warm_up_row: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> None:
        self.rings: list[str] = []
        self.now_ns = 1000
        self.spec = spec
        self.backend = backend or FakeBackend(infer, **options)
        self.worker_segment = new_worker_segment(max_batch)
        self.worker = Worker(
            spec,
            self.worker_segment,
            self.backend,
            lambda: self.rings.append("batcher"),
            lambda: self.now_ns,
            padding,
            run_warm_up_row=run_warm_up_row,
        )
        self.lanes: dict[int, Lane] = {}
        for number, serial in ((1, 11), (4, 44)):
            self.lanes[number] = new_lane(spec, 8)
            self.worker.add_lane(number, serial, other_side(self.lanes[number]))
        self.proxy = WorkerProxy(0, 0, self.worker_segment, lambda: self.rings.append("worker"))

    def send(self, *rows: tuple[int, int], due_ns: Sequence[int] = ()) -> DispatchedBatch:
        """Rows as (lane, slot), in the order of the batcher: by lane, then slot.

        due_ns: the deadlines of the rows, where they have any.
        """
        block: I64 = np.zeros((QUEUE_COLUMNS, len(rows)), dtype=np.int64)
        block[QueueColumn.LANE] = [lane for lane, _ in rows]
        block[QueueColumn.SLOT] = [slot for _, slot in rows]
        block[QueueColumn.SEQUENCE] = 1
        block[QueueColumn.DEADLINE_NS] = due_ns or [NEVER_NS] * len(rows)
        for (lane, slot), deadline_ns in zip(rows, block[QueueColumn.DEADLINE_NS], strict=True):
            self.lanes[lane].deadline_ns[slot] = deadline_ns
        heard = sum(self.lanes[lane].cancels.get() for lane in {lane for lane, _ in rows})
        batch = self.proxy.prepare(block, DispatchReason.FULL, self.now_ns, 1, heard)
        self.proxy.publish(batch)
        return batch

    def cancel(self, lane: int, slot: int) -> None:
        self.lanes[lane].cancel[slot] = 1
        self.lanes[lane].cancels.set(self.lanes[lane].cancels.get() + 1)

    def run(self) -> int:
        steps = 0
        while self.worker.step():
            steps += 1
        return steps

    def statuses(self, *rows: tuple[int, int]) -> list[tuple[int, str]]:
        return [
            (int(self.lanes[lane].status[slot]), self.lanes[lane].read_message(slot))
            for lane, slot in rows
        ]

    def outcome(self, batch: DispatchedBatch) -> int:
        return int(self.worker_segment.outcome[batch.record])

    def fill(self, *rows: tuple[int, int]) -> None:
        for lane, slot in rows:
            self.lanes[lane].inputs["x"].values[slot] = 10 * lane + slot

    def y(self, *rows: tuple[int, int]) -> list[Any]:
        return [self.lanes[lane].outputs["y"].values[slot].tolist() for lane, slot in rows]


ROWS = ((1, 2), (1, 3), (4, 0))
