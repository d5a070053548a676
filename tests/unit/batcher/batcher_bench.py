"""A batcher with lanes, and with workers that run what a test says."""

from __future__ import annotations

from batchpool.batcher.batcher import Batcher
from batchpool.batcher.dispatched_batch import DispatchedBatch
from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.metrics import BatcherMetrics
from batchpool.batcher.model_queue import ModelQueue
from batchpool.batcher.recovery import take_over
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.client.lane_client import LaneClient
from batchpool.client.pending_request import PendingRequest
from batchpool.core.errors import Status
from batchpool.core.layout.states import BatchOutcome, LaneGate, SlotState
from batchpool.core.metrics.table import BLOCKS
from batchpool.core.metrics.totals import Totals
from batchpool.core.scheduler.decide import Limits
from batchpool.core.scheduler.queue import I64, QueueColumn
from batchpool.shm.stats.flight_recorder import FlightRecorder
from batchpool.shm.worker_segment import WorkerSegment
from tests.unit.client.lane_clients import LATER, MS, NOW, new_lane_client, rows_of
from tests.unit.lanes import new_worker_segment, other_side

MOST = 16  # rows of a batch
LANES = 8


class Bench:
    """The batcher of some models, with the other side of its lanes and workers.

    rung: who was rung, in order. closed: the lanes that the batcher reported as unmapped. The words
    of its counters and its flight recorder outlive a batcher, as the lanes and workers do.
    """

    def __init__(self, *limits: Limits, attempts: int = 3, idempotent: bool = True) -> None:
        self.now_ns = NOW
        self.rung: list[str] = []
        self.closed: list[int] = []
        self.clients: dict[int, LaneClient] = {}
        self.recorder = FlightRecorder()
        self._limits = limits or (Limits(2, 0),)
        self._attempts, self._idempotent = attempts, idempotent
        self.cells = [
            memoryview(bytearray(8 * BLOCKS["batcher"].size)).cast("Q") for _ in self._limits
        ]
        self.batcher = self._new_batcher()

    def _new_batcher(self) -> Batcher:
        self.models = [
            ModelQueue(f"m{i}", limits, self._attempts, self._idempotent, metrics=BatcherMetrics(c))
            for i, (limits, c) in enumerate(zip(self._limits, self.cells, strict=True))
        ]
        return Batcher(
            self.models, LANES, lane_closed=self.closed.append, flight_recorder=self.recorder
        )

    def take_over(self) -> None:
        """The batcher dies, and another one takes over; `rung` is what it rings by that."""
        former = self.batcher
        self.batcher = self._new_batcher()
        for lane in former.lanes.by_number.values():
            self._map_lane(lane.number, lane.model)
        for worker in former.workers.by_number.values():
            self._map_worker(worker.number, worker.model, worker.worker_segment)
        self.rung.clear()
        take_over(self.batcher)

    # -- lanes and their clients ------------------------------------------------------------

    def add_lane(self, number: int, model: int = 0, gate: LaneGate = LaneGate.CLOSED) -> LaneClient:
        """A lane of 32 slots, whose rows are of one flow with those of all others."""
        self.clients[number] = new_lane_client(32, gate)
        self._map_lane(number, model)
        return self.clients[number]

    def _map_lane(self, number: int, model: int) -> None:
        lane = AdmittedLane(
            number, 10 + number, model, other_side(self.clients[number].lane),
            lambda: self.rung.append(f"lane {number}"), own_flow=False,
        )  # fmt: skip
        self.batcher.add_lane(lane)

    def send(
        self, lane: int, n: int, deadline_ns: int = LATER, priority: int = 0
    ) -> list[PendingRequest]:
        """Publish n requests of one row, now; the batcher takes them in the next step."""
        client = self.clients[lane]
        sent = [
            client.submit(rows_of(1), self.now_ns, deadline_ns, priority=priority) for _ in range(n)
        ]
        client.flush()
        return sent

    def answers(self, lane: int) -> list[type[Exception] | None]:
        """The ends of the requests of a lane that have ended since, in the order of their slots."""
        client = self.clients[lane]
        done = sorted(client.reap(self.now_ns), key=lambda pending: pending.slots[0])
        errors = [client.failure(pending) for pending in done]
        for pending in done:
            client.release(pending)
        return [None if error is None else type(error) for error in errors]

    def gate(self, lane: int) -> LaneGate:
        return LaneGate(self.clients[lane].lane.gate.get())

    # -- workers ----------------------------------------------------------------------------

    def add_worker(self, number: int, model: int = 0, *, ready: bool = True) -> WorkerProxy:
        """A worker with all lanes mapped, of which it is known that batches take 2 ms."""
        segment = new_worker_segment(MOST, LANES)
        segment.ready.set(int(ready))
        segment.lanes[:] = range(10, 10 + LANES)
        return self._map_worker(number, model, segment)

    def _map_worker(self, number: int, model: int, segment: WorkerSegment) -> WorkerProxy:
        worker = WorkerProxy(
            number, model, segment, lambda: self._ring_worker(number),
            row=number + 1, identity=(number % 10, 1000 + number),
        )  # fmt: skip
        self.batcher.add_worker(worker)
        worker.service_time.took(2, 2 * MS)
        return worker

    def _ring_worker(self, number: int) -> None:
        self.rung.append(f"worker {number}")
        worker = self.batcher.workers.by_number[number]
        for batch in worker.batches.values():
            for lane, slot in tickets(batch.rows):
                state = self.clients[lane].lane.state[slot]
                assert state == SlotState.RUNNING, "a worker may store into it from now on"

    def step(self, after_ns: int = 0) -> int:
        """A step of the batcher so much later."""
        self.now_ns += after_ns
        return self.batcher.step(self.now_ns)

    def launch(self, worker: WorkerProxy, batch: DispatchedBatch) -> None:
        segment = worker.worker_segment
        segment.start_ns[batch.record] = self.now_ns
        segment.launched.set(batch.token)

    def run(
        self,
        worker: WorkerProxy,
        batch: DispatchedBatch,
        outcome: BatchOutcome = BatchOutcome.OK,
        *,
        told: bool = True,
    ) -> None:
        """The worker finishes a batch. told: it lives until its ring entry is there."""
        segment, record = worker.worker_segment, batch.record
        self.launch(worker, batch)
        ended = Status.OK if outcome is BatchOutcome.OK else Status.MODEL_ERROR
        for lane, client in self.clients.items():
            slots = batch.rows[QueueColumn.SLOT, batch.rows[QueueColumn.LANE] == lane]
            client.lane.write_status(slots, ended, "" if ended is Status.OK else "raised")
        segment.extents[record] = 3
        segment.end_ns[record] = self.now_ns
        segment.outcome[record] = int(outcome)
        segment.finished[record] = batch.token
        if told:
            segment.cq_producer().push_few([record | batch.token << 32])
            segment.sq_consumer().advance(1)

    def in_flight(self, worker: WorkerProxy) -> list[DispatchedBatch]:
        """A worker's batches, the oldest first."""
        return sorted(worker.batches.values(), key=lambda batch: batch.token)

    def totals(self, model: int = 0) -> Totals:
        found = Totals()
        words = self.cells[model][: BLOCKS["batcher"].used].tolist()
        found.add("batcher", (f"m{model}", "infer"), words)
        return found

    def counts(self, name: str, label: str, model: int = 0) -> dict[str, int]:
        return {key: int(n) for key, n in self.totals(model).values(name, label).items()}


def tickets(rows: I64) -> list[tuple[int, int]]:
    """The (lane, slot) of rows [QUEUE_COLUMNS, n]."""
    return list(zip(rows[QueueColumn.LANE].tolist(), rows[QueueColumn.SLOT].tolist(), strict=True))


def bench_with_a_batch() -> tuple[Bench, WorkerProxy, DispatchedBatch]:
    """A bench whose worker 5 has a batch of the two rows of lane 1, slots 0 and 1."""
    bench = Bench()
    bench.add_lane(1)
    worker = bench.add_worker(5)
    bench.send(1, 2)
    bench.step()
    (batch,) = worker.batches.values()
    return bench, worker, batch
