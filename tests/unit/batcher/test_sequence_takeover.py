"""A new batcher finds the sequences that run, and those that ended meanwhile."""

from __future__ import annotations

import pytest

from batchpool.batcher.metrics import End
from batchpool.batcher.probation import PROVEN_AFTER
from batchpool.core.errors import Status
from batchpool.core.layout.states import BatchOutcome, DispatchReason, SlotState
from tests.unit.batcher.sequence_bench import MS, SequenceBench
from tests.unit.generator_worker import token_of


def test_running_sequences_are_waited_for_and_keep_their_reservations() -> None:
    bench = SequenceBench()
    worker = bench.add_worker(5, kv_tokens=50)
    first, second = bench.run(5, 1, 2)
    worker.make(first, 2)
    bench.clients[1].lane.parameters["max_tokens"].values[first.slot] = 1
    bench.take_over()
    proxy = bench.proxy(5)
    assert (proxy.in_flight, proxy.reserved_tokens) == (2, 42)
    bench.send(3)
    bench.step()
    assert bench.join(5) == [], "no tokens are left"
    worker.make(first)
    worker.end(first, second)
    bench.step()
    assert bench.answers() == {1: [token_of(1, index) for index in range(3)], 2: []}
    assert [(each.first, each.record) for each in bench.join(5)] == [(3, second.record)]


def test_records_that_were_adopted_are_used_again_once_they_are_free() -> None:
    bench = SequenceBench(4)
    worker = bench.add_worker(5)
    running = bench.run(5, 1, 2, 3)
    bench.take_over()
    (fourth,) = bench.run(5, 4)
    assert fourth.record not in {each.record for each in running}
    for first in range(5, 15):
        worker.end(*running)
        bench.step()
        assert len(bench.answers()) == 3
        running = bench.run(5, first, first + 100, first + 200)
        assert len({each.record for each in (*running, fourth)}) == 4


def test_a_sequence_that_was_taken_from_the_ring_is_not_sent_again() -> None:
    bench = SequenceBench()
    bench.add_worker(5)
    bench.run(5, 1)
    bench.send(2)
    bench.step()
    bench.take_over()
    assert bench.proxy(5).in_flight == 2
    assert bench.waiting() == []
    assert [sequence.first for sequence in bench.join(5)] == [2]


def test_records_that_were_not_pushed_are_queued_again() -> None:
    """The former batcher died between two records and their ring entries."""
    bench = SequenceBench()
    worker = bench.add_worker(5)
    bench.run(5, 1)
    proxy, lane = bench.proxy(5), bench.clients[1].lane
    worker.segment.ready.set(0)
    bench.send(2, 3)
    bench.step()
    rows = bench.model.queue.view().copy()
    batches = [
        proxy.prepare(rows[:, at : at + 1], DispatchReason.IDLE, bench.now_ns, 9, 0, 21)
        for at in range(2)
    ]
    lane.state[1] = SlotState.RUNNING  # and slot 2 is QUEUED still
    bench.take_over()
    assert bench.waiting() == [2, 3]
    assert lane.state[:3].tolist() == [SlotState.RUNNING, SlotState.QUEUED, SlotState.QUEUED]
    assert bench.proxy(5).in_flight == 1
    assert [worker.segment.freed[batch.record] for batch in batches] == [2, 3]
    worker.segment.ready.set(1)
    bench.step()
    assert [sequence.first for sequence in bench.join(5)] == [2, 3]


def test_a_record_is_published_also_when_the_tokens_have_run_over_32_bits() -> None:
    bench = SequenceBench()
    worker = bench.add_worker(5)
    worker.segment.token[3] = worker.segment.freed[3] = 2**32 - 2
    bench.take_over()
    bench.run(5, 1, 2, 3)
    bench.take_over()
    assert bench.proxy(5).in_flight == 3
    assert bench.waiting() == []


@pytest.mark.parametrize("told", [True, False])
def test_a_sequence_that_ended_meanwhile_is_completed_once(told: bool) -> None:
    bench = SequenceBench()
    worker = bench.add_worker(5)
    (sequence,) = bench.run(5, 1)
    worker.end(sequence, told=told)
    bench.take_over()
    bench.step()
    if not told:
        assert bench.answers() == {}, "its worker will tell, or die"
        bench.lose_worker(5)
    assert bench.answers() == {1: []}
    assert bench.model.metrics.ended(End.OK) == 1
    assert len(bench.recorder.last()) == 1


def test_sequences_that_failed_meanwhile_failed_together() -> None:
    bench = SequenceBench(attempts=1)
    worker = bench.add_worker(5)
    running = bench.run(5, 1, 2)
    worker.end(*running, status=Status.MODEL_ERROR, outcome=BatchOutcome.FAILED)
    bench.take_over()
    bench.step()
    assert bench.answers() == {}
    assert bench.clients[1].lane.attempt[:2].tolist() == [1, 1]


def test_a_death_that_was_counted_in_part_is_counted_once_for_each_row() -> None:
    """The former batcher died while it put rows of a dead worker back."""
    bench = SequenceBench(attempts=1)
    bench.add_worker(5)
    running = bench.run(5, 1, 2)
    lane = bench.clients[1].lane
    lane.state[running[0].slot] = SlotState.QUEUED
    lane.attempt[running[0].slot] = 1
    bench.take_over()
    bench.lose_worker(5)
    assert bench.answers() == {}, "it was not lost alone"
    assert lane.attempt[:2].tolist() == [1, 1]
    assert lane.state[:2].tolist() == [SlotState.QUEUED] * 2
    assert len(bench.model.suspects) == 2


def test_probation_goes_on() -> None:
    bench = SequenceBench()
    worker = bench.add_worker(5)
    for sequence in bench.run(5, 1, 2):
        worker.make(sequence)
    bench.lose_worker(5)
    worker = bench.add_worker(6)
    bench.step()
    (suspect,) = bench.join(6)
    worker.make(suspect, 3)
    bench.take_over()
    bench.send(9)
    bench.step()
    assert bench.join(6) == []
    worker.make(suspect, PROVEN_AFTER - 4)
    bench.step(MS)
    assert bench.join(6) == []
    worker.make(suspect)
    bench.step(MS)
    assert [sequence.first for sequence in bench.join(6)] == [2]
    worker.end(suspect)
    bench.step()
    assert bench.answers().keys() == {1}
