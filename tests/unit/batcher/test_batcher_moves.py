"""What the batcher does with entries that come and go, and with lanes that have moved."""

from __future__ import annotations

import pytest

from batchpool.batcher.batcher import Batcher, ModelQueue
from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.metrics import End
from batchpool.batcher.worker import WorkerProxy
from batchpool.client.lane_client import LaneClient
from batchpool.core.errors import ModelError, NotReady
from batchpool.core.layout.states import LaneGate, SlotState
from batchpool.core.scheduler.decide import Limits
from tests.unit.client.lane_clients import LATER, NOW, new_port, rows_of
from tests.unit.lanes import new_records, other_side


class House:
    """One lane of entry 0, and a worker that runs what the test says."""

    def __init__(self, *, idempotent: bool = True) -> None:
        self.closed: list[int] = []
        self.model = ModelQueue("m", Limits(2, 0), idempotent=idempotent)
        self.batcher = Batcher([self.model], 8, lane_closed=self.closed.append)
        self.port = new_port(8, LaneGate.CLOSED)
        self.add_lane(self.port, 0)
        self.worker = self.add_worker(5)

    def add_lane(self, port: LaneClient, number: int, *, moved: bool = False) -> None:
        lane = AdmittedLane(number, number + 1, 0, other_side(port.lane), lambda: None)
        self.batcher.add_lane(lane, moved=moved)

    def add_worker(self, number: int) -> WorkerProxy:
        member = WorkerProxy(number, 0, new_records(2), lambda: None)
        member.records.ready.set(1)
        member.records.lanes[:] = [*range(1, 9)]
        self.batcher.add_worker(member)
        member.time.took(2, 2e6)
        return member

    def send(self, n: int) -> object:
        pending = self.port.submit(rows_of(n), NOW, LATER)
        self.port.flush()
        self.batcher.step(NOW)
        return pending

    def gate(self) -> LaneGate:
        return LaneGate(self.port.lane.gate.get())

    def fate(self, pending: object) -> type[Exception] | None:
        """What its caller hears; None while it waits."""
        if pending not in self.port.reap(NOW):
            return None
        try:
            self.port.result(pending)  # type: ignore[arg-type]
        except Exception as exc:
            return type(exc)
        return object  # type: ignore[return-value]


def test_a_moved_lane_is_served_and_stays_moved() -> None:
    house = House()
    assert house.gate() is LaneGate.OPEN
    house.batcher.move_lanes([0, 7])  # of 7 it has not heard
    assert house.gate() is LaneGate.MOVED
    house.batcher.drain()
    house.batcher.open_again()
    assert house.gate() is LaneGate.MOVED
    again = House()
    for gate in (LaneGate.MOVED, LaneGate.GONE):
        port = new_port(4, gate)
        again.add_lane(port, 1 + gate)
        assert port.lane.gate.get() == gate, "whatever the one before it knew"
    told = new_port(4, LaneGate.CLOSED)
    again.add_lane(told, 7, moved=True)
    assert told.lane.gate.get() == LaneGate.MOVED, "the one before it died before it did so"


def test_an_evicted_lanes_rows_end_but_for_those_that_run() -> None:
    house = House()
    runs = [house.send(2) for _ in range(2)]
    waits = house.send(1)
    published = house.port.submit(rows_of(1), NOW, LATER)  # when it is too late
    house.batcher.move_lanes([0])
    house.batcher.evict_lane(0)
    assert house.fate(waits) is NotReady
    assert (house.model.tally.ended(End.NOT_READY), house.closed) == (1, [])
    house.port.flush()
    house.batcher.step(NOW)
    assert house.fate(published) is None, "nobody takes it any more"
    records = house.worker.records
    for record in range(2):
        records.outcome[record] = 1
        records.finished[record] = records.token[record]
        house.worker.records.cq_producer().push_few([record | int(records.token[record]) << 32])
    house.batcher.step(NOW)
    assert (house.gate(), house.closed) == (LaneGate.GONE, [0])
    finished = house.port.reap(NOW)
    assert {id(pending) for pending in finished} == {id(p) for p in (*runs, published)}
    with pytest.raises(NotReady):
        house.port.result(published)
    assert house.batcher.lanes == {}


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("launched", [True, False])
def test_rows_of_an_evicted_lane_do_not_run_again(idempotent: bool, launched: bool) -> None:
    house = House(idempotent=idempotent)
    running = house.send(2)
    house.batcher.move_lanes([0])
    house.batcher.evict_lane(0)
    if launched:
        house.worker.records.launched.set(1)
    house.batcher.lose_worker(5, "was killed")
    assert house.batcher.is_empty()
    assert (house.closed, house.gate()) == ([0], LaneGate.GONE)
    ran = launched and not idempotent
    finished = house.port.reap(NOW)
    assert finished == [running]
    kind = "WorkerLost" if ran else "NotReady"
    with pytest.raises(Exception, match=r"lost|replaced") as caught:
        house.port.result(running)  # type: ignore[arg-type]
    assert type(caught.value).__name__ == kind
    assert not isinstance(caught.value, ModelError)


def test_a_lane_that_nobody_has_is_told_as_closed() -> None:
    house = House()
    house.batcher.evict_lane(4)
    assert house.closed == [4]


def test_entries_come_and_go() -> None:
    house = House()
    house.batcher.drain()
    other = ModelQueue("n", Limits(4, 0))
    house.batcher.add_model(3, other)
    assert other.limits.draining
    with pytest.raises(AssertionError, match="entry 0 is in use"):
        house.batcher.retire_model(0)
    house.batcher.retire_model(3)
    house.batcher.close_lane(0)
    with pytest.raises(AssertionError, match="entry 0 is in use"):
        house.batcher.retire_model(0)
    house.batcher.lose_worker(5)
    house.batcher.retire_model(0)
    assert house.batcher.models == {}
    assert house.batcher.step(NOW) > NOW
    assert house.port.lane.state[0] == SlotState.FREE
