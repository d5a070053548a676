"""A generator's rows join workers one by one, with what they may need reserved."""

from __future__ import annotations

from batchpool.core.errors import DeadlineExceeded, TooLarge
from batchpool.core.layout.states import SlotState
from batchpool.core.scheduler.queue import QueueColumn
from tests.unit.batcher.sequence_bench import MS, NOW, SequenceBench
from tests.unit.generator_worker import MOST_PROMPT, MOST_TOKENS, token_of


def test_a_row_joins_while_others_run_and_each_ends_by_itself() -> None:
    bench = SequenceBench()
    worker = bench.add_worker(5)
    first, second = bench.run(5, 1, 2)
    worker.make(first, 3)
    (third,) = bench.run(5, 3)
    worker.make(third, 2)
    worker.end(third)
    bench.step()
    assert bench.answers() == {3: [token_of(3, 0), token_of(3, 1)]}
    worker.end(second)
    worker.make(first)
    worker.end(first)
    bench.step()
    assert bench.answers() == {1: [token_of(1, i) for i in range(4)], 2: []}
    assert bench.proxy(5).in_flight == 0
    assert bench.counts("rows_ended_total", "reason") == {"ok": 3}


def test_rows_that_join_at_once_ring_the_worker_once() -> None:
    bench = SequenceBench()
    bench.add_worker(5)
    bench.rung.clear()
    bench.send(1, 2, 3)
    bench.step()
    assert bench.rung == ["worker 5"]
    assert [sequence.first for sequence in bench.join(5)] == [1, 2, 3]


def test_a_row_reserves_its_prompt_and_all_its_tokens_as_far_as_they_are_declared() -> None:
    bench = SequenceBench(8)
    bench.add_worker(5)
    lane = bench.clients[1].lane
    sent = [bench.send(n, prompt=3, max_tokens=5)[0] for n in range(1, 6)]
    slots = [pending.slots[0] for pending in sent]
    lane.input_sizes[slots[1], 0] = 2**32 - 1
    for slot, wanted in zip(slots[2:], (0, -(2**63), 2**63 - 1), strict=True):
        lane.parameters["max_tokens"].values[slot] = wanted
    bench.step()
    segment = bench.workers[5].segment
    reserved = [segment.tokens_of[record] for record in range(5)]
    assert reserved == [8, MOST_PROMPT + 5, 4, 4, 3 + MOST_TOKENS]
    assert bench.proxy(5).reserved_tokens == sum(reserved)


def test_a_record_says_when_its_row_was_submitted() -> None:
    bench = SequenceBench()
    bench.add_worker(5)
    bench.send(1)
    bench.step(3 * MS)
    bench.clients[1].lane.submit_ns[0] = -(2**63)
    (sequence,) = bench.join(5)
    assert bench.workers[5].segment.submit_ns_of[sequence.record] == NOW


def test_a_row_begins_without_tokens_whatever_its_slot_held() -> None:
    bench = SequenceBench()
    lengths = bench.clients[1].lane.memory.array(bench.clients[1].lane.layout.columns["size.out"])
    lengths[:] = 7
    bench.send(1)
    bench.send(2, 3, lane=1)
    bench.step()
    assert lengths[:3, 0].tolist() == [0, 0, 0]
    assert lengths[3, 0] == 7


def test_a_worker_gets_as_many_as_it_says_and_no_more_than_max_batch() -> None:
    for said, most in ((2, 2), (0, 4), (9, 4)):
        bench = SequenceBench(4)
        worker = bench.add_worker(5, said)
        running = bench.run(5, *range(1, 8))
        assert len(running) == most
        worker.end(running[1])
        bench.step()
        assert [sequence.first for sequence in bench.join(5)] == [most + 1]


def test_a_row_waits_until_its_tokens_are_free() -> None:
    bench = SequenceBench()
    worker = bench.add_worker(5, 4, kv_tokens=50)
    running = bench.run(5, 1, 2, 3, max_tokens=20)  # 21 each
    assert [sequence.first for sequence in running] == [1, 2]
    bench.send(4, max_tokens=3)
    bench.step()
    assert bench.waiting() == [3, 4], "a smaller one does not overtake it"
    worker.end(running[0])
    bench.step()
    assert [sequence.first for sequence in bench.join(5)] == [3, 4]
    assert bench.proxy(5).reserved_tokens == 46


def test_what_no_worker_can_hold_is_refused_with_the_numbers() -> None:
    bench = SequenceBench()
    bench.add_worker(5, kv_tokens=20)
    bench.add_worker(6, kv_tokens=30, ready=False)
    (pending,) = bench.send(1, prompt=4, max_tokens=30)
    bench.send(2)
    bench.step()
    assert bench.waiting() == [1, 2], "a worker still loads"
    bench.workers[6].segment.ready.set(1)
    bench.step()
    (done,) = bench.clients[1].reap(bench.now_ns)
    error = bench.clients[1].failure(done)
    assert done is pending
    assert isinstance(error, TooLarge)
    assert "make 34 tokens; at most 30 fit into a worker" in str(error)
    assert bench.counts("rows_ended_total", "reason") == {"too_large": 1}
    assert [sequence.first for sequence in bench.join(6)] == [2]


def test_a_row_that_is_late_does_not_join() -> None:
    bench = SequenceBench(1)
    bench.add_worker(5)
    bench.run(5, 1)
    bench.send(2, deadline_ns=NOW + 5 * MS)
    assert bench.step() == NOW + 5 * MS
    bench.step(5 * MS)
    assert bench.answers() == {2: DeadlineExceeded}


def test_a_row_waits_for_a_worker_that_has_its_lane() -> None:
    bench = SequenceBench()
    worker = bench.add_worker(5)
    worker.segment.lanes[1] = 0
    bench.send(1)
    bench.send(2, lane=2)
    bench.step()
    assert [sequence.first for sequence in bench.join(5)] == [2]
    worker.segment.lanes[1] = 11
    bench.step()
    assert [sequence.first for sequence in bench.join(5)] == [1]


def test_rows_are_running_before_the_worker_may_store_into_them() -> None:
    bench = SequenceBench()
    states: list[int] = []
    bench.add_worker(5)
    proxy, lane = bench.proxy(5), bench.clients[1].lane
    proxy.ring = lambda: states.extend(lane.state[:3].tolist())
    bench.send(1, 2, 3)
    bench.step()
    assert states == [SlotState.RUNNING] * 3


def test_hundreds_of_sequences_use_their_records_again() -> None:
    bench = SequenceBench(256, slots=512)
    worker = bench.add_worker(5)
    running = bench.run(5, *range(1, 301))
    assert sorted(sequence.record for sequence in running) == list(range(256))
    worker.end(*running[10:60])
    bench.step()
    again = bench.join(5)
    assert {sequence.record for sequence in again} <= {each.record for each in running[10:60]}
    assert len(again) == 44
    assert bench.proxy(5).reserved_tokens == 250 * 21


def test_the_wait_of_a_row_that_ran_before_counts_from_its_return() -> None:
    bench = SequenceBench(1)
    bench.add_worker(5)
    bench.run(5, 1)
    bench.step(100 * MS)
    bench.lose_worker(5)
    assert bench.model.suspects.peek()[QueueColumn.SINCE_NS].tolist() == [bench.now_ns]
