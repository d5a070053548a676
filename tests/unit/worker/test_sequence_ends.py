"""The ends of sequences that do not get all their tokens, and what a hostile client changes."""

from __future__ import annotations

import pytest

from batchpool.core.errors import Status
from batchpool.core.layout.states import BatchOutcome
from tests.unit.worker.sequence_bench import SequenceBench
from tests.unit.worker.toy_generator import TOKENS_MOST, Toy, tokens_of


def two_rows(bench: SequenceBench, n: int = 10) -> list[int]:
    """Rows (1, 0) and (4, 1), which want n tokens; their records."""
    bench.fill(1, 0, [5], n)
    bench.fill(4, 1, [6], n)
    return [bench.send(1, 0), bench.send(4, 1)]


def test_a_cancelled_sequence_leaves_after_the_step_and_keeps_its_tokens() -> None:
    bench = SequenceBench()
    first, _ = two_rows(bench)
    bench.run(3)
    bench.cancel(1, 0)
    bench.loop.step()
    assert bench.take_finished() == [(first, BatchOutcome.OK)]
    assert bench.end(1, 0) == (Status.CANCELLED, b"")
    assert bench.tokens(1, 0) == tokens_of([5], 3)
    assert bench.segment.cancelled_of[first] == 1
    bench.run()
    assert bench.tokens(4, 1) == tokens_of([6], 10)


def test_a_sequence_ends_at_its_deadline() -> None:
    bench = SequenceBench()
    bench.fill(1, 0, [5], 10)
    bench.fill(4, 1, [6], 10)
    record, other = bench.send(1, 0, due_ns=1500), bench.send(4, 1)
    bench.run(2)
    bench.now_ns = 1500
    bench.run()
    assert bench.take_finished() == [(record, BatchOutcome.OK), (other, BatchOutcome.OK)]
    assert bench.end(1, 0) == (Status.DEADLINE, b"")
    assert bench.tokens(1, 0) == tokens_of([5], 2)
    assert bench.segment.expired_of[record] == 1


def test_a_row_that_is_over_does_not_join() -> None:
    bench = SequenceBench()
    bench.fill(1, 0, [5], 10)
    bench.send(1, 0)
    bench.cancel(1, 0)
    bench.fill(1, 1, [5], 10)
    bench.send(1, 1, due_ns=1000)
    bench.run()
    assert (bench.end(1, 0)[0], bench.end(1, 1)[0]) == (Status.CANCELLED, Status.DEADLINE)
    assert bench.generator.log == []  # type: ignore[attr-defined]


def test_the_cancel_word_of_an_earlier_use_of_the_slot_ends_nothing() -> None:
    bench = SequenceBench()
    bench.fill(1, 0, [5], 10)  # the earlier use
    two_rows(bench)
    bench.cancel(1, 0)
    bench.lanes[1].cancel[0] -= 1
    bench.run()
    assert bench.tokens(1, 0) == tokens_of([5], 10)


def test_the_lane_of_a_client_that_is_gone_is_left_at_once() -> None:
    bench = SequenceBench()
    bench.fill(1, 2, [7], 1)
    done = bench.send(1, 2)
    first, _ = two_rows(bench)
    bench.run(2)
    assert bench.take_finished() == [(done, BatchOutcome.OK)]
    bench.loop.leave_lane(1)
    assert bench.take_finished() == [(first, BatchOutcome.OK)]
    bench.fill(1, 3, [8], 4)
    late = bench.send(1, 3)  # the batcher had not heard of the client's end
    bench.run(1)
    assert bench.take_finished() == [(late, BatchOutcome.OK)]
    assert bench.end(1, 3)[0] is Status.CANCELLED
    bench.run()
    assert bench.tokens(4, 1) == tokens_of([6], 10)
    bench.loop.leave_lane(2)  # of which this worker was not told


def test_sequences_are_given_back_and_go_on_in_another_worker() -> None:
    bench = SequenceBench()
    records = two_rows(bench)
    bench.run(4)
    bench.loop.return_sequences(True)
    assert bench.take_finished() == [(record, BatchOutcome.RETURNED) for record in records]
    assert bench.generator.running == {}  # type: ignore[attr-defined]
    assert bench.segment.running.get() == 0
    came_late = bench.send(1, 0)
    bench.run()
    assert bench.take_finished() == [(came_late, BatchOutcome.RETURNED)]
    assert (bench.length(1, 0), bench.length(4, 1)) == (4, 4)
    bench.loop.return_sequences(False)
    bench.send(1, 0)
    bench.send(4, 1)
    bench.run()
    assert bench.tokens(1, 0) == tokens_of([5], 10)
    assert bench.tokens(4, 1) == tokens_of([6], 10)


def test_a_row_goes_on_behind_the_tokens_that_it_has() -> None:
    bench = SequenceBench()
    bench.fill(1, 0, [5], 10)
    bench.lanes[1].outputs["token"].values[0, :7] = tokens_of([5], 7)
    bench.set_length(1, 0, 7)
    bench.send(1, 0)
    assert bench.run() == 3
    assert bench.tokens(1, 0) == tokens_of([5], 10)
    assert bench.end(1, 0) == (Status.OK, b"length")


@pytest.mark.parametrize(("stop_at", "reason"), [(4, b"stop"), (0, b"length")])
def test_a_worker_lost_between_the_last_token_and_the_end_adds_none(
    stop_at: int, reason: bytes
) -> None:
    n = stop_at or 6
    lost = SequenceBench()
    lost.fill(1, 0, [5], 6, stop_at=stop_at)
    lost.send(1, 0)
    lost.loop._ends.finish = lambda numbers, why: None  # type: ignore[method-assign]
    lost.run(n)
    heir = SequenceBench()
    heir.lanes[1].memory.cells()[:] = lost.lanes[1].memory.cells()[:]  # type: ignore[index]
    heir.send(1, 0)
    heir.run()
    assert heir.tokens(1, 0) == tokens_of([5], n)
    assert heir.end(1, 0) == (Status.OK, reason)
    assert heir.generator.log == []  # type: ignore[attr-defined]


def test_the_mark_of_an_earlier_uses_stop_is_forgotten() -> None:
    bench = SequenceBench()
    bench.fill(1, 0, [5], 6, stop_at=4)
    bench.send(1, 0)
    bench.run()
    bench.take_finished()
    bench.fill(1, 0, [6], 6)
    bench.send(1, 0)
    bench.run(4)
    heir = SequenceBench()  # the worker is lost at the length at which the earlier row stopped
    heir.lanes[1].memory.cells()[:] = bench.lanes[1].memory.cells()[:]  # type: ignore[index]
    heir.send(1, 0)
    heir.run()
    assert heir.tokens(1, 0) == tokens_of([6], 6)


def test_one_that_stops_with_its_last_token_ends_once() -> None:
    bench = SequenceBench()
    bench.fill(1, 0, [5], 4, stop_at=4)
    bench.send(1, 0)
    bench.run()
    assert bench.end(1, 0) == (Status.OK, b"stop")
    assert len(bench.take_finished()) == 1


def test_a_client_that_writes_into_its_running_rows_changes_only_its_own() -> None:
    bench = SequenceBench()
    bench.fill(1, 0, [5], 10)
    bench.fill(4, 1, [6], 10)
    bench.send(1, 0)
    bench.send(4, 1)
    hostile = bench.lanes[1]
    for step in range(9):
        bench.loop.step()
        hostile.outputs["token"].sizes[:] = 2**32 - 1 - step
        hostile.parameters["max_tokens"].values[:] = -5
        hostile.input_sizes[:] = 2**32 - 1
        hostile.deadline_ns[:] = 0
        hostile.message_len[:] = 2**32 - 1
        hostile.sequence[:] += 1
    bench.run()
    assert bench.tokens(4, 1) == tokens_of([6], 10)
    assert bench.tokens(1, 0) == tokens_of([5], 10)  # the worker's own count
    assert len(bench.take_finished()) == 2


@pytest.mark.parametrize("wrong", [2**32 - 1, TOKENS_MOST + 1, 11])
def test_a_length_beyond_the_most_is_a_sequence_that_has_all(wrong: int) -> None:
    bench = SequenceBench()
    bench.fill(1, 0, [5], 10)
    bench.set_length(1, 0, wrong)
    bench.send(1, 0)
    bench.run()
    assert (bench.length(1, 0), bench.end(1, 0)[0]) == (10, Status.OK)


def test_a_prompt_that_has_grown_since_is_cut_to_what_is_reserved() -> None:
    class Seen(Toy):
        def join(self, sequences: object) -> None:  # type: ignore[override]
            self.log += [(len(s.prompt), s.max_tokens) for s in sequences]  # type: ignore[attr-defined]
            return super().join(sequences)  # type: ignore[arg-type, return-value]

    bench = SequenceBench(Seen())
    bench.fill(1, 0, [5, 5, 5], 4)
    bench.fill(1, 1, [5] * 16, 40)
    bench.fill(1, 2, [5], -3)
    for slot in range(3):
        bench.send(1, slot, reserved=7 if slot < 2 else 2)
    bench.run()
    sizes = [call for call in bench.generator.log if isinstance(call[0], int)]  # type: ignore[attr-defined]
    assert sizes == [(3, 4), (6, 1), (1, 1)]
