"""Suspects of a generator run apart until each has made some tokens more."""

from __future__ import annotations

import pytest

from batchpool.batcher.probation import LOOK_AGAIN_NS, PROVEN_AFTER
from batchpool.core.errors import DeadlineExceeded, Status, WorkerLost
from batchpool.core.layout.states import BatchOutcome
from tests.unit.batcher.sequence_bench import NOW, SequenceBench
from tests.unit.generator_worker import FakeGeneratorWorker, RunningSequence

LONG = 40


def lost_bench(n: int) -> SequenceBench:
    """The rows 1 to n were lost with worker 5, each with a token."""
    bench = SequenceBench(32)
    worker = bench.add_worker(5)
    for sequence in bench.run(5, *range(1, n + 1), max_tokens=LONG):
        worker.make(sequence)
    bench.lose_worker(5)
    return bench


def firsts(running: list[RunningSequence]) -> list[int]:
    return [sequence.first for sequence in running]


def prove(worker: FakeGeneratorWorker, running: list[RunningSequence]) -> None:
    for sequence in running:
        worker.make(sequence, PROVEN_AFTER)


def test_no_other_row_joins_until_each_has_made_some_tokens_more() -> None:
    bench = lost_bench(16)
    worker = bench.add_worker(6)
    bench.send(99)
    assert bench.step() == bench.now_ns + LOOK_AGAIN_NS
    group = bench.join(6)
    assert firsts(group) == [1, 2]
    worker.make(group[0], PROVEN_AFTER)
    worker.make(group[1], PROVEN_AFTER - 1)
    assert bench.step() == bench.now_ns + LOOK_AGAIN_NS
    assert bench.join(6) == []
    worker.make(group[1])
    bench.step()
    assert firsts(bench.join(6)) == [3, 4], "the next group; the others wait for all of them"
    assert bench.waiting() == [99]


@pytest.mark.parametrize("length", [0, LONG])
def test_a_length_that_a_client_writes_ends_no_probation_and_lengthens_none(length: int) -> None:
    """The word stands in the lane; the group behind may be another client's."""
    bench = lost_bench(2)
    worker = bench.add_worker(6)
    bench.step()
    (suspect,) = bench.join(6)
    lengths = bench.clients[1].lane.outputs["token"].sizes
    worker.make(suspect, PROVEN_AFTER - 1)
    lengths[suspect.slot, 0] = length
    bench.step()
    assert bench.join(6) == []
    worker.make(suspect)
    lengths[suspect.slot, 0] = length
    bench.step()
    assert firsts(bench.join(6)) == [2]


def test_the_count_of_a_records_last_row_proves_no_other() -> None:
    bench = lost_bench(2)
    worker = bench.add_worker(6, 1)
    bench.step()
    (first,) = bench.join(6)
    prove(worker, [first])
    bench.step()
    worker.end(first)
    bench.send(99)
    bench.step()  # the second joins, and its worker has not looked yet
    bench.step()
    (second,) = bench.join(6)
    assert second.record == first.record
    bench.step()
    assert bench.proxy(6).runs_apart()


def test_a_suspect_that_has_ended_is_no_danger() -> None:
    bench = lost_bench(2)
    worker = bench.add_worker(6)
    bench.step()
    worker.end(*bench.join(6))
    bench.step()
    assert firsts(bench.join(6)) == [2]


def test_when_all_are_proven_other_rows_join() -> None:
    bench = lost_bench(1)
    worker = bench.add_worker(6)
    bench.send(99)
    bench.step()
    prove(worker, bench.join(6))
    bench.step()
    assert firsts(bench.join(6)) == [99]


def test_only_the_group_is_suspected_of_a_death() -> None:
    bench = lost_bench(16)
    worker = bench.add_worker(6)
    bench.step()
    proven = bench.join(6)
    prove(worker, proven)
    bench.step()
    assert firsts(bench.join(6)) == [3, 4]
    bench.lose_worker(6)
    assert bench.waiting() == [1, 2]
    attempts = bench.clients[1].lane.attempt[:5].tolist()
    assert attempts == [1, 1, 2, 2, 1]
    groups = [bench.firsts(bench.model.suspects.take_next()) for _ in range(8)]
    assert groups == [[5, 6], [7, 8], [9, 10], [11, 12], [13, 14], [15, 16], [3], [4]]


def test_only_the_group_is_suspected_of_a_failed_step() -> None:
    bench = lost_bench(16)
    worker = bench.add_worker(6)
    bench.step()
    proven = bench.join(6)
    prove(worker, proven)
    bench.step()
    group = bench.join(6)
    failed = {"status": Status.MODEL_ERROR, "outcome": BatchOutcome.FAILED}
    worker.end(*proven, *group, **failed)
    bench.step()
    lane = bench.clients[1].lane
    assert lane.attempt[[each.slot for each in proven]].tolist() == [1] * len(proven)
    assert lane.attempt[[each.slot for each in group]].tolist() == [2] * len(group)


def test_a_suspect_alone_that_is_lost_beside_proven_rows_was_alone() -> None:
    bench = lost_bench(2)
    worker = bench.add_worker(6)
    bench.step()
    prove(worker, bench.join(6))
    for number in (7, 8):
        bench.step()
        assert firsts(bench.join(number - 1))[-1:] in ([2], [1])
        bench.lose_worker(number - 1)
        worker = bench.add_worker(number)
    bench.step()
    assert len(bench.answers()) == 1


def test_one_that_fails_alone_beside_others_gets_the_error_one_failure_later() -> None:
    bench = lost_bench(1)
    failures = 1
    while not (answers := bench.answers()):
        suspects = bench.model.suspects.take_next()
        worker = bench.add_worker(5 + failures)
        running = bench.run(5 + failures, 50 + failures, max_tokens=LONG)
        worker.end(*(each for each in running if each.length))  # of the worker before
        bench.step()
        bench.answers()
        prove(worker, [each for each in running if not each.length])
        bench.model.suspects.add_group(suspects)
        bench.step()
        assert firsts(bench.join(5 + failures)) == [1]
        bench.lose_worker(5 + failures)
        failures += 1
    assert (failures, answers) == (4, {1: WorkerLost})
    assert bench.waiting() == [53], "it runs on as if it had not been there"


def test_a_group_waits_until_all_in_its_worker_are_proven() -> None:
    bench = lost_bench(1)
    worker = bench.add_worker(6, ready=False)
    suspects = bench.model.suspects.take_next()
    worker.segment.ready.set(1)
    running = bench.run(6, 50, 51, max_tokens=LONG)
    bench.model.suspects.add_group(suspects)
    bench.send(99)
    assert bench.step() == bench.now_ns + LOOK_AGAIN_NS
    assert bench.join(6) == [], "nobody joins meanwhile"
    prove(worker, running)
    bench.step()
    assert firsts(bench.join(6)) == [1]


def test_a_group_goes_to_the_worker_that_is_ready_for_it_first() -> None:
    bench = lost_bench(1)
    suspects = bench.model.suspects.take_next()
    busy, idle = bench.add_worker(6), bench.add_worker(7)
    bench.send(50)
    bench.step()
    bench.join(6)
    bench.model.suspects.add_group(suspects)
    bench.send(99)
    bench.step()
    assert firsts(bench.join(7)) == [1]
    assert firsts(bench.join(6)) == [99], "the other worker serves on"
    assert busy is not idle


def test_one_group_is_on_probation_at_a_time() -> None:
    bench = lost_bench(2)
    bench.add_worker(6)
    bench.add_worker(7)
    bench.step()
    bench.step()
    assert len(bench.join(6)) + len(bench.join(7)) == 1


def test_a_group_that_does_not_fit_joins_in_parts() -> None:
    bench = lost_bench(16)
    worker = bench.add_worker(6, 1)
    bench.step()
    first = bench.join(6)
    assert firsts(first) == [1]
    prove(worker, first)
    bench.step()
    assert bench.join(6) == [], "no place"
    worker.end(*first)
    bench.step()
    assert firsts(bench.join(6)) == [2]


def test_a_group_joins_as_far_as_its_tokens_fit() -> None:
    bench = lost_bench(16)
    bench.add_worker(6, kv_tokens=LONG + 1)
    bench.step()
    assert firsts(bench.join(6)) == [1]


def test_suspects_wait_for_a_worker_with_their_lane_and_end_when_they_are_late() -> None:
    bench = SequenceBench(8)
    bench.add_worker(5)
    bench.send(1, deadline_ns=NOW + 100)
    bench.step()
    bench.join(5)
    bench.lose_worker(5)
    worker = bench.add_worker(6)
    worker.segment.lanes[1] = 0
    assert bench.step() == NOW + 100
    assert bench.join(6) == []
    bench.step(100)
    assert bench.answers() == {1: DeadlineExceeded}


def test_suspects_that_are_given_back_are_suspects_still() -> None:
    bench = lost_bench(1)
    worker = bench.add_worker(6)
    bench.step()
    worker.end(*bench.join(6), outcome=BatchOutcome.RETURNED)
    bench.proxy(6).active = False
    bench.step()
    assert bench.firsts(bench.model.suspects.peek()) == [1]
    assert bench.waiting() == []
