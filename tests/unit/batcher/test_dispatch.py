"""The rows that a step takes out of the queue and the suspects, and how they are sent."""

from __future__ import annotations

from batchpool.core.errors import DeadlineExceeded
from batchpool.core.layout.states import SlotState
from batchpool.core.scheduler.decide import Limits
from batchpool.core.scheduler.estimators import ArrivalEstimator
from tests.unit.batcher.batcher_bench import Bench, tickets
from tests.unit.client.lane_clients import MS, NOW


class Told(ArrivalEstimator):
    """Keeps what it is told of arrivals (rows, ns) and of ends (ns)."""

    def __init__(self) -> None:
        super().__init__()
        self.came: list[tuple[int, int]] = []
        self.ended: list[int] = []

    def arrived(self, n: int, now_ns: int) -> None:
        self.came.append((n, now_ns))

    def finished(self, now_ns: int) -> None:
        self.ended.append(now_ns)


def test_the_estimator_is_told_of_the_rows_and_batches_of_its_model() -> None:
    bench = Bench(Limits(2, 0), Limits(2, 0))
    told = [Told(), Told()]
    for model, traffic in zip(bench.models, told, strict=True):
        model.traffic = traffic
    for lane in (1, 4):
        bench.add_lane(lane)
        bench.send(lane, 1)
    worker = bench.add_worker(5)
    bench.step()
    (batch,) = worker.batches.values()
    bench.run(worker, batch)
    bench.step(after_ns=MS)
    assert [(traffic.came, traffic.ended) for traffic in told] == [
        ([(2, NOW)], [NOW + MS]), ([], []),
    ]  # fmt: skip


def test_two_rows_are_sorted_by_lane() -> None:
    bench = Bench()
    for lane in (1, 4):
        bench.add_lane(lane)
    worker = bench.add_worker(5)
    worker.worker_segment.ready.set(0)
    for lane in (4, 1):
        bench.send(lane, 1)
        bench.step(after_ns=MS)
    worker.worker_segment.ready.set(1)
    bench.step()
    (batch,) = worker.batches.values()
    assert tickets(batch.rows) == [(1, 0), (4, 0)]


def test_rising_slots_of_two_lanes_are_sorted_by_lane_all_the_same() -> None:
    bench = Bench()
    for lane in (1, 4):
        bench.add_lane(lane)
    worker = bench.add_worker(5)
    bench.send(1, 1)
    bench.step()
    worker.worker_segment.ready.set(0)
    for lane in (4, 1):
        bench.send(lane, 1)
        bench.step(after_ns=MS)
    worker.worker_segment.ready.set(1)
    bench.step()
    _, batch = worker.batches.values()
    assert tickets(batch.rows) == [(1, 1), (4, 0)]


def test_a_late_row_is_taken_out_from_between_those_of_a_batch() -> None:
    """A raised row is served before it, one of its own priority after it."""
    bench = Bench(Limits(2, 0))
    bench.add_lane(1)
    worker = bench.add_worker(5, ready=False)
    bench.send(1, 1, priority=1)
    bench.send(1, 1, NOW + 5, priority=2)
    bench.send(1, 2, priority=2)
    bench.step()
    worker.worker_segment.ready.set(1)
    bench.step(after_ns=5)
    (batch,) = worker.batches.values()
    assert tickets(batch.rows) == [(1, 0), (1, 2)]
    assert tickets(bench.models[0].queue.view()) == [(1, 3)]
    assert bench.answers(1) == [DeadlineExceeded]
    runs, free, waits = SlotState.RUNNING, SlotState.FREE, SlotState.QUEUED
    assert bench.clients[1].lane.state[:4].tolist() == [runs, free, runs, waits]


def test_suspects_wait_for_a_worker_that_has_mapped_all_of_their_lanes() -> None:
    bench = Bench()
    for lane in (1, 4):
        bench.add_lane(lane)
    worker = bench.add_worker(5, ready=False)
    for lane in (1, 4):
        bench.send(lane, 1)
    bench.step()
    model = bench.models[0]
    model.suspects.add_group(model.queue.take_front(2))
    worker.worker_segment.ready.set(1)
    worker.worker_segment.lanes[4] = 0
    bench.step()
    assert worker.in_flight == 0
    worker.worker_segment.lanes[4] = 14
    bench.step()
    (batch,) = worker.batches.values()
    assert (tickets(batch.rows), batch.apart) == ([(1, 0), (4, 0)], True)
