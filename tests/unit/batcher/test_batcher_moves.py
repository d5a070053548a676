"""The batcher with model entries that come and go, and with lanes that have moved."""

from __future__ import annotations

import pytest

from batchpool.batcher.batcher import Batcher
from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.metrics import End
from batchpool.batcher.model_queue import ModelQueue
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.client.lane_client import LaneClient
from batchpool.core.errors import ModelError, NotReady
from batchpool.core.layout.states import LaneGate, SlotState
from batchpool.core.scheduler.decide import Limits
from tests.unit.client.lane_clients import LATER, NOW, new_lane_client, rows_of
from tests.unit.lanes import new_worker_segment, other_side


class House:
    """One lane of entry 0, and a worker that runs what the test says."""

    def __init__(self, *, idempotent: bool = True) -> None:
        self.closed: list[int] = []
        self.model = ModelQueue("m", Limits(2, 0), idempotent=idempotent)
        self.batcher = Batcher([self.model], 8, lane_closed=self.closed.append)
        self.lane_client = new_lane_client(8, LaneGate.CLOSED)
        self.add_lane(self.lane_client, 0)
        self.worker = self.add_worker(5)

    def add_lane(self, lane_client: LaneClient, number: int, *, moved: bool = False) -> None:
        lane = AdmittedLane(number, number + 1, 0, other_side(lane_client.lane), lambda: None)
        self.batcher.add_lane(lane, moved=moved)

    def add_worker(self, number: int) -> WorkerProxy:
        proxy = WorkerProxy(number, 0, new_worker_segment(2), lambda: None)
        proxy.worker_segment.ready.set(1)
        proxy.worker_segment.lanes[:] = [*range(1, 9)]
        self.batcher.add_worker(proxy)
        proxy.service_time.took(2, 2e6)
        return proxy

    def send(self, n: int) -> object:
        pending = self.lane_client.submit(rows_of(n), NOW, LATER)
        self.lane_client.flush()
        self.batcher.step(NOW)
        return pending

    def gate(self) -> LaneGate:
        return LaneGate(self.lane_client.lane.gate.get())

    def fate(self, pending: object) -> type[Exception] | None:
        """The error that its caller gets; None while it waits."""
        if pending not in self.lane_client.reap(NOW):
            return None
        try:
            self.lane_client.result(pending)  # type: ignore[arg-type]
        except Exception as exc:
            return type(exc)
        return object  # type: ignore[return-value]


def test_a_moved_lane_is_served_and_stays_moved() -> None:
    house = House()
    assert house.gate() is LaneGate.OPEN
    house.batcher.lanes.move([0, 7])  # of 7 it has not heard
    assert house.gate() is LaneGate.MOVED
    house.batcher.set_draining(True)
    house.batcher.set_draining(False)
    assert house.gate() is LaneGate.MOVED
    again = House()
    for gate in (LaneGate.MOVED, LaneGate.GONE):
        lane_client = new_lane_client(4, gate)
        again.add_lane(lane_client, 1 + gate)
        assert lane_client.lane.gate.get() == gate, "whatever the one before it knew"
    told = new_lane_client(4, LaneGate.CLOSED)
    again.add_lane(told, 7, moved=True)
    assert told.lane.gate.get() == LaneGate.MOVED, "the one before it died before it did so"


def test_an_evicted_lanes_rows_end_but_for_those_that_run() -> None:
    house = House()
    runs = [house.send(2) for _ in range(2)]
    waits = house.send(1)
    published = house.lane_client.submit(rows_of(1), NOW, LATER)  # when it is too late
    house.batcher.lanes.move([0])
    house.batcher.evict_lane(0)
    assert house.fate(waits) is NotReady
    assert (house.model.metrics.ended(End.NOT_READY), house.closed) == (1, [])
    house.lane_client.flush()
    house.batcher.step(NOW)
    assert house.fate(published) is None, "nobody takes it any more"
    worker_segment = house.worker.worker_segment
    for record in range(2):
        worker_segment.launched.set(int(worker_segment.token[record]))
        worker_segment.outcome[record] = 1
        worker_segment.finished[record] = worker_segment.token[record]
        house.worker.worker_segment.cq_producer().push_few(
            [record | int(worker_segment.token[record]) << 32]
        )
    house.batcher.step(NOW)
    assert (house.gate(), house.closed) == (LaneGate.GONE, [0])
    finished = house.lane_client.reap(NOW)
    assert {id(pending) for pending in finished} == {id(p) for p in (*runs, published)}
    with pytest.raises(NotReady):
        house.lane_client.result(published)
    assert house.batcher.lanes.by_number == {}


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("launched", [True, False])
def test_rows_of_an_evicted_lane_do_not_run_again(idempotent: bool, launched: bool) -> None:
    house = House(idempotent=idempotent)
    running = house.send(2)
    house.batcher.lanes.move([0])
    house.batcher.evict_lane(0)
    if launched:
        house.worker.worker_segment.launched.set(1)
    house.batcher.lose_worker(5, "was killed")
    assert house.batcher.is_empty()
    assert (house.closed, house.gate()) == ([0], LaneGate.GONE)
    ran = launched and not idempotent
    finished = house.lane_client.reap(NOW)
    assert finished == [running]
    kind = "WorkerLost" if ran else "NotReady"
    with pytest.raises(Exception, match=r"lost|replaced") as caught:
        house.lane_client.result(running)  # type: ignore[arg-type]
    assert type(caught.value).__name__ == kind
    assert not isinstance(caught.value, ModelError)


def test_a_lane_that_nobody_has_is_told_as_closed() -> None:
    house = House()
    house.batcher.evict_lane(4)
    assert house.closed == [4]


def test_entries_come_and_go() -> None:
    house = House()
    house.batcher.set_draining(True)
    other = ModelQueue("n", Limits(4, 0))
    house.batcher.add_model(3, other)
    assert other.limits.draining
    with pytest.raises(AssertionError, match="model 0 is in use"):
        house.batcher.retire_model(0)
    house.batcher.retire_model(3)
    house.batcher.close_lane(0)
    with pytest.raises(AssertionError, match="model 0 is in use"):
        house.batcher.retire_model(0)
    house.batcher.lose_worker(5)
    house.batcher.retire_model(0)
    assert house.batcher.models == {}
    assert house.batcher.step(NOW) > NOW
    assert house.lane_client.lane.state[0] == SlotState.FREE
