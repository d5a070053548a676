"""A generator's rows end, come back, and are suspected together."""

from __future__ import annotations

import pytest

from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.core.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidInput,
    ModelError,
    NotReady,
    Status,
    WorkerLost,
)
from batchpool.core.layout.states import BatchOutcome, SlotState
from batchpool.core.scheduler.queue import QueueColumn
from batchpool.shm.stats.flight_recorder import LOST
from tests.unit.batcher.sequence_bench import MS, SequenceBench
from tests.unit.generator_worker import FakeGeneratorWorker, RunningSequence, token_of

Busy = tuple[SequenceBench, FakeGeneratorWorker, list[RunningSequence]]


def bench_with(n: int, **options: int) -> Busy:
    """Rows 1 to n run in worker 5 and have a token each."""
    bench = SequenceBench(8, **options)
    worker = bench.add_worker(5)
    running = bench.run(5, *range(1, n + 1))
    for sequence in running:
        worker.make(sequence)
    return bench, worker, running


def suspects(bench: SequenceBench) -> list[list[int]]:
    """The groups that wait, by first prompt numbers; takes them out."""
    groups = []
    while bench.model.suspects:
        groups.append(bench.firsts(bench.model.suspects.take_next()))
    return groups


@pytest.mark.parametrize(
    ("status", "error", "reason"),
    [
        (Status.CANCELLED, Cancelled, "cancelled"),
        (Status.DEADLINE, DeadlineExceeded, "deadline_exceeded"),
        (Status.INVALID_INPUT, InvalidInput, "invalid_input"),
        (Status.MODEL_ERROR, ModelError, "model_error"),
    ],
)
def test_a_sequence_ends_with_the_status_of_its_worker(
    status: Status, error: type[Exception], reason: str
) -> None:
    bench, worker, (first, second) = bench_with(2)
    worker.end(first, status=status)
    worker.end(second)
    bench.step()
    assert bench.answers() == {1: error, 2: [token_of(2, 0)]}
    assert bench.counts("rows_ended_total", "reason") == {reason: 1, "ok": 1}
    lane = bench.clients[1].lane
    assert lane.memory.array(lane.layout.columns["size.out"])[first.slot, 0] == 1, "still readable"


def test_each_sequence_that_ends_is_recorded() -> None:
    bench, worker, running = bench_with(2)
    worker.end(*running)
    bench.step()
    assert [(each.rows, each.outcome) for each in bench.recorder.last()] == [(1, 1), (1, 1)]


def test_the_launched_sequences_of_a_dead_worker_are_one_failed_batch() -> None:
    bench, _, running = bench_with(3)
    bench.send(4, 5)
    bench.step()  # dispatched, but the worker does not take them
    bench.lose_worker(5)
    assert bench.waiting() == [4, 5]
    state = bench.clients[1].lane.state
    assert state[:5].tolist() == [SlotState.QUEUED] * 5
    assert bench.clients[1].lane.attempt[:5].tolist() == [1, 1, 1, 0, 0]
    assert suspects(bench) == [[1], [2], [3]]
    assert [(each.rows, each.outcome) for each in bench.recorder.last()] == [(3, LOST), (2, LOST)]
    assert bench.counts("batches_finished_total", "outcome") == {"lost": 5}
    assert bench.counts("rows_retried_total", "reason") == {"worker_lost": 3, "not_started": 2}
    assert [sequence.length for sequence in running] == [1, 1, 1]


def test_a_row_goes_on_where_it_was() -> None:
    bench, _, _ = bench_with(1)
    bench.lose_worker(5)
    other = bench.add_worker(6)
    bench.step()
    (again,) = bench.join(6)
    assert again.length == 1
    other.make(again, 2)
    other.end(again)
    bench.step()
    assert bench.answers() == {1: [token_of(1, index) for index in range(3)]}


def test_a_row_that_was_lost_alone_for_the_last_time_gets_the_error() -> None:
    bench, _, _ = bench_with(1, attempts=2)
    bench.lose_worker(5)
    bench.add_worker(6)
    bench.step()
    bench.join(6)
    bench.lose_worker(6, "was killed by SIGKILL")
    assert bench.answers() == {1: WorkerLost}
    assert bench.counts("rows_ended_total", "reason") == {"worker_lost": 1}


def test_a_row_that_was_lost_with_others_is_not_alone() -> None:
    bench, _, _ = bench_with(2, attempts=1)
    bench.lose_worker(5)
    assert bench.answers() == {}
    assert suspects(bench) == [[1], [2]]


def test_rows_that_may_not_run_again_are_lost_with_their_worker() -> None:
    bench, _, _ = bench_with(2, idempotent=False)
    bench.send(3)
    bench.step()
    bench.lose_worker(5)
    assert bench.answers() == {1: WorkerLost, 2: WorkerLost}
    assert bench.waiting() == [3]


def test_a_step_that_fails_is_one_failed_batch() -> None:
    bench, worker, running = bench_with(3)
    worker.end(*running, status=Status.MODEL_ERROR, outcome=BatchOutcome.FAILED)
    bench.step()
    assert bench.counts("batches_finished_total", "outcome") == {"failed": 3}
    (recorded,) = bench.recorder.last()
    assert (recorded.rows, recorded.outcome) == (3, BatchOutcome.FAILED)
    assert [sequence.first for sequence in bench.join(5)] == [1], "each alone"
    assert suspects(bench) == [[2], [3]]


def test_a_row_that_fails_alone_twice_gets_the_models_error() -> None:
    bench, worker, running = bench_with(2)
    worker.end(*running, status=Status.MODEL_ERROR, outcome=BatchOutcome.FAILED)
    bench.step()
    worker.end(*bench.join(5), status=Status.MODEL_ERROR, outcome=BatchOutcome.FAILED)
    bench.step()
    assert bench.answers() == {1: ModelError}
    assert [sequence.first for sequence in bench.join(5)] == [2]


def test_a_failed_step_and_a_death_at_once_are_one_for_each_row() -> None:
    """The worker died while it finished the sequences of a failed step."""
    bench, worker, running = bench_with(2, attempts=1)
    failed = {"status": Status.MODEL_ERROR, "outcome": BatchOutcome.FAILED}
    worker.end(running[0], told=False, **failed)
    bench.lose_worker(5)
    assert bench.answers() == {}, "neither was alone"
    assert bench.clients[1].lane.attempt[:2].tolist() == [1, 1]


def test_what_was_finished_before_a_death_is_complete() -> None:
    bench, worker, running = bench_with(2)
    worker.end(running[0], told=False)
    bench.lose_worker(5)
    assert bench.answers() == {1: [token_of(1, 0)]}
    assert suspects(bench) == [[2]]


def test_too_little_memory_lowers_the_number_of_sequences_and_nobody_is_suspected() -> None:
    bench, worker, running = bench_with(6)
    worker.end(*running, status=Status.MODEL_ERROR, outcome=BatchOutcome.NO_MEMORY)
    bench.step()
    assert bench.model.limits.max_batch == 3
    assert [sequence.first for sequence in bench.join(5)] == [1, 2, 3]
    assert bench.waiting() == [4, 5, 6]
    assert bench.counts("rows_retried_total", "reason") == {"no_memory": 6}
    assert bench.clients[1].lane.attempt[:6].tolist() == [0] * 6


def test_one_sequence_that_is_too_large_alone_fails() -> None:
    bench, worker, running = bench_with(1)
    for _ in range(2):
        worker.end(*running, status=Status.MODEL_ERROR, outcome=BatchOutcome.NO_MEMORY)
        bench.step()
        running = bench.join(5)
    assert bench.answers() == {1: ModelError}


def test_sequences_that_are_given_back_are_the_first_again_without_a_failure() -> None:
    bench, worker, running = bench_with(3)
    bench.send(9)
    bench.proxy(5).active = False
    worker.end(*reversed(running), outcome=BatchOutcome.RETURNED)
    bench.step()
    assert bench.waiting() == [1, 2, 3, 9]
    assert bench.clients[1].lane.attempt[:3].tolist() == [0, 0, 0]
    assert bench.counts("rows_retried_total", "reason") == {"returned": 3}
    assert bench.counts("batches_finished_total", "outcome") == {"returned": 3}
    bench.add_worker(6)
    bench.step()
    assert [(each.first, each.length) for each in bench.join(6)] == [(1, 1), (2, 1), (3, 1), (9, 0)]


def test_rows_come_back_in_the_order_in_which_they_left() -> None:
    bench, _, _ = bench_with(0)
    for first in (1, 2, 3):
        bench.send(first, lane=1 + first % 2)
        bench.step(MS)
    bench.send(4, priority=1)
    bench.step(MS)
    bench.lose_worker(5)
    assert bench.waiting() == [4, 1, 2, 3]


def test_rows_of_a_client_that_is_gone_do_not_run_again() -> None:
    bench, worker, running = bench_with(2)
    bench.batcher.close_lane(1)
    assert bench.closed == []
    worker.end(running[0], status=Status.CANCELLED)
    bench.step()
    worker.end(running[1], outcome=BatchOutcome.RETURNED)
    bench.step()
    assert bench.closed == [1]
    assert bench.counts("rows_ended_total", "reason") == {"client_gone": 2}
    assert bench.batcher.is_empty()


def test_rows_of_an_evicted_lane_end_when_they_are_given_back() -> None:
    bench, worker, running = bench_with(1)
    bench.batcher.evict_lane(1)
    worker.end(*running, outcome=BatchOutcome.RETURNED)
    bench.step()
    assert bench.answers() == {1: NotReady}
    assert bench.closed == [1]


def test_a_row_that_was_cancelled_while_it_ran_does_not_run_again() -> None:
    bench, worker, running = bench_with(1)
    client = bench.clients[1]
    client.lane.cancel[running[0].slot] = running[0].sequence
    client.lane.cancels.raise_by(1)
    bench.step()
    worker.end(*running, outcome=BatchOutcome.RETURNED)
    bench.step()
    assert bench.counts("rows_ended_total", "reason") == {"cancelled": 1}


def test_while_the_pool_drains_rows_still_join_until_all_are_over() -> None:
    bench, worker, running = bench_with(8)
    bench.send(9)
    bench.step()
    bench.batcher.set_draining(True)
    worker.end(*running)
    bench.step()
    assert not bench.batcher.is_empty()
    worker.end(*bench.join(5))
    bench.step()
    assert bench.batcher.is_empty()


def test_times_of_sequences_teach_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    taught: list[object] = []
    monkeypatch.setattr(WorkerProxy, "measure", lambda *args: taught.append(args))
    bench, worker, running = bench_with(2)
    worker.end(*running)
    bench.step()
    assert bench.answers().keys() == {1, 2}
    assert taught == []


def test_suspects_wait_since_they_came_back() -> None:
    bench, _, _ = bench_with(1)
    bench.step(100 * MS)
    bench.lose_worker(5)
    assert bench.model.suspects.peek()[QueueColumn.SINCE_NS].tolist() == [bench.now_ns]
