"""The loop of a generator's worker, on real memories: rows, tokens, ends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import batchpool as bp
from batchpool.core.errors import Status
from batchpool.core.layout.segments import REFUSED_LANE
from batchpool.core.layout.states import BatchOutcome
from tests.unit.worker.sequence_bench import SequenceBench
from tests.unit.worker.toy_generator import Toy, tokens_of

OK = Status.OK, b"length"


def test_rows_of_two_lanes_get_their_tokens() -> None:
    bench = SequenceBench()
    bench.fill(1, 2, [1, 2, 3], 5)
    bench.fill(4, 0, [9], 3)
    records = [bench.send(1, 2), bench.send(4, 0)]
    bench.run()
    assert bench.tokens(1, 2) == tokens_of([1, 2, 3], 5)
    assert bench.tokens(4, 0) == tokens_of([9], 3)
    assert bench.end(1, 2) == bench.end(4, 0) == OK
    assert bench.take_finished() == [(records[1], BatchOutcome.OK), (records[0], BatchOutcome.OK)]
    assert bench.segment.rows.get() == bench.segment.batches.get() == 2
    assert bench.segment.good.get() == 5, "steps that made tokens"
    assert bench.segment.running.get() == 0


def test_a_reader_sees_each_token_after_its_step_and_is_rung() -> None:
    bench = SequenceBench()
    bench.fill(1, 0, [4, 4], 3)
    bench.send(1, 0)
    for n in (1, 2, 3):
        bench.loop.step()
        assert bench.tokens(1, 0) == tokens_of([4, 4], n)
        assert bench.was_rung(1)
        assert not bench.was_rung(4)
        assert bench.batcher_rings == (n == 3)


def test_the_record_counts_the_tokens_that_its_row_got_there() -> None:
    """The batcher goes by it, since clients write what they like into their lanes."""
    bench = SequenceBench()
    bench.lanes[1].outputs["token"].values[0, :2] = tokens_of([4], 2)
    bench.fill(1, 0, [4], 9)
    bench.set_length(1, 0, 2)
    for _ in range(2):  # the second time the record has been used before
        record = bench.send(1, 0)
        for made in (1, 2, 3):
            bench.loop.step()
            bench.set_length(1, 0, 0)
            assert bench.segment.made_of[record] == made
        bench.cancel(1, 0)
        bench.run()
        bench.take_finished()
        bench.fill(1, 0, [4], 9)
        bench.set_length(1, 0, 2)


def test_a_row_joins_while_others_run_and_takes_a_number_that_is_free() -> None:
    bench = SequenceBench(sequences=2)
    for slot, n in ((0, 2), (1, 6), (2, 3)):
        bench.fill(1, slot, [slot], n)
        bench.send(1, slot)
    bench.run()
    for slot, n in ((0, 2), (1, 6), (2, 3)):
        assert bench.tokens(1, slot) == tokens_of([slot], n)
    joins = [call[1] for call in bench.generator.log if call[0] == "join"]  # type: ignore[attr-defined]
    assert joins == [[0, 1], [0]]  # the third waited in the ring, since two run at most


def test_one_that_stops_by_itself_keeps_its_last_token() -> None:
    bench = SequenceBench()
    bench.fill(1, 0, [7], 20, stop_at=4)
    bench.send(1, 0)
    bench.run()
    assert bench.tokens(1, 0) == tokens_of([7], 4)
    assert bench.end(1, 0) == (Status.OK, b"stop")


class Cramped(Toy):
    """Its context holds the first three tokens of a sequence."""

    def step(self) -> bp.StepTokens:
        made = super().step()
        full = [number for number, (_, place, _) in self.running.items() if place == 3]
        return replace(made, out_of_room=full)


def test_one_whose_context_is_full_ends_as_if_it_had_all_its_tokens() -> None:
    """One that stops with its last place has stopped; one that may have no more is told once."""
    bench = SequenceBench(generator=Cramped())
    for slot, (n, stop_at) in enumerate(((20, 0), (20, 3), (3, 0), (2, 0))):
        bench.fill(1, slot, [slot], n, stop_at=stop_at)
        bench.send(1, slot)
    bench.run()
    assert [len(bench.tokens(1, slot)) for slot in range(4)] == [3, 3, 3, 2]
    reasons = [bench.end(1, slot)[1] for slot in range(4)]
    assert reasons == [b"length", b"stop", b"length", b"length"]
    assert len(bench.take_finished()) == 4


def test_the_generator_is_told_who_left_before_the_next_step() -> None:
    bench = SequenceBench()
    bench.fill(1, 0, [1], 1)
    bench.fill(1, 1, [2], 2, stop_at=1)
    for slot in (0, 1):
        bench.send(1, slot)
    bench.loop.step()
    assert bench.generator.log[-1] == ("leave", [0, 1])  # type: ignore[attr-defined]


def test_a_slot_used_again_shows_nothing_of_its_last_use() -> None:
    bench = SequenceBench()
    for again in range(6):
        stop_at = 2 if again % 2 else 0
        bench.fill(1, 0, [again], 4, stop_at=stop_at)
        bench.send(1, 0)
        bench.run()
        bench.take_finished()
        assert bench.tokens(1, 0) == tokens_of([again], stop_at or 4)
        assert bench.end(1, 0) == (Status.OK, b"stop" if stop_at else b"length")


def test_all_sequences_run_at_once_over_two_lanes() -> None:
    bench = SequenceBench(sequences=16, records=16)
    rows = [(lane, slot) for lane in (1, 4) for slot in range(8)]
    for at, (lane, slot) in enumerate(rows):
        bench.fill(lane, slot, [at, at + 1], 3 + at)
        bench.send(lane, slot)
    bench.run()
    for at, (lane, slot) in enumerate(rows):
        assert bench.tokens(lane, slot) == tokens_of([at, at + 1], 3 + at)
        assert bench.end(lane, slot) == OK
    assert len(bench.take_finished()) == 16


def test_what_the_batcher_reads_before_the_worker_is_ready() -> None:
    generator = Toy()
    generator.kv_tokens = 777
    bench = SequenceBench(generator, sequences=3)
    assert (bench.segment.sequences.get(), bench.segment.kv_tokens.get()) == (3, 777)


def test_launched_says_which_rows_have_joined() -> None:
    bench = SequenceBench(sequences=2)
    for slot in range(3):
        bench.fill(1, slot, [slot], 9)
        bench.send(1, slot)
    bench.loop.step()
    assert bench.segment.launched.get() == 2
    assert bench.segment.running.get() == 2


def test_the_watchdog_reads_when_the_step_began() -> None:
    bench = SequenceBench()
    seen: list[tuple[int, int]] = []
    step = bench.generator.step

    def stepping() -> object:
        bench.now_ns += 1
        seen.append((bench.segment.running.get(), bench.segment.progress_ns.get()))
        return step()

    bench.generator.step = stepping  # type: ignore[method-assign, assignment]
    bench.fill(1, 0, [1], 3)
    bench.send(1, 0)
    bench.run()
    assert seen == [(1, 1000), (1, 1001), (1, 1002)]
    assert bench.segment.running.get() == 0


def test_lanes_are_acknowledged_refused_and_dropped() -> None:
    bench = SequenceBench()
    assert bench.segment.lanes.tolist() == [0, 11, 0, 0, 44, 0, 0, 0]
    bench.loop.refuse_lane(2)
    bench.loop.drop_lane(4)
    bench.loop.drop_lane(4)
    assert bench.segment.lanes.tolist() == [0, 11, REFUSED_LANE, 0, 0, 0, 0, 0]
    assert bench.bells[4].fd == -1


def test_nothing_to_do() -> None:
    bench = SequenceBench()
    assert not bench.loop.step()
    assert bench.batcher_rings == 0


def test_several_tokens_a_step_are_cut_to_the_room() -> None:
    class Runs(Toy):
        def step(self) -> object:  # type: ignore[override]
            first = super().step()
            second = super().step()
            tokens = np.stack([first.tokens, second.tokens], 1).reshape(-1)
            return type(first)(first.numbers, tokens, counts=[2] * len(first.numbers))

    bench = SequenceBench(Runs())
    bench.fill(1, 0, [1, 1], 5)
    bench.fill(4, 3, [2], 4)
    bench.fill(1, 7, [3], 1)
    for lane, slot in ((1, 0), (4, 3), (1, 7)):
        bench.send(lane, slot)
    bench.run()
    assert bench.tokens(1, 0) == tokens_of([1, 1], 5)
    assert bench.tokens(4, 3) == tokens_of([2], 4)
    assert bench.tokens(1, 7) == tokens_of([3], 1)
