"""A new batcher finds in the lanes and the workers' records what the former one left there."""

from __future__ import annotations

import pytest

from batchpool.batcher.metrics import End
from batchpool.core.errors import NotReady
from batchpool.core.layout.states import BatchOutcome, DispatchReason, SlotState
from batchpool.core.scheduler.decide import Limits
from batchpool.core.scheduler.queue import QueueColumn
from tests.unit.batcher.batcher_bench import Bench, bench_with_a_batch, tickets
from tests.unit.client.lane_clients import MS


def waiting(bench: Bench) -> list[tuple[int, int]]:
    return tickets(bench.models[0].queue.view())


def test_all_clients_look_again_and_all_workers_are_rung() -> None:
    bench = Bench()
    before = [bench.add_lane(number).lane.generation.get() for number in (1, 4)]
    for number in (5, 6):
        bench.add_worker(number)
    bench.take_over()
    assert bench.rung == ["lane 1", "lane 4", "worker 5", "worker 6"]
    after = [bench.clients[number].lane.generation.get() for number in (1, 4)]
    assert after == [generation + 1 for generation in before]


def test_rows_that_waited_wait_in_the_order_in_which_they_were_submitted() -> None:
    bench = Bench()
    for lane in (1, 4):
        bench.add_lane(lane)
    for lane in (4, 1, 4):
        bench.send(lane, 1)
        bench.step(after_ns=MS)
    assert waiting(bench) == [(4, 0), (1, 0), (4, 1)]
    bench.take_over()
    assert waiting(bench) == [(4, 0), (1, 0), (4, 1)]
    assert not bench.models[0].suspects


def test_rows_wait_in_the_queue_of_their_model() -> None:
    bench = Bench(Limits(2, 0), Limits(2, 0))
    for model, lane in enumerate((1, 4)):
        bench.add_lane(lane, model)
        bench.send(lane, 1)
    bench.step()
    bench.take_over()
    assert [tickets(model.queue.view()) for model in bench.models] == [[(1, 0)], [(4, 0)]]


def test_rows_of_a_failed_batch_run_apart_each_alone() -> None:
    bench = Bench(Limits(16, 0))
    bench.add_lane(1)
    worker = bench.add_worker(5)
    bench.send(1, 16)
    bench.step()
    (batch,) = worker.batches.values()
    bench.run(worker, batch, BatchOutcome.FAILED)
    worker.worker_segment.ready.set(0)
    bench.send(1, 2)
    bench.step()
    bench.take_over()
    assert waiting(bench) == [(1, 16), (1, 17)], "these never failed"
    suspects = bench.models[0].suspects
    groups = [suspects.take_next() for _ in range(16)]
    assert [tickets(group) for group in groups] == [[(1, slot)] for slot in range(16)]
    assert [group[QueueColumn.ATTEMPT].tolist() for group in groups] == [[1]] * 16
    assert not suspects


def test_a_batch_that_runs_is_waited_for_and_completed() -> None:
    bench, worker, batch = bench_with_a_batch()
    bench.launch(worker, batch)
    bench.take_over()
    worker = bench.batcher.workers.by_number[5]
    (again,) = worker.batches.values()
    assert tickets(again.rows) == [(1, 0), (1, 1)]
    assert (again.record, again.token, again.size) == (batch.record, batch.token, 2)
    assert (again.apart, again.reason, again.sent_ns) == (False, int(DispatchReason.FULL), 0)
    assert not worker.runs_apart()
    assert bench.clients[1].lane.state[:2].tolist() == [SlotState.RUNNING] * 2
    bench.batcher.close_lane(1)
    assert bench.closed == [], "rows of it run"
    bench.run(worker, again)
    bench.step()
    assert (bench.closed, worker.in_flight) == ([1], 0)
    assert bench.models[0].metrics.ended(End.OK) == 2


def test_a_batch_that_stands_in_the_ring_is_not_run_twice() -> None:
    bench = Bench()
    bench.add_lane(1)
    bench.add_worker(5)
    bench.send(1, 2)
    bench.step()
    bench.take_over()
    worker = bench.batcher.workers.by_number[5]
    assert waiting(bench) == []
    assert worker.worker_segment.sq_consumer().pending() == 1
    bench.step()
    assert worker.worker_segment.sq_consumer().pending() == 1


def test_a_batch_of_suspects_still_runs_apart() -> None:
    bench, worker, batch = bench_with_a_batch()
    bench.run(worker, batch, BatchOutcome.FAILED)
    bench.step()
    assert worker.runs_apart()
    bench.take_over()
    worker = bench.batcher.workers.by_number[5]
    assert worker.runs_apart()
    bench.send(1, 2)
    bench.step()
    assert worker.in_flight == 1, "neither the other suspect nor the new rows"


def test_the_numbers_of_batches_go_on_after_those_of_the_former_batcher() -> None:
    """Rows that come back are ordered by the number of their batch."""
    bench = Bench()
    bench.add_lane(1)
    worker = bench.add_worker(5)
    for _ in range(3):
        bench.send(1, 2)
        bench.step()
        (batch,) = worker.batches.values()
        if batch.token < 3:
            bench.run(worker, batch)
            bench.step()
    bench.take_over()
    assert bench.batcher.dispatched == 3
    bench.send(1, 2)
    bench.step()
    worker = bench.batcher.workers.by_number[5]
    assert [(b.token, b.number) for b in bench.in_flight(worker)] == [(3, 3), (4, 4)]


def test_a_batch_that_was_not_pushed_is_queued_again() -> None:
    """The former batcher died between the record and the ring entry."""
    bench = Bench()
    client = bench.add_lane(1)
    worker = bench.add_worker(5, ready=False)
    bench.send(1, 2)
    bench.step()
    rows = bench.models[0].queue.view().copy()
    batch = worker.prepare(rows, DispatchReason.FULL, bench.now_ns, 1)
    client.lane.state[rows[QueueColumn.SLOT]] = SlotState.RUNNING
    bench.take_over()
    assert waiting(bench) == [(1, 0), (1, 1)]
    assert client.lane.state[:2].tolist() == [SlotState.QUEUED] * 2
    assert bench.batcher.workers.by_number[5].in_flight == 0
    assert worker.worker_segment.freed[batch.record] == batch.token, "nobody takes it over again"


@pytest.mark.parametrize("told", [True, False])
def test_a_batch_that_was_finished_meanwhile_is_completed_and_counted_once(told: bool) -> None:
    bench, worker, batch = bench_with_a_batch()
    bench.run(worker, batch, told=told)
    bench.take_over()
    for _ in range(2):
        assert bench.batcher.workers.by_number[5].in_flight == 0
        assert bench.models[0].metrics.ended(End.OK) == 2
        assert [found.outcome for found in bench.recorder.last()] == [BatchOutcome.OK]
        bench.step()
    assert bench.answers(1) == [None, None]


def test_a_batch_that_the_former_batcher_counted_is_not_counted_again() -> None:
    """It died after it had recorded the batch, and before its rows were published."""
    bench, worker, batch = bench_with_a_batch()
    bench.run(worker, batch)
    words = dict.fromkeys(
        ("model", "worker_slot", "rows", "size", "reason", "attempt", "outcome", "extents",
         "queued_ns", "dispatched_ns", "launched_ns", "finished_ns", "completed_ns"), 0,
    )  # fmt: skip
    bench.recorder.write(process=5, token=batch.token, **words)
    bench.take_over()
    assert bench.answers(1) == [None, None]
    assert bench.models[0].metrics.ended(End.OK) == 0
    assert len(bench.recorder.last()) == 1


def test_rows_that_were_completed_already_are_left_alone() -> None:
    """Its client may have taken the slot for another row since."""
    bench = Bench()
    client = bench.add_lane(1)
    worker = bench.add_worker(5)
    bench.send(1, 2)
    bench.step()
    (batch,) = worker.batches.values()
    bench.launch(worker, batch)
    client.lane.state[0] = SlotState.DONE
    client.lane.sequence[1] += 1
    bench.take_over()
    worker = bench.batcher.workers.by_number[5]
    (again,) = worker.batches.values()
    assert (tickets(again.rows), again.size) == ([], 2)
    bench.run(worker, again)
    bench.step()
    assert client.lane.state[:2].tolist() == [SlotState.DONE, SlotState.RUNNING]
    assert bench.models[0].metrics.ended(End.OK) == 0


def test_a_record_of_a_lane_that_is_gone_is_freed() -> None:
    bench = Bench()
    for number in (1, 4):
        bench.add_lane(number)
    worker = bench.add_worker(5)
    bench.send(1, 1)
    bench.send(4, 1)
    bench.step()
    (batch,) = worker.batches.values()
    bench.launch(worker, batch)
    del bench.batcher.lanes.by_number[1]
    bench.take_over()
    worker = bench.batcher.workers.by_number[5]
    (again,) = worker.batches.values()
    assert tickets(again.rows) == [(4, 0)]
    bench.run(worker, again)
    bench.step()
    assert bench.answers(4) == [None]
    assert worker.worker_segment.freed[batch.record] == batch.token


def test_rows_of_a_batch_whose_worker_is_lost_meanwhile_are_suspects() -> None:
    bench, worker, batch = bench_with_a_batch()
    bench.launch(worker, batch)
    bench.take_over()
    bench.batcher.lose_worker(5, "was killed")
    assert waiting(bench) == []
    suspects = bench.models[0].suspects
    assert [tickets(suspects.take_next()) for _ in range(2)] == [[(1, 0)], [(1, 1)]]
    assert bench.counts("rows_retried_total", "reason") == {"worker_lost": 2}


def test_a_lane_that_is_evicted_after_a_takeover_ends_its_rows() -> None:
    bench = Bench()
    bench.add_lane(1)
    bench.send(1, 3)
    bench.step()
    bench.take_over()
    bench.batcher.evict_lane(1)
    assert bench.answers(1) == [NotReady] * 3
    assert bench.closed == [1]
