"""A step of the batcher: who gets which rows, when, and when the next step is due."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.metrics import End
from batchpool.core.errors import Cancelled, DeadlineExceeded
from batchpool.core.layout.states import BatchOutcome, DispatchReason, LaneGate, SlotState
from batchpool.core.scheduler.decide import NEVER_NS, Limits
from batchpool.core.scheduler.queue import QueueColumn
from tests.unit.batcher.batcher_bench import Bench, bench_with_a_batch, tickets
from tests.unit.client.lane_clients import LATER, MS, NOW, S, new_lane_client, rows_of
from tests.unit.lanes import other_side

SLOW = Limits(4, 10 * MS)  # rows wait for others


def with_suspects(bench: Bench, n: int) -> None:
    """n rows of lane 1 fail together on a worker 9, which is lost then; they wait to run apart."""
    worker = bench.add_worker(9)
    bench.send(1, n)
    bench.step()
    (batch,) = worker.batches.values()
    bench.run(worker, batch, BatchOutcome.FAILED)
    worker.worker_segment.ready.set(0)
    bench.step()
    bench.batcher.lose_worker(9)
    assert len(bench.models[0].suspects) == n


def test_rows_go_to_the_workers_of_their_model() -> None:
    bench = Bench(Limits(2, 0), Limits(2, 0))
    for model in (0, 1):
        bench.add_lane(model + 1, model)
    other, own = bench.add_worker(5, model=0), bench.add_worker(6, model=1)
    bench.send(2, 2)
    bench.step()
    assert (other.in_flight, own.in_flight) == (0, 1)


@pytest.mark.parametrize("why", ["inactive", "not ready", "its lane is not mapped there"])
def test_a_worker_that_cannot_run_rows_gets_none(why: str) -> None:
    bench = Bench()
    bench.add_lane(1)
    with_suspects(bench, 2)
    worker = bench.add_worker(5)
    segment = worker.worker_segment
    if why == "inactive":
        bench.batcher.workers.set_active((), (5,), 1)
    elif why == "not ready":
        segment.ready.set(0)
    else:
        segment.lanes[1] = 0
    bench.send(1, 2)
    bench.step()
    assert worker.in_flight == 0
    bench.batcher.workers.set_active((5,), (), 2)
    segment.ready.set(1)
    segment.lanes[1] = 11
    bench.step()
    assert [batch.apart for batch in bench.in_flight(worker)] == [True]


def test_suspects_go_to_an_idle_worker() -> None:
    bench = Bench()
    bench.add_lane(1)
    with_suspects(bench, 2)
    busy = bench.add_worker(5, ready=False)
    idle = bench.add_worker(6, ready=False)
    busy.prepare(np.zeros((12, 1), dtype=np.int64), DispatchReason.FULL, NOW, 1)
    for worker in (busy, idle):
        worker.worker_segment.ready.set(1)
    bench.step()
    assert [batch.apart for batch in bench.in_flight(busy)] == [False]
    (batch,) = idle.batches.values()
    assert (batch.apart, batch.rows.shape[1]) == (True, 1)


def test_one_group_of_suspects_of_a_model_runs_at_a_time() -> None:
    bench = Bench(Limits(2, 0), Limits(2, 0))
    bench.add_lane(1)
    with_suspects(bench, 2)
    workers = [bench.add_worker(number) for number in (5, 6)]
    for _ in range(2):
        bench.step()
        assert [worker.in_flight for worker in workers] == [1, 0]
    (batch,) = workers[0].batches.values()
    bench.run(workers[0], batch)
    bench.step()
    assert sum(worker.in_flight for worker in workers) == 1
    assert not bench.models[0].suspects


def test_suspects_of_one_model_hold_up_none_of_another() -> None:
    bench = Bench(Limits(2, 0), Limits(2, 0))
    bench.add_lane(1)
    with_suspects(bench, 1)
    other = bench.add_worker(6, model=1)
    other.prepare(np.zeros((12, 1), dtype=np.int64), DispatchReason.APART, NOW, 1)
    own = bench.add_worker(5)
    bench.step()
    assert [batch.apart for batch in bench.in_flight(own)] == [True]


# -- what is sent -----------------------------------------------------------------------------


def test_a_batch_is_sorted_by_lane_then_slot_and_its_rows_are_running() -> None:
    bench = Bench(Limits(4, 0))
    for lane in (1, 4):
        bench.add_lane(lane)
    worker = bench.add_worker(5, ready=False)
    for lane in (4, 1, 4, 1):
        bench.send(lane, 1)
        bench.step(after_ns=MS)
    worker.worker_segment.ready.set(1)
    bench.rung.clear()
    bench.step()
    segment = worker.worker_segment
    assert segment.n[0] == 4
    assert segment.tickets[0, 0, :4].tolist() == [1, 1, 4, 4]
    assert segment.tickets[0, 1, :4].tolist() == [0, 1, 0, 1]
    for lane in (1, 4):
        assert bench.clients[lane].lane.state[:3].tolist() == [SlotState.RUNNING] * 2 + [0]
    assert bench.rung == ["worker 5"]
    assert segment.sq_consumer().peek().tolist() == [1 << 32]


def test_a_worker_learns_which_cancels_the_batcher_has_heard_of() -> None:
    bench = Bench()
    for lane, cancels in ((1, 3), (4, 5)):
        bench.add_lane(lane).lane.cancels.set(cancels)
    worker = bench.add_worker(5)
    for lane in (1, 4):
        bench.send(lane, 1)
    bench.step()
    assert worker.worker_segment.cancels_of[0] == 8


def test_late_rows_are_taken_out_from_between_those_that_are_sent() -> None:
    bench = Bench(Limits(2, 0))
    bench.add_lane(1)
    worker = bench.add_worker(5, ready=False)
    for deadline_ns in (LATER, NOW + 5, LATER, LATER, NOW + 5, LATER, LATER):
        bench.send(1, 1, deadline_ns)
    bench.step()
    worker.worker_segment.ready.set(1)
    bench.step(after_ns=5)
    sent = [tickets(batch.rows) for batch in bench.in_flight(worker)]
    assert sent == [[(1, 0), (1, 2)], [(1, 3), (1, 5)]]
    assert tickets(bench.models[0].queue.view()) == [(1, 6)]
    assert bench.answers(1) == [DeadlineExceeded] * 2
    states = bench.clients[1].lane.state[:7].tolist()
    runs, waits, free = SlotState.RUNNING, SlotState.QUEUED, SlotState.FREE
    assert states == [runs, free, runs, runs, free, runs, waits]


def test_suspects_that_are_late_end_without_a_worker() -> None:
    bench = Bench()
    bench.add_lane(1)
    worker = bench.add_worker(9)
    for deadline_ns in (NOW + 5, LATER):
        bench.send(1, 1, deadline_ns)
    bench.step()
    (batch,) = worker.batches.values()
    bench.run(worker, batch, BatchOutcome.FAILED)
    worker.worker_segment.ready.set(0)
    assert bench.step() == NOW + 5
    assert bench.step(after_ns=4) == NOW + 5
    assert bench.answers(1) == []
    assert bench.step(after_ns=1) == LATER
    assert bench.answers(1) == [DeadlineExceeded]
    assert bench.models[0].metrics.queued == 1


def test_a_suspect_that_is_cancelled_ends_without_a_run() -> None:
    bench = Bench()
    client = bench.add_lane(1)
    worker = bench.add_worker(9)
    kept, gone = bench.send(1, 2)
    bench.step()
    (batch,) = worker.batches.values()
    bench.run(worker, batch, BatchOutcome.FAILED)
    worker.worker_segment.ready.set(0)
    bench.step()
    client.abandon(gone)
    bench.step()
    assert bench.models[0].metrics.ended(End.CANCELLED) == 1
    assert tickets(bench.models[0].suspects.peek()) == [(1, kept.slots[0])]
    assert len(bench.models[0].suspects) == 1


def test_a_row_that_was_cancelled_while_it_ran_is_not_run_again() -> None:
    bench = Bench()
    client = bench.add_lane(1)
    bench.add_worker(5)
    kept, gone = bench.send(1, 2)
    bench.step()
    client.abandon(gone)
    bench.step()
    bench.batcher.lose_worker(5)
    bench.step()
    assert tickets(bench.models[0].queue.view()) == [(1, kept.slots[0])]
    assert bench.models[0].metrics.ended(End.CANCELLED) == 1


def test_cancelled_rows_of_one_lane_take_none_of_another_with_them() -> None:
    bench = Bench()
    for lane in (1, 4):
        bench.add_lane(lane)
    gone = bench.send(1, 1)
    bench.send(4, 1)
    bench.step()
    bench.clients[4].lane.cancel[:] = 1  # no count says that there is one
    bench.clients[1].abandon(gone[0])
    bench.step()
    assert tickets(bench.models[0].queue.view()) == [(4, 0)]


# -- what comes in ------------------------------------------------------------------------------


def test_a_local_client_gains_nothing_by_an_early_time() -> None:
    bench = Bench()
    client = new_lane_client(4)
    lane = AdmittedLane(2, 3, 0, other_side(client.lane), lambda: None)
    bench.batcher.add_lane(lane)
    client.submit(rows_of(1), NOW - 50 * S, LATER)
    client.flush()
    bench.step()
    assert bench.models[0].queue.view()[QueueColumn.SUBMIT_NS].tolist() == [NOW - S]


def test_what_is_queued_is_shown_and_none_of_it_once_it_is_gone() -> None:
    bench = Bench()
    client = bench.add_lane(1)
    sent = bench.send(1, 3)
    bench.step()
    assert bench.models[0].metrics.queued == 3
    for pending in sent:
        client.abandon(pending)
    bench.step()
    assert bench.models[0].metrics.queued == 0
    assert (bench.models[0].metrics.admitted, bench.models[0].metrics.cancelled) == (3, 3)
    assert [client.failure(pending).__class__ for pending in sent] == [Cancelled] * 3


def test_nothing_is_taken_from_a_lane_that_closes_or_is_broken() -> None:
    bench = Bench()
    for lane in (1, 4):
        bench.add_lane(lane)
    bench.send(1, 1)
    bench.send(4, 1)
    bench.batcher.lanes.by_number[1].closing = True
    bench.batcher.lanes.by_number[4].broken = True
    bench.step()
    assert tickets(bench.models[0].queue.view()) == []
    assert [bench.clients[lane].lane.state[0] for lane in (1, 4)] == [SlotState.SUBMITTED] * 2


def test_arrivals_and_ends_of_batches_are_learnt_from() -> None:
    bench = Bench()
    bench.add_lane(1)
    worker = bench.add_worker(5)
    known = worker.service_time.batches
    bench.send(1, 2)
    bench.step(after_ns=7 * MS)
    assert bench.models[0].traffic.last_ns == NOW + 7 * MS
    (batch,) = worker.batches.values()
    bench.run(worker, batch)
    bench.step(after_ns=3 * MS)
    assert worker.service_time.batches == known + 1
    assert worker.worker_segment.cq_consumer().pending() == 0, "the entry is taken"


def test_a_batch_that_a_worker_finished_before_it_died_is_completed() -> None:
    bench, worker, batch = bench_with_a_batch()
    bench.run(worker, batch, told=False)
    bench.batcher.lose_worker(5, "was killed")
    assert bench.answers(1) == [None, None]
    assert bench.counts("batches_finished_total", "outcome") == {"ok": 1}


# -- when -----------------------------------------------------------------------------------


def test_the_next_step_is_due_when_the_first_of_the_models_needs_it() -> None:
    bench = Bench(SLOW, replace(SLOW, max_wait_ns=30 * MS))
    for model in (0, 1):
        bench.add_lane(model + 1, model)
        bench.add_worker(model + 5, model)
    assert bench.step() == NEVER_NS
    bench.send(2, 1)
    assert bench.step() == NOW + 30 * MS
    bench.send(1, 1)
    assert bench.step() == NOW + 10 * MS
    assert bench.step(after_ns=10 * MS) == NOW + 30 * MS


@pytest.mark.parametrize("late", ["suspect", "queued"])
def test_the_next_step_is_due_at_the_first_deadline_of_suspects_and_queue(late: str) -> None:
    bench = Bench()
    bench.add_lane(1)
    worker = bench.add_worker(9)
    bench.send(1, 2, NOW + (5 if late == "suspect" else 50))
    bench.step()
    (batch,) = worker.batches.values()
    bench.run(worker, batch, BatchOutcome.FAILED)
    worker.worker_segment.ready.set(0)
    bench.send(1, 1, NOW + (50 if late == "suspect" else 5))
    assert bench.step() == NOW + 5


# -- drains, limits, ends -----------------------------------------------------------------------


def test_while_the_pool_drains_rows_of_all_models_wait_for_no_others() -> None:
    bench = Bench(SLOW, SLOW)
    workers = []
    for model in (0, 1):
        bench.add_lane(model + 1, model)
        workers.append(bench.add_worker(model + 5, model))
        bench.send(model + 1, 1)
    bench.step()
    assert [worker.in_flight for worker in workers] == [0, 0]
    bench.batcher.set_draining(True)
    assert [bench.gate(lane) for lane in (1, 2)] == [LaneGate.DRAINING] * 2
    bench.step()
    assert [worker.in_flight for worker in workers] == [1, 1]
    bench.add_lane(4)
    assert bench.gate(4) is LaneGate.DRAINING
    bench.batcher.set_limits(0, Limits(8, 0))
    assert bench.models[0].limits.draining
    bench.batcher.set_draining(False)
    assert [model.limits.draining for model in bench.models] == [False, False]


def test_a_batcher_is_empty_without_queued_suspect_and_running_rows() -> None:
    bench = Bench(Limits(2, 0), Limits(2, 0))
    bench.add_lane(1)
    assert bench.batcher.is_empty()
    worker = bench.add_worker(5, ready=False)
    bench.send(1, 2)
    bench.step()
    assert not bench.batcher.is_empty(), "queued"
    worker.worker_segment.ready.set(1)
    bench.step()
    assert not len(bench.models[0].queue)
    assert not bench.batcher.is_empty(), "running"
    (batch,) = worker.batches.values()
    bench.run(worker, batch, BatchOutcome.FAILED)
    worker.worker_segment.ready.set(0)
    bench.step()
    assert not worker.in_flight
    assert not bench.batcher.is_empty(), "suspect"
    bench.batcher.close_lane(1)
    assert bench.batcher.is_empty()


def test_the_times_of_batches_are_forgotten_where_the_sizes_change() -> None:
    bench = Bench(Limits(8, 0), Limits(8, 0))
    own, other = bench.add_worker(5), bench.add_worker(6, model=1)
    bench.batcher.set_limits(0, Limits(4, MS))
    assert own.service_time.known
    assert bench.models[0].limits == Limits(4, MS)
    bench.batcher.set_limits(0, Limits(8, 0, sizes=(1, 8)))
    assert (own.service_time.known, other.service_time.known) == (False, True)


@pytest.mark.parametrize("end", ["closed", "evicted"])
def test_the_rows_of_a_lane_that_ends_are_taken_from_queue_and_suspects(end: str) -> None:
    bench = Bench()
    for lane in (1, 4):
        bench.add_lane(lane)
    with_suspects(bench, 2)
    bench.send(1, 3)
    bench.send(4, 1)
    bench.step()
    if end == "closed":
        bench.batcher.close_lane(1)
    else:
        bench.batcher.evict_lane(1)
    reason = "client_gone" if end == "closed" else "not_ready"
    assert bench.counts("rows_ended_total", "reason") == {reason: 5}
    assert bench.closed == [1]
    assert not bench.models[0].suspects
    assert tickets(bench.models[0].queue.view()) == [(4, 0)]
    assert bench.gate(1) is (LaneGate.OPEN if end == "closed" else LaneGate.GONE)
