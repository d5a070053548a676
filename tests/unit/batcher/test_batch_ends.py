"""The end of a batch: what is counted and recorded, what its callers get, what runs again."""

from __future__ import annotations

import pytest

from batchpool.batcher.metrics import End
from batchpool.core.errors import DeadlineExceeded, ModelError, NotReady, Status, WorkerLost
from batchpool.core.layout.states import BatchOutcome, DispatchReason, LaneGate, SlotState
from batchpool.core.scheduler.decide import Limits
from batchpool.core.scheduler.queue import QueueColumn
from batchpool.shm.stats.flight_recorder import LOST, RecordedBatch
from tests.unit.batcher.batcher_bench import Bench, tickets
from tests.unit.client.lane_clients import MS, NOW

EVERY_ROW_APART = Limits(16, 0)


def sent(bench: Bench, n: int = 2) -> None:
    """n rows of lane 1 run at worker 5 since NOW + 2 ms; the first was submitted at NOW."""
    bench.add_lane(1)
    worker = bench.add_worker(5, ready=False)
    for _ in range(n):
        bench.send(1, 1)
        bench.step(after_ns=0 if bench.now_ns > NOW else 2 * MS)
    worker.worker_segment.ready.set(1)
    bench.step()
    assert worker.in_flight == 1


def record(bench: Bench) -> RecordedBatch:
    (found,) = bench.recorder.last()
    return found


# -- the flight recorder and the counters ---------------------------------------------------------


def test_a_finished_batch_is_recorded_with_its_times() -> None:
    bench = Bench(Limits(8, 0, sizes=(1, 4, 8)))
    sent(bench, 3)
    worker = bench.batcher.workers.by_number[5]
    (batch,) = worker.batches.values()
    bench.now_ns += 10 * MS
    bench.run(worker, batch)
    worker.worker_segment.start_ns[0] = NOW + 5 * MS
    bench.step(after_ns=MS)
    assert record(bench) == RecordedBatch(
        serial=1, model=0, worker_slot=6, process=5, token=1, rows=3, size=4,
        reason=int(DispatchReason.IDLE), attempt=0, outcome=int(BatchOutcome.OK), extents=3,
        queued_ns=2 * MS, dispatched_ns=NOW + 2 * MS, launched_ns=NOW + 5 * MS,
        finished_ns=NOW + 12 * MS, completed_ns=NOW + 13 * MS,
    )  # fmt: skip
    totals = bench.totals()
    assert totals.histogram("batch_seconds").total == pytest.approx(0.011)
    assert totals.histogram("batch_seconds").count == 1
    assert totals.value("batch_extents_total") == 3
    assert bench.counts("batches_finished_total", "outcome") == {"ok": 1}
    assert bench.counts("rows_ended_total", "reason") == {"ok": 3}


def test_a_batch_is_not_completed_before_its_worker_finished_it() -> None:
    """The clocks of two processors may differ by a little."""
    bench = Bench()
    sent(bench)
    worker = bench.batcher.workers.by_number[5]
    (batch,) = worker.batches.values()
    bench.run(worker, batch)
    worker.worker_segment.end_ns[0] = bench.now_ns + 100
    bench.step()
    assert record(bench).completed_ns == bench.now_ns + 100


@pytest.mark.parametrize("launched", [True, False])
def test_a_lost_batch_is_recorded_as_lost(launched: bool) -> None:
    bench = Bench()
    sent(bench)
    worker = bench.batcher.workers.by_number[5]
    (batch,) = worker.batches.values()
    worker.worker_segment.end_ns[0] = 77  # of the use of the record before
    worker.worker_segment.start_ns[0] = 66
    worker.worker_segment.extents[0] = 9
    if launched:
        bench.launch(worker, batch)
    bench.batcher.lose_worker(5, "was killed")
    found = record(bench)
    assert (found.outcome, found.finished_ns, found.extents) == (LOST, 0, 0)
    assert found.launched_ns == (NOW + 2 * MS if launched else 0)
    assert found.completed_ns == NOW + 2 * MS
    assert bench.counts("batches_finished_total", "outcome") == {"lost": 1}
    assert bench.totals().histogram("batch_seconds").count == 0
    assert bench.counts("rows_retried_total", "reason") == {
        "worker_lost" if launched else "not_started": 2
    }


def test_rows_that_the_worker_ended_are_counted_as_what_they_ended_as() -> None:
    bench = Bench(Limits(8, 0))
    sent(bench, 7)
    worker = bench.batcher.workers.by_number[5]
    (batch,) = worker.batches.values()
    segment = worker.worker_segment
    segment.refused_of[0], segment.expired_of[0], segment.cancelled_of[0] = 1, 2, 3
    bench.run(worker, batch)
    bench.step()
    assert bench.counts("rows_ended_total", "reason") == {
        "ok": 1, "invalid_input": 1, "deadline_exceeded": 2, "cancelled": 3,
    }  # fmt: skip


def test_after_a_takeover_no_more_rows_end_than_are_left() -> None:
    """The worker counted those too that the former batcher has completed."""
    bench = Bench(Limits(8, 0))
    sent(bench, 4)
    worker = bench.batcher.workers.by_number[5]
    (batch,) = worker.batches.values()
    segment = worker.worker_segment
    segment.refused_of[0], segment.expired_of[0], segment.cancelled_of[0] = 2, 1, 1
    bench.run(worker, batch)
    bench.clients[1].lane.state[0] = SlotState.DONE
    bench.take_over()
    assert bench.counts("rows_ended_total", "reason") == {
        "invalid_input": 2, "deadline_exceeded": 1,
    }  # fmt: skip


def test_rows_that_a_failed_batch_had_ended_before_are_no_errors_of_the_model() -> None:
    bench = Bench(Limits(8, 0), idempotent=False)
    sent(bench, 4)
    worker = bench.batcher.workers.by_number[5]
    (batch,) = worker.batches.values()
    worker.worker_segment.expired_of[0] = 1
    bench.run(worker, batch, BatchOutcome.FAILED)
    bench.step()
    assert bench.counts("rows_ended_total", "reason") == {
        "model_error": 3, "deadline_exceeded": 1,
    }  # fmt: skip


# -- errors -----------------------------------------------------------------------------------


def test_an_error_of_the_model_is_handed_back_and_noted() -> None:
    bench = Bench(idempotent=False)
    sent(bench)
    worker = bench.batcher.workers.by_number[5]
    (batch,) = worker.batches.values()
    bench.run(worker, batch, BatchOutcome.FAILED)
    bench.step(after_ns=MS)
    assert bench.answers(1) == [ModelError, ModelError]
    (noted,) = bench.recorder.recent_errors.last()
    assert (noted.model, noted.worker_slot, noted.status) == (0, 6, Status.MODEL_ERROR)
    assert (noted.text, noted.at_ns) == ("raised", bench.now_ns)
    bench.batcher.close_lane(1)
    assert bench.closed == [1], "none of its rows runs any more"


@pytest.mark.parametrize("cause", ["was killed by SIGKILL", ""])
def test_rows_that_may_not_run_again_are_lost_with_their_worker(cause: str) -> None:
    bench = Bench(idempotent=False)
    sent(bench)
    worker = bench.batcher.workers.by_number[5]
    (batch,) = worker.batches.values()
    bench.launch(worker, batch)
    bench.step(after_ns=MS)
    bench.batcher.lose_worker(5, cause)
    lane = bench.clients[1].lane
    text = f"the worker was lost with this row on every attempt; at last it {cause}"
    assert [lane.read_message(slot) for slot in (0, 1)] == [text if cause else ""] * 2
    assert lane.read_origin(0) == (1, 5, 1005), "token, place and pid"
    assert bench.answers(1) == [WorkerLost, WorkerLost]
    (noted,) = bench.recorder.recent_errors.last()
    assert (noted.status, noted.worker_slot, noted.text) == (Status.WORKER_LOST, 6, text)
    assert noted.at_ns == bench.now_ns
    assert bench.counts("rows_ended_total", "reason") == {"worker_lost": 2}


def test_what_runs_again_is_no_error() -> None:
    bench = Bench()
    sent(bench)
    worker = bench.batcher.workers.by_number[5]
    (batch,) = worker.batches.values()
    bench.launch(worker, batch)
    bench.batcher.lose_worker(5, "was killed")
    assert bench.recorder.recent_errors.last() == []
    assert bench.answers(1) == []
    assert bench.clients[1].lane.attempt[:2].tolist() == [1, 1], "a later batcher knows"
    assert bench.clients[1].lane.state[:2].tolist() == [SlotState.QUEUED] * 2


def test_rows_of_several_lanes_that_end_together_end_each_in_its_own() -> None:
    bench = Bench()
    for lane in (1, 4):
        bench.add_lane(lane)
    for lane in (4, 1, 4):
        bench.send(lane, 1, NOW + 10 * MS)
        bench.step(after_ns=MS)
    bench.step(after_ns=10 * MS)
    assert bench.answers(1) == [DeadlineExceeded]
    assert bench.answers(4) == [DeadlineExceeded] * 2
    assert bench.counts("rows_ended_total", "reason") == {"deadline_exceeded": 3}


# -- clients that are gone ------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [BatchOutcome.FAILED, BatchOutcome.NO_MEMORY, None])
def test_rows_of_a_client_that_is_gone_do_not_run_again(outcome: BatchOutcome | None) -> None:
    """outcome: None where the worker died before it began."""
    bench = Bench(Limits(3, 0))
    for lane in (1, 4):
        bench.add_lane(lane)
    worker = bench.add_worker(5)
    bench.send(1, 2)
    bench.send(4, 1)
    bench.step()
    (batch,) = worker.batches.values()
    worker.worker_segment.ready.set(0)
    bench.batcher.close_lane(1)
    assert bench.closed == []
    if outcome is None:
        bench.batcher.lose_worker(5)
    else:
        bench.run(worker, batch, outcome)
        bench.step()
    assert bench.closed == [1]
    assert bench.counts("rows_ended_total", "reason") == {"client_gone": 2}
    assert sum(bench.counts("rows_retried_total", "reason").values()) == 1
    model = bench.models[0]
    waits = model.suspects.peek() if model.suspects else model.queue.view()
    assert tickets(waits) == [(4, 0)]
    bench.batcher.close_lane(4)
    assert bench.closed == [1, 4], "nothing of it runs"


@pytest.mark.parametrize("launched", [True, False])
def test_rows_of_an_evicted_lane_end_with_their_batch(launched: bool) -> None:
    bench = Bench(Limits(3, 0))
    for lane in (1, 4):
        bench.add_lane(lane)
    worker = bench.add_worker(5)
    bench.send(1, 2)
    bench.send(4, 1)
    bench.step()
    (batch,) = worker.batches.values()
    bench.batcher.evict_lane(1)
    if launched:
        bench.launch(worker, batch)
    bench.batcher.lose_worker(5)
    assert bench.counts("rows_ended_total", "reason") == {"not_ready": 2}
    assert bench.clients[1].lane.state[:2].tolist() == [SlotState.DONE] * 2
    assert bench.answers(1) == [NotReady] * 2
    assert (bench.closed, bench.gate(1)) == ([1], LaneGate.GONE)
    assert bench.clients[4].lane.state[0] == SlotState.QUEUED


def test_a_row_did_not_fail_alone_because_the_others_are_gone() -> None:
    bench = Bench(Limits(2, 0), attempts=1)
    for lane in (1, 4):
        bench.add_lane(lane)
    worker = bench.add_worker(5)
    bench.send(1, 1)
    bench.send(4, 1)
    bench.step()
    (batch,) = worker.batches.values()
    bench.batcher.close_lane(1)
    bench.run(worker, batch, BatchOutcome.FAILED)
    bench.step()
    (alone,) = worker.batches.values()
    assert (tickets(alone.rows), alone.apart) == ([(4, 0)], True)
    assert bench.answers(4) == []


# -- too large for the device's memory ------------------------------------------------------


def test_a_batch_that_is_too_large_lowers_the_limit_and_its_rows_run_again() -> None:
    bench = Bench(Limits(16, 0))
    sent(bench, 6)
    worker = bench.batcher.workers.by_number[5]
    (batch,) = worker.batches.values()
    bench.run(worker, batch, BatchOutcome.NO_MEMORY)
    worker.worker_segment.ready.set(0)
    bench.step()
    model = bench.models[0]
    assert model.limits.max_batch == 3
    assert bench.totals().value("batch_rows_limit") == 3
    assert tickets(model.queue.view()) == [(1, slot) for slot in range(6)]
    assert not model.suspects
    assert bench.counts("rows_retried_total", "reason") == {"no_memory": 6}
    assert worker.in_flight == 0
    worker.worker_segment.ready.set(1)
    bench.step()
    assert [found.size for found in bench.in_flight(worker)] == [3, 3]


def test_a_larger_batch_that_was_under_way_does_not_raise_the_limit_again() -> None:
    bench = Bench(Limits(8, 0))
    bench.add_lane(1)
    worker = bench.add_worker(5)
    bench.send(1, 16)
    bench.step()
    first, second = bench.in_flight(worker)
    bench.models[0].limits = Limits(2, 0)
    worker.worker_segment.ready.set(0)
    for batch in (first, second):
        bench.run(worker, batch, BatchOutcome.NO_MEMORY)
    bench.step()
    assert bench.models[0].limits.max_batch == 2


def test_a_row_alone_that_is_too_large_is_an_error_of_the_model() -> None:
    bench = Bench(attempts=1)
    sent(bench, 1)
    worker = bench.batcher.workers.by_number[5]
    (batch,) = worker.batches.values()
    bench.run(worker, batch, BatchOutcome.NO_MEMORY)
    bench.step()
    assert bench.answers(1) == [ModelError]
    assert bench.models[0].limits.max_batch == 2


def apart_in_pairs(bench: Bench) -> None:
    """Sixteen rows of lane 1 failed together at worker 5; two of them run apart."""
    sent(bench, 16)
    worker = bench.batcher.workers.by_number[5]
    (batch,) = worker.batches.values()
    bench.run(worker, batch, BatchOutcome.FAILED)
    bench.step()
    (pair,) = worker.batches.values()
    assert (pair.apart, pair.size, pair.attempt) == (True, 2, 1)


def test_suspects_that_their_worker_never_launched_stay_apart_and_are_the_next() -> None:
    bench = Bench(EVERY_ROW_APART)
    apart_in_pairs(bench)
    (pair,) = bench.in_flight(bench.batcher.workers.by_number[5])
    bench.batcher.lose_worker(5)
    suspects = bench.models[0].suspects
    assert not len(bench.models[0].queue)
    assert (len(suspects), tickets(suspects.peek())) == (16, tickets(pair.rows))
    assert bench.counts("rows_retried_total", "reason")["not_started"] == 2
    bench.add_worker(6)
    bench.step()
    (again,) = bench.in_flight(bench.batcher.workers.by_number[6])
    assert (again.apart, tickets(again.rows), again.attempt) == (True, tickets(pair.rows), 1)


def test_suspects_that_are_too_many_together_run_in_smaller_groups() -> None:
    bench = Bench(EVERY_ROW_APART)
    apart_in_pairs(bench)
    worker = bench.batcher.workers.by_number[5]
    (pair,) = worker.batches.values()
    bench.run(worker, pair, BatchOutcome.NO_MEMORY)
    worker.worker_segment.ready.set(0)
    bench.step()
    suspects = bench.models[0].suspects
    sizes = [suspects.take_next().shape[1] for _ in range(9)]
    assert sizes == [2] * 7 + [1, 1]
    assert not suspects
    assert not len(bench.models[0].queue)


def test_suspects_that_were_too_many_and_whose_client_is_gone_are_dropped() -> None:
    bench = Bench(EVERY_ROW_APART)
    apart_in_pairs(bench)
    worker = bench.batcher.workers.by_number[5]
    (pair,) = worker.batches.values()
    bench.batcher.close_lane(1)
    bench.run(worker, pair, BatchOutcome.NO_MEMORY)
    bench.step()
    assert bench.closed == [1]
    assert bench.models[0].metrics.ended(End.CLIENT_GONE) == 16
    assert bench.batcher.is_empty()


def test_the_attempts_of_a_row_are_in_its_batchs_record() -> None:
    bench = Bench(EVERY_ROW_APART)
    apart_in_pairs(bench)
    worker = bench.batcher.workers.by_number[5]
    (pair,) = worker.batches.values()
    assert worker.worker_segment.attempt[pair.record] == 1
    assert pair.rows[QueueColumn.ATTEMPT].tolist() == [1, 1]
    assert [found.attempt for found in bench.recorder.last()] == [0]
    bench.run(worker, pair)
    bench.step()
    assert [found.attempt for found in bench.recorder.last()] == [0, 1]
