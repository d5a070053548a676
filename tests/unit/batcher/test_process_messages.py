"""The batcher's process answers its supervisor's messages, between real bells and rings."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace

import pytest

from batchpool.batcher.process import BatcherProcess
from batchpool.client.lane_client import LaneClient
from batchpool.control.channel import Closed, close_all, pair
from batchpool.control.edges import FROM_BATCHER, InvalidMessage
from batchpool.control.process_messages import (
    AddModel,
    BatcherModel,
    BatcherRunning,
    Begin,
    CloseLane,
    EvictLane,
    LaneBroken,
    LaneClosed,
    MoveLanes,
    RemoveModel,
    SetDuty,
    SetLimits,
    StageLimits,
    StartBatcher,
    WorkerHandled,
    WorkerIdle,
    WorkerLost,
)
from batchpool.core.errors import NotReady
from batchpool.core.layout.segments import heartbeats_layout
from batchpool.core.layout.states import LaneGate, SlotState
from batchpool.core.metrics.table import BLOCKS
from batchpool.core.scheduler.decide import Limits
from batchpool.core.scheduler.element_budget import RowElements
from batchpool.core.scheduler.queue import QueueColumn
from batchpool.core.tensors.spec import Dim, Tensor
from batchpool.core.tensors.stages import Stage
from batchpool.process import bootstrap
from batchpool.shm.client_bells import HeardBell, make_client_bells
from batchpool.shm.doorbell import Waiter
from batchpool.shm.segment import create
from tests.unit.batcher.process_bench import (
    HOUR_NS,
    LANES,
    MOST,
    PATIENCE_S,
    SLOTS,
    Start,
    Supervisor,
    hear,
    open_bells,
)
from tests.unit.specs import AFFINE, model


def test_a_row_of_a_front_end_goes_to_a_worker_and_back(start: Start) -> None:
    pool = start()
    bell = pool.new_bell()
    client = pool.add_lane(1, bell.fd)
    worker = pool.add_worker(5)
    pool.begin()
    hear(bell)
    assert client.lane.gate.get() == LaneGate.OPEN
    for _ in range(3):
        pending = pool.submit(1)
        pool.bell.ring()
        worker.run_next(client.lane)
        pool.bell.ring()
        hear(bell)
        assert not Waiter(pool.bell.fd).wait_ms(0), "the batcher has heard that"
        assert client.reap(time.monotonic_ns()) == [pending]
        assert client.result(pending)["y"].tolist() == [[1] * 4]
    assert pool.counters.totals().value("rows_admitted_total", model="m") == 3
    assert [batch.process for batch in pool.recorder.last()] == [5] * 3


def test_a_local_client_is_heard_and_rung_by_its_own_bells(start: Start) -> None:
    pool = start()
    bells = make_client_bells()
    pool.fds += [bells.rung_by_pool, bells.rung_by_client]
    heard = HeardBell(bells.heard_by_client)
    client = pool.add_lane(1, bells.rung_by_pool, bells.rung_by_client, client=9)
    worker = pool.add_worker(5)
    pool.begin()
    pool.settle()
    heard.clear()
    for _ in range(2):
        pending = pool.submit(1)
        os.eventfd_write(bells.rung_by_client, 1)
        worker.run_next(client.lane)
        pool.bell.ring()
        assert Waiter(heard.fd).wait_ms(1000 * PATIENCE_S) == [heard.fd]
        heard.clear()
        assert client.reap(time.monotonic_ns()) == [pending]
        client.release(pending)
    heard.close()
    own = open_bells()
    pool.send(CloseLane(1))
    pool.expect(LaneClosed(1))
    assert open_bells() == own - 2, "the batcher has closed its bells"


def test_a_front_ends_rows_are_of_the_flows_that_they_name_and_a_local_clients_of_its_own(
    start: Start,
) -> None:
    pool = start()
    bells = make_client_bells()
    pool.fds += [bells.rung_by_pool, bells.heard_by_client, bells.rung_by_client]
    pool.add_lane(1, pool.new_bell().fd)
    pool.add_lane(2, bells.rung_by_pool, bells.rung_by_client, client=9)
    pool.begin()
    for number in (1, 2):
        pool.claim(number, flow=5)
        pool.clients[number].flush()
    pool.add_worker(5, on_duty=False)
    pool.expect(WorkerIdle(5, 0))  # it comes after a step
    queued = pool.process.batcher.models[0].queue.view()
    assert sorted(queued[QueueColumn.FLOW].tolist()) == [-12, 5]


def test_rows_of_a_lost_worker_go_to_another_one(start: Start) -> None:
    pool = start()
    bell = pool.new_bell()
    client = pool.add_lane(1, bell.fd)
    worker = pool.add_worker(5)
    pool.begin()
    pool.submit(1)
    pool.bell.ring()
    hear(worker.bell)
    bells = open_bells()
    pool.send(WorkerLost(5, "was killed"))
    pool.expect(WorkerHandled(5))
    assert open_bells() == bells - 1, "its bell is closed"
    pool.send(WorkerLost(5, "was killed"))
    pool.expect(WorkerHandled(5))
    other = pool.add_worker(6)
    other.run_next(client.lane)


def left_over(pool: Supervisor) -> LaneClient:
    """A lane whose former batcher has queued one row."""
    client = pool.add_lane(1, pool.new_bell().fd)
    client.lane.gate.set(LaneGate.OPEN)
    pending = pool.submit(1)
    client.lane.sq_consumer().advance(1)
    client.lane.state[pending.slots[0]] = SlotState.QUEUED
    return client


def test_rows_of_a_former_batcher_are_taken_over(start: Start) -> None:
    pool = start()
    client = left_over(pool)
    worker = pool.add_worker(5)
    pool.begin(takeover=True)
    worker.run_next(client.lane)


def test_rows_of_lanes_that_were_evicted_meanwhile_do_not_run(start: Start) -> None:
    pool = start()
    client = left_over(pool)
    worker = pool.add_worker(5)
    pool.send(Begin(takeover=True, evicted=(1,)))
    pool.thread.start()
    pool.expect(LaneClosed(1), BatcherRunning())
    (pending,) = client.reap(time.monotonic_ns())
    assert isinstance(client.failure(pending), NotReady)
    assert client.lane.gate.get() == LaneGate.GONE
    assert worker.sq.pending() == 0


def test_a_lane_moves_and_is_evicted(start: Start) -> None:
    pool = start()
    own, other = [pool.new_bell() for _ in range(2)]
    for number, bell in enumerate((own, other), 1):
        pool.add_lane(number, bell.fd)
    pool.begin()
    for bell in (own, other):
        hear(bell)
    pool.send(MoveLanes((1,)))
    hear(own)
    gates = [client.lane.gate.get() for client in pool.clients.values()]
    assert gates == [LaneGate.MOVED, LaneGate.OPEN]
    bells = open_bells()
    pool.send(EvictLane(1))
    pool.expect(LaneClosed(1))
    assert pool.clients[1].lane.gate.get() == LaneGate.GONE
    hear(own)
    assert open_bells() == bells - 1, "its bell is closed"


def test_a_lane_that_had_moved_before_its_batcher_heard_of_it_stays_shut(start: Start) -> None:
    pool = start()
    client = pool.add_lane(1, pool.new_bell().fd, moved=True)
    pool.begin()
    assert client.lane.gate.get() == LaneGate.MOVED


def test_a_lane_that_is_closed_is_reported_once_its_rows_are_over(start: Start) -> None:
    pool = start()
    client = pool.add_lane(1, pool.new_bell().fd)
    worker = pool.add_worker(5)
    pool.begin()
    pool.submit(1)
    pool.bell.ring()
    hear(worker.bell)
    pool.send(CloseLane(1))
    pool.settle()
    worker.finish(client.lane)
    pool.bell.ring()
    pool.expect(LaneClosed(1))


def test_a_lane_whose_head_was_overwritten_ends_no_other(start: Start) -> None:
    pool = start()
    other, bell = pool.new_bell(), pool.new_bell()
    pool.add_lane(2, other.fd)
    pool.begin()
    pool.settle()
    bells = open_bells()
    pool.add_lane(1, bell.fd, layout_slots=SLOTS + 1)
    message, _ = pool.channel.receive(FROM_BATCHER)
    assert isinstance(message, LaneBroken)
    assert message.lane == 1
    pool.settle()
    assert open_bells() == bells, "nothing of it stays open"
    assert list(pool.process.batcher.lanes.by_number) == [2]


def test_a_lane_in_which_its_client_wrote_nonsense_is_reported(start: Start) -> None:
    pool = start()
    client = pool.add_lane(1, pool.new_bell().fd)
    pool.begin()
    client.lane.sq_producer().push_few([SLOTS + 3 | 1 << 32])
    pool.bell.ring()
    pool.expect(LaneBroken(1, f"slot {SLOTS + 3} was submitted, of {SLOTS}"))


def test_a_worker_off_duty_is_reported_with_the_number_of_that_change(start: Start) -> None:
    pool = start()
    client = pool.add_lane(1, pool.new_bell().fd)
    worker = pool.add_worker(5)
    pool.begin()
    pool.submit(1)
    pool.bell.ring()
    hear(worker.bell)
    pool.send(SetDuty(4, (), (5,)))
    pool.settle()
    worker.finish(client.lane)
    pool.bell.ring()
    pool.expect(WorkerIdle(5, 4))
    pool.send(SetDuty(5, (5,), ()))
    pool.submit(1)
    pool.bell.ring()
    worker.run_next(client.lane)
    pool.add_worker(6, on_duty=False, duty=9)
    pool.expect(WorkerIdle(6, 9))


@pytest.mark.parametrize(("row", "counted_in"), [(-1, 0), (3, 3)])
def test_a_worker_is_known_by_its_place_and_pid(start: Start, row: int, counted_in: int) -> None:
    pool = start()
    pool.add_worker(5, row=row)
    pool.begin()
    (worker,) = pool.process.batcher.workers.by_number.values()
    assert (worker.number, worker.model, worker.row) == (5, 0, counted_in)
    assert (worker.identity, worker.active) == ((2, 1234), True)


def test_models_come_and_go(start: Start) -> None:
    pool = start()
    pool.begin()
    ragged = model(Tensor("x", "float32", (Dim(100),)))
    form = BatcherModel(3, ragged.to_wire(), Limits(2, 0), 5, idempotent=False)
    for _ in range(2):
        pool.send(AddModel(form))
        pool.settle()
        found = pool.process.batcher.models[3]
        assert (found.name, found.attempts, found.idempotent) == ("m", 5, False)
        elements = RowElements.of_stage(ragged)
        assert found.limits == Limits(2, 0, bucketed=True, row_elements=elements)
        pool.send(RemoveModel(3))
        pool.settle()
        assert list(pool.process.batcher.models) == [0]


def test_a_model_has_the_stages_that_the_supervisor_has_limits_for(start: Start) -> None:
    """In the order in which a row takes them, each with its own number and limits."""
    pool = start()
    pool.begin()
    x = Tensor("x", "float32", (Dim(100),))
    ids, logits = Tensor("ids", "int32"), Tensor("logits", "float32")
    spec = replace(model(x), features=(ids,), predictions=(logits,))
    limits = [StageLimits(int(Stage.POSTPROCESS), Limits(5, 0)), StageLimits(1, Limits(4, 0))]
    for cpu_stages, numbers in ((limits, [1, 0, 2]), (limits[:1], [0, 2]), ([], [0])):
        pool.send(AddModel(BatcherModel(3, spec.to_wire(), Limits(6, 0), 5, True, (*cpu_stages,))))
        pool.settle()
        found = dict(list(pool.process.batcher.models.items())[1:])
        assert list(found) == [3 + 64 * number for number in numbers]
        assert [int(each.stage) for each in found.values()] == numbers
        most = {1: 4, 0: 6, 2: 5}
        assert [each.limits.max_batch for each in found.values()] == [most[n] for n in numbers]
        assert [each.following for each in found.values()] == [*list(found.values())[1:], None]
        pool.send(RemoveModel(3))
        pool.settle()
        assert list(pool.process.batcher.models) == [0]


def test_the_limits_of_a_reload_hold_from_then_on(start: Start) -> None:
    pool = start()
    pool.begin()
    at = pool.counters.place("batcher", 0) + BLOCKS["batcher"].word("batch_rows_limit")
    assert pool.counters.cells[at] == MOST
    limits = Limits(2, 5, adaptive=True)
    form = BatcherModel(0, AFFINE.to_wire(), limits, 7, idempotent=False)
    pool.send(SetLimits((form,), HOUR_NS, "error"))
    pool.settle()
    found = pool.process.batcher.models[0]
    assert (found.limits, found.attempts, found.idempotent) == (limits, 7, False)
    assert pool.counters.cells[at] == 2
    assert logging.getLogger().level == logging.ERROR


def test_a_batcher_starts_once(start: Start) -> None:
    channel, own = pair()
    channel.send(Begin(takeover=False, evicted=()))
    with pytest.raises(InvalidMessage, match="starts with 'start', not with Begin"):
        BatcherProcess(own)
    for end in (channel, own):
        end.close()
    pool = start()
    pool.begin()
    fds = [create(heartbeats_layout(2), sealed=False) for _ in range(4)]
    pool.send(StartBatcher((), 0, LANES, 2, HOUR_NS), *fds)
    close_all(fds)
    pool.thread.join(PATIENCE_S)
    assert [str(exc) for exc in pool.ends] == ["'start' came twice"]


def test_a_batcher_ends_with_its_supervisor_and_settles_once_it_begins(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = start()
    settled: list[int] = []
    monkeypatch.setattr(bootstrap, "settle", lambda: settled.append(1))
    pool.begin()
    assert settled == [1]
    pool.channel.close()
    pool.thread.join(PATIENCE_S)
    assert [type(exc) for exc in pool.ends] == [Closed]
