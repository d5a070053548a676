"""The batcher and rows that a model refuses or fails: what runs again, what is counted."""

from __future__ import annotations

from collections.abc import Set

import numpy as np
import pytest

from batchpool.batcher.batcher import Batcher
from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.metrics import End
from batchpool.batcher.model_queue import ModelQueue
from batchpool.batcher.recovery import take_over
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.client.pending_request import PendingRequest
from batchpool.core.errors import InvalidInput, ModelError, Status
from batchpool.core.layout.states import BatchOutcome, LaneGate
from batchpool.core.metrics.table import BLOCKS
from batchpool.core.metrics.totals import Totals
from batchpool.core.scheduler.decide import Limits
from tests.unit.client.lane_clients import LATER, MS, NOW, new_lane_client, rows_of
from tests.unit.lanes import new_worker_segment, other_side

N = 16


class Model:
    """A model on one worker, played by the test, and a caller of single rows.

    names: the model names the rows that it refuses; else it raises. ran: the slots of each batch.
    """

    def __init__(
        self, bad: Set[int], *, names: bool = False, attempts: int = 3, idempotent: bool = True
    ) -> None:
        self.bad, self.names = bad, names
        self.refusing = True  # or failing with an exception of its own
        self.ran: list[list[int]] = []
        self.cells = memoryview(bytearray(8 * BLOCKS["batcher"].size)).cast("Q")
        self.queue = ModelQueue("m", Limits(N, 0), attempts=attempts, idempotent=idempotent)
        self.batcher = Batcher([self.queue], 1)
        self.lane_client = new_lane_client(32, LaneGate.CLOSED)
        self.lane = other_side(self.lane_client.lane)
        self.batcher.add_lane(AdmittedLane(0, 1, 0, self.lane, lambda: None))
        self.worker = WorkerProxy(0, 0, new_worker_segment(N, 1), lambda: None)
        self.worker.worker_segment.ready.set(1)
        self.worker.worker_segment.lanes[0] = 1
        self.batcher.add_worker(self.worker)
        self.now_ns = NOW

    def send(self, n: int = N) -> list[PendingRequest]:
        sent = [self.lane_client.submit(rows_of(1), NOW, LATER) for _ in range(n)]
        self.lane_client.flush()
        return sent

    def run(self) -> None:
        """Step until nothing is under way."""
        for _ in range(200):
            self.batcher.step(self.now_ns)
            if not self.worker.in_flight:
                return
            self.now_ns += MS
            for batch in sorted(self.worker.batches.values(), key=lambda batch: batch.token):
                self.finish(batch.record, batch.token)
        raise AssertionError("rows run without end")

    def finish(self, record: int, token: int) -> None:
        segment = self.worker.worker_segment
        if segment.finished[record] == token:
            return
        slots = segment.tickets[record, 1, : segment.n[record]].copy()
        self.ran.append(slots.tolist())
        bad = [slot for slot in slots.tolist() if slot in self.bad]
        outcome, refused = BatchOutcome.OK, 0
        self.lane.write_status(slots, Status.OK)
        if bad and self.refusing and (self.names or len(slots) == 1):
            refused = len(bad)
            self.lane.write_status(np.array(bad), Status.INVALID_INPUT, "bad")
        elif bad:
            outcome = BatchOutcome.INVALID_INPUT if self.refusing else BatchOutcome.FAILED
            self.lane.write_status(slots, Status.MODEL_ERROR, "raised")
        segment.refused_of[record] = refused
        segment.outcome[record] = int(outcome)
        segment.launched.set(token)
        segment.finished[record] = token
        segment.cq_producer().push_few([record | token << 32])
        segment.sq_consumer().advance(1)

    def ends(self, sent: list[PendingRequest]) -> list[type[Exception] | None]:
        done = self.lane_client.reap(self.now_ns)
        assert len(done) == len(sent)
        errors = [self.lane_client.failure(pending) for pending in sent]
        for pending in sent:
            self.lane_client.release(pending)
        return [None if error is None else type(error) for error in errors]

    def counts(self, name: str, label: str) -> dict[str, int]:
        totals = Totals()
        cells = self.queue.metrics._cells[: BLOCKS["batcher"].used].tolist()
        totals.add("batcher", ("m", "infer"), cells)
        return dict(totals.values(name, label))


def expected(bad: Set[int], kind: type[Exception]) -> list[type[Exception] | None]:
    return [kind if slot in bad else None for slot in range(N)]


def test_named_rows_cost_no_second_run() -> None:
    model = Model({3, 7, 15}, names=True)
    sent = model.send()
    model.run()
    assert model.ends(sent) == expected(model.bad, InvalidInput)
    assert model.ran == [list(range(N))]
    assert model.counts("rows_ended_total", "reason") == {"ok": 13, "invalid_input": 3}
    assert model.counts("rows_retried_total", "reason") == {}
    assert model.counts("batches_finished_total", "outcome") == {"ok": 1}
    assert model.batcher.flight_recorder.recent_errors.last() == []


@pytest.mark.parametrize("attempts", [1, 2, 3, 100])
@pytest.mark.parametrize("bad", [{5}, {0, 15}, set(range(N))])
def test_a_row_that_is_not_named_is_found_alone_and_nothing_counts_as_failed(
    bad: set[int], attempts: int
) -> None:
    model = Model(bad, attempts=attempts)
    sent = model.send()
    model.run()
    assert model.ends(sent) == expected(bad, InvalidInput)
    assert all(model.ran.count([slot]) == 1 for slot in bad), "alone once, without confirmation"
    assert len(model.ran) <= 1 + 8 + 2 * len(bad)
    assert model.lane.attempt[:N].tolist() == [0] * N, "no failed batch counts for any row"
    assert model.counts("rows_ended_total", "reason") == {
        key: n for key, n in (("ok", N - len(bad)), ("invalid_input", len(bad))) if n
    }
    assert model.counts("rows_retried_total", "reason").keys() == {"invalid_input"}
    assert model.counts("batches_finished_total", "outcome").keys() == {"ok", "invalid_input"}


def test_rows_that_may_not_run_twice_all_get_the_models_error() -> None:
    model = Model({5}, idempotent=False)
    sent = model.send()
    model.run()
    assert model.ends(sent) == [ModelError] * N
    assert len(model.ran) == 1
    assert model.queue.metrics.ended(End.MODEL_ERROR) == N


@pytest.mark.parametrize(("attempts", "runs"), [(1, 1), (2, 2), (3, 2), (100, 2)])
def test_a_lone_rows_plain_exception_is_final_after_one_confirmation(
    attempts: int, runs: int
) -> None:
    model = Model({0}, attempts=attempts)
    model.refusing = False
    sent = model.send(1)
    model.run()
    assert model.ends(sent) == [ModelError]
    assert model.ran == [[0]] * runs
    assert model.counts("rows_ended_total", "reason") == {"model_error": 1}


def test_a_row_that_failed_with_others_is_confirmed_by_its_run_alone() -> None:
    model = Model({5}, attempts=100)
    model.refusing = False
    sent = model.send()
    model.run()
    assert model.ends(sent) == expected({5}, ModelError)
    assert model.ran.count([5]) == 1


def test_the_death_of_a_worker_takes_as_many_attempts_as_are_set() -> None:
    model = Model(set(), attempts=3)
    sent = model.send(1)
    for number in range(3):
        model.batcher.step(model.now_ns)
        (batch,) = model.worker.batches.values()
        model.worker.worker_segment.launched.set(batch.token)
        model.batcher.lose_worker(number, "was killed by SIGKILL")
        assert bool(model.lane_client.reap(model.now_ns)) is (number == 2)
        model.worker = WorkerProxy(number + 1, 0, new_worker_segment(N, 1), lambda: None)
        model.worker.worker_segment.ready.set(1)
        model.worker.worker_segment.lanes[0] = 1
        model.batcher.add_worker(model.worker)
    assert len(sent) == 1
    assert model.counts("rows_retried_total", "reason") == {"worker_lost": 2}


def test_the_time_of_refused_rows_alone_says_nothing_of_the_model() -> None:
    model = Model(set(range(N)), names=True)
    sent = model.send()
    model.run()
    model.ends(sent)
    assert not model.worker.service_time.known
    model.bad = {*range(2 * N)} - {0, N}
    model.send()
    model.run()
    assert model.worker.service_time.known


@pytest.mark.parametrize("outcome", [BatchOutcome.INVALID_INPUT, BatchOutcome.NO_MEMORY])
def test_a_batch_that_came_back_while_there_was_no_batcher_is_put_back_once(
    outcome: BatchOutcome,
) -> None:
    model = Model(set())
    sent = model.send(4)
    model.batcher.step(model.now_ns)
    (batch,) = model.worker.batches.values()
    segment = model.worker.worker_segment
    model.finish(batch.record, batch.token)
    segment.outcome[batch.record] = int(outcome)
    successor = ModelQueue("m", Limits(N, 0))
    model.batcher = Batcher([successor], 1)
    model.batcher.add_lane(AdmittedLane(0, 1, 0, model.lane, lambda: None))
    model.worker = WorkerProxy(0, 0, segment, lambda: None)
    model.batcher.add_worker(model.worker)
    take_over(model.batcher)
    assert len(successor.queue) + len(successor.suspects) == 4
    model.run()
    assert model.ends(sent) == [None] * 4
