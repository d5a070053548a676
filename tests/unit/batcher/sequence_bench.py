"""A batcher with one generator, lanes of it, and workers that run what a test says."""

from __future__ import annotations

from functools import partial

import numpy as np

from batchpool.batcher.batcher import Batcher
from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.metrics import BatcherMetrics
from batchpool.batcher.model_queue import ModelQueue
from batchpool.batcher.recovery import take_over
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.client.lane_client import LaneClient
from batchpool.client.pending_request import PendingRequest
from batchpool.core.layout.segments import worker_layout_of
from batchpool.core.layout.states import LaneGate
from batchpool.core.metrics.table import BLOCKS
from batchpool.core.metrics.totals import Totals
from batchpool.core.scheduler.decide import Limits
from batchpool.core.scheduler.queue import QueueColumn
from batchpool.core.tensors.rows import check_rows
from batchpool.shm.stats.flight_recorder import FlightRecorder
from batchpool.shm.worker_segment import WorkerSegment
from tests.unit.client.lane_clients import LATER, MS, NOW
from tests.unit.generator_worker import STORY, FakeGeneratorWorker, RunningSequence
from tests.unit.lanes import new_lane, other_side, segment_of

LANES = 8


class SequenceBench:
    """As `Bench` of batcher_bench.py. lanes: 1 and 2, each with its client."""

    def __init__(
        self, max_batch: int = 4, *, attempts: int = 3, idempotent: bool = True, slots: int = 32
    ) -> None:
        self.now_ns = NOW
        self.max_batch = max_batch
        self.rung: list[str] = []
        self.closed: list[int] = []
        self.recorder = FlightRecorder()
        self.clients = {n: LaneClient(new_lane(STORY, slots, LaneGate.CLOSED)) for n in (1, 2)}
        self.workers: dict[int, FakeGeneratorWorker] = {}
        self._attempts, self._idempotent = attempts, idempotent
        self._cells = memoryview(bytearray(8 * BLOCKS["batcher"].size)).cast("Q")
        self._start_batcher()

    def _start_batcher(self) -> None:
        self.model = ModelQueue(
            "story", Limits(self.max_batch, 0), self._attempts, self._idempotent,
            metrics=BatcherMetrics(self._cells), generates=True, waits_since=QueueColumn.SINCE_NS,
        )  # fmt: skip
        self.batcher = Batcher(
            [self.model], LANES, lane_closed=self.closed.append, flight_recorder=self.recorder
        )
        for number, client in self.clients.items():
            lane = AdmittedLane(
                number, 10 + number, 0, other_side(client.lane),
                partial(self.rung.append, f"lane {number}"), own_flow=False,
            )  # fmt: skip
            self.batcher.add_lane(lane)
        for number, worker in self.workers.items():
            self._map_worker(number, worker.segment)

    def take_over(self) -> None:
        """The batcher dies, and another one takes over."""
        self._start_batcher()
        self.rung.clear()
        take_over(self.batcher)

    def add_worker(
        self, number: int, sequences: int = 0, kv_tokens: int = 0, *, ready: bool = True
    ) -> FakeGeneratorWorker:
        """A worker with all lanes mapped."""
        layout = worker_layout_of(STORY, self.max_batch, LANES)
        segment = WorkerSegment(segment_of(layout), layout)
        theirs = WorkerSegment(segment.memory, layout)
        theirs.lanes[:] = range(10, 10 + LANES)
        lanes = {n: other_side(client.lane) for n, client in self.clients.items()}
        worker = FakeGeneratorWorker(theirs, lanes, sequences=sequences, kv_tokens=kv_tokens)
        theirs.ready.set(int(ready))
        self.workers[number] = worker
        self._map_worker(number, segment)
        return worker

    def _map_worker(self, number: int, segment: WorkerSegment) -> None:
        proxy = WorkerProxy(
            number, 0, segment, lambda: self.rung.append(f"worker {number}"),
            row=number, identity=(number, 1000 + number),
        )  # fmt: skip
        self.batcher.add_worker(proxy)

    def lose_worker(self, number: int, cause: str = "was killed") -> None:
        del self.workers[number]
        self.batcher.lose_worker(number, cause)

    def send(
        self,
        *firsts: int,
        lane: int = 1,
        prompt: int = 1,
        max_tokens: int = 20,
        deadline_ns: int = LATER,
        priority: int = 0,
    ) -> list[PendingRequest]:
        """Publish requests of one row, whose prompts begin with these numbers."""
        client, sent = self.clients[lane], []
        for first in firsts:
            tensors = {"prompt": np.full((1, prompt), first)}
            rows = check_rows(STORY, tensors, {"max_tokens": max_tokens})
            sent.append(client.submit(rows, self.now_ns, deadline_ns, priority=priority))
        client.flush()
        return sent

    def step(self, after_ns: int = 0) -> int:
        self.now_ns += after_ns
        return self.batcher.step(self.now_ns)

    def join(self, number: int) -> list[RunningSequence]:
        """A worker takes what was sent to it."""
        return self.workers[number].join(self.now_ns)

    def run(self, number: int, *firsts: int, max_tokens: int = 20) -> list[RunningSequence]:
        """These rows are sent, and all that is queued joins this worker, as far as it can."""
        self.send(*firsts, max_tokens=max_tokens)
        self.step()
        return self.join(number)

    def proxy(self, number: int) -> WorkerProxy:
        return self.batcher.workers.by_number[number]

    def waiting(self) -> list[int]:
        """The first prompt numbers of the queued rows, in the order of service."""
        return self.firsts(self.model.queue.view())

    def firsts(self, rows: np.ndarray) -> list[int]:
        found = zip(rows[QueueColumn.LANE].tolist(), rows[QueueColumn.SLOT].tolist(), strict=True)
        prompts = {n: client.lane.inputs["prompt"].values for n, client in self.clients.items()}
        return [int(prompts[lane][slot, 0]) for lane, slot in found]

    def answers(self, lane: int = 1) -> dict[int, list[int] | type[Exception]]:
        """The ends of the rows that have ended since, by first prompt number: tokens or error."""
        client, found = self.clients[lane], {}
        for pending in client.reap(self.now_ns):
            first = int(client.lane.inputs["prompt"].values[pending.slots[0], 0])
            error = client.failure(pending)
            if error is None:
                found[first] = client.result(pending)["token"][0].tolist()
            else:
                found[first] = type(error)
                client.release(pending)
        return found

    def _totals(self) -> Totals:
        totals = Totals()
        words = self._cells[: BLOCKS["batcher"].used].tolist()
        totals.add("batcher", ("story", "infer"), words)
        return totals

    def counts(self, name: str, label: str) -> dict[str, int]:
        return {key: int(n) for key, n in self._totals().values(name, label).items()}


__all__ = ["MS", "NOW", "SequenceBench"]
