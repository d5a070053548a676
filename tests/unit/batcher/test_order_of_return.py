"""The order of service after rows came back to the queue."""

from __future__ import annotations

import pytest

from batchpool.batcher.batcher import Batcher
from batchpool.batcher.dispatched_batch import DispatchedBatch
from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.model_queue import ModelQueue
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.core.layout.states import BatchOutcome
from batchpool.core.scheduler.decide import Limits
from batchpool.core.scheduler.queue import QueueColumn
from tests.unit.client.lane_clients import LATER, NOW, new_lane_client, rows_of
from tests.unit.lanes import new_worker_segment, other_side


class House:
    """One lane, and workers that run what the test says. Rows are named by their slots."""

    def __init__(self, *, max_batch: int = 2, workers: int = 1) -> None:
        self.model = ModelQueue("m", Limits(max_batch, 0))
        self.batcher = Batcher([self.model], 8)
        self.lane_client = new_lane_client(16)
        lane = AdmittedLane(0, 1, 0, other_side(self.lane_client.lane), lambda: None)
        self.batcher.add_lane(lane)
        self.workers = [self.add_worker(number) for number in range(workers)]

    def add_worker(self, number: int) -> WorkerProxy:
        proxy = WorkerProxy(number, 0, new_worker_segment(8), lambda: None)
        proxy.worker_segment.ready.set(1)
        proxy.worker_segment.lanes[:] = 1
        self.batcher.add_worker(proxy)
        proxy.service_time.took(2, 10e6)
        return proxy

    def send(self, n: int, *, priority: int = 0) -> None:
        for _ in range(n):
            self.lane_client.submit(rows_of(1), NOW, LATER, priority=priority)
        self.lane_client.flush()
        self.batcher.step(NOW)

    def in_flight(self, worker: WorkerProxy) -> list[list[int]]:
        batches = sorted(worker.batches.values(), key=lambda batch: batch.token)
        return [batch.rows[QueueColumn.SLOT].tolist() for batch in batches]

    def queued(self) -> list[int]:
        return [int(slot) for slot in self.model.queue.view()[QueueColumn.SLOT]]


def test_batches_that_were_never_launched_come_back_in_the_order_of_service() -> None:
    house = House()
    house.send(6)
    assert house.in_flight(house.workers[0]) == [[0, 1], [2, 3]]
    assert house.queued() == [4, 5]
    house.batcher.lose_worker(0)
    assert house.queued() == [0, 1, 2, 3, 4, 5]


def test_the_batches_behind_the_one_that_was_launched_come_back_in_the_order_of_service() -> None:
    house = House()
    house.send(6)
    worker = house.workers[0]
    worker.worker_segment.launched.set(1)
    house.batcher.lose_worker(0)
    assert house.queued() == [2, 3, 4, 5]
    assert len(house.model.suspects) == 2


@pytest.mark.parametrize("first", [0, 1])
def test_workers_that_are_lost_one_after_the_other_give_one_order(first: int) -> None:
    house = House(workers=2)
    house.send(12)
    flights = [batch for worker in house.workers for batch in house.in_flight(worker)]
    assert sorted(slot for batch in flights for slot in batch) == [*range(8)]
    house.batcher.lose_worker(first)
    house.batcher.lose_worker(1 - first)
    assert house.queued() == [*range(12)]


def test_rows_that_come_back_twice_keep_their_places() -> None:
    house = House()
    house.send(6)
    for number in (1, 2, 3):
        house.batcher.lose_worker(number - 1)
        assert house.queued() == [*range(6)]
        worker = house.add_worker(number)
        house.batcher.step(NOW)
        assert house.in_flight(worker) == [[0, 1], [2, 3]]


def test_slots_do_not_decide_the_order_of_rows_that_come_back() -> None:
    """A batch is sorted by slot for its worker; of its rows the raised one is served first."""
    house = House(max_batch=4)
    house.workers[0].worker_segment.ready.set(0)
    house.send(2)
    house.send(1, priority=1)
    house.workers[0].worker_segment.ready.set(1)
    house.batcher.step(NOW)
    assert house.in_flight(house.workers[0]) == [[0, 1, 2]]
    house.batcher.lose_worker(0)
    assert house.queued() == [2, 0, 1]


def test_rows_of_a_batch_that_was_too_large_come_back_in_the_order_of_service() -> None:
    house = House(max_batch=4)
    house.send(8)
    worker = house.workers[0]
    segment = worker.worker_segment
    batches: list[DispatchedBatch] = sorted(worker.batches.values(), key=lambda b: b.token)
    for batch in batches:
        segment.launched.set(batch.token)
        segment.outcome[batch.record] = int(BatchOutcome.NO_MEMORY)
        segment.finished[batch.record] = batch.token
        segment.cq_producer().push_few([batch.record | batch.token << 32])
    worker.worker_segment.ready.set(0)
    house.batcher.step(NOW)
    assert house.queued() == [*range(8)]
