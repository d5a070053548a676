"""Rows between the stages of a model: where they wait, what ends them, what a successor finds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from batchpool.batcher.metrics import End
from batchpool.core.errors import InvalidInput, PoolError
from batchpool.core.layout.states import SlotState
from batchpool.core.scheduler.queue import QueueColumn
from batchpool.core.tensors.stages import Stage
from tests.unit.batcher.staged_bench import SECOND, StagedBench

PRE, RUN = Stage.PREPROCESS, Stage.INFER


@pytest.fixture(params=[0, 8], ids=["arrays", "numbers"])
def bench(request: pytest.FixtureRequest) -> Iterator[StagedBench]:
    made = StagedBench(few=request.param)
    yield made
    made.close()


def preprocess(bench: StagedBench) -> None:
    """Rows go through the first stage, and wait: the worker of the second one is not ready."""
    bench.workers[RUN]._worker_segment.ready.set(0)
    bench.step()
    bench.run(PRE)
    bench.step()


def infer(bench: StagedBench) -> None:
    bench.workers[RUN]._worker_segment.ready.set(1)
    bench.step()
    bench.run(RUN)
    bench.step()


def test_rows_are_done_after_the_last_stage_and_counted_once(bench: StagedBench) -> None:
    request = bench.send(3, 5)
    preprocess(bench)
    assert bench.clients[0].reap(bench.now_ns) == []
    assert (bench.waiting(PRE), bench.waiting(RUN)) == (0, 2)
    assert bench.batcher.lanes.by_number[0].running == 0
    infer(bench)
    assert bench.answers(request) == [1003, 1005]
    pre, run = bench.stages[PRE].metrics, bench.stages[RUN].metrics
    assert (pre.admitted, run.admitted) == (2, 0)
    assert (pre.ended(End.OK), run.ended(End.OK)) == (0, 2)
    assert (pre.rows, run.rows) == (2, 2)
    assert bench.batcher.is_empty()


def test_rows_that_preprocess_refuses_end_there_and_no_others(bench: StagedBench) -> None:
    bench.model.bad = (7,)
    good, bad, other = bench.send(1), bench.send(7), bench.send(2)
    preprocess(bench)
    assert bench.waiting(RUN) == 2
    with pytest.raises(InvalidInput, match="bad 7"):
        bench.answers(bad)
    infer(bench)
    done = bench.clients[0].reap(bench.now_ns)
    assert done == [good, other]
    pre = bench.stages[PRE].metrics
    assert (pre.ended(End.INVALID_INPUT), pre.ended(End.OK), pre.completed) == (1, 0, 1)


def test_batches_of_infer_are_formed_by_the_sizes_of_the_features(bench: StagedBench) -> None:
    """10 and 12 ids share a batch, 40 do not, although all inputs are of one size."""
    for x in (10, 40, 12):
        bench.send(x)
    preprocess(bench)
    buckets = bench.stages[RUN].queue.view()[QueueColumn.BUCKET].tolist()
    assert buckets[0] == buckets[2] != buckets[1]
    for _ in range(2):
        infer(bench)
    assert bench.stages[RUN].metrics.reasons == {"IDLE": 2}


def test_few_rows_of_other_sizes_share_a_batch_once_its_times_are_known() -> None:
    bench = StagedBench(max_batch=8)
    (worker,) = (w for w in bench.batcher.workers.by_number.values() if w.elements_time)
    assert worker.elements_time is not None
    for elements in (16, 64 * 16):  # a call takes a second, its elements hardly anything
        worker.elements_time.took(elements, SECOND + elements)
        worker.service_time.took(elements, SECOND + elements)
    for x in (10, 40, 12):
        bench.send(x)
    preprocess(bench)
    infer(bench)
    assert bench.stages[RUN].metrics.reasons == {"IDLE": 1}
    assert bench.stages[RUN].metrics.rows == 3
    segment = worker.worker_segment
    assert [b for b in segment.bucket_of[:8] if b] == [6], "up to 64 ids, by which they are cut"
    assert worker.elements_time.batches == 3
    bench.close()


def test_rows_of_one_batch_keep_the_order_of_service() -> None:
    bench = StagedBench(lanes=2)
    bench.workers[PRE]._worker_segment.ready.set(0)
    until_ns = bench.now_ns + 60 * SECOND  # the same for all: it does not order them
    for lane in (1, 0, 1):
        bench.send(lane + 1, lane=lane, within_ns=until_ns - bench.now_ns)
        bench.step()
    bench.workers[PRE]._worker_segment.ready.set(1)
    preprocess(bench)
    assert bench.stages[PRE].metrics.reasons == {"IDLE": 1}
    assert bench.stages[RUN].queue.view()[QueueColumn.LANE].tolist() == [1, 0, 1]
    bench.close()


def test_the_wait_of_a_stage_begins_with_it(bench: StagedBench) -> None:
    bench.send(1)
    bench.now_ns += 5 * SECOND
    preprocess(bench)
    entered_ns = bench.now_ns
    row = bench.stages[RUN].queue.view()[:, 0]
    assert row[QueueColumn.SINCE_NS] == entered_ns
    assert row[QueueColumn.SUBMIT_NS] < entered_ns, "max_wait_ms and the target count from there"
    bench.now_ns += SECOND
    infer(bench)
    (batch,) = bench.batcher.flight_recorder.last()[-1:]
    assert SECOND <= batch.queued_ns < SECOND + 10_000


def test_a_row_cancelled_between_the_stages_is_not_inferred(bench: StagedBench) -> None:
    gone, kept = bench.send(1), bench.send(2)
    bench.workers[RUN]._worker_segment.ready.set(0)
    bench.step()
    bench.workers[PRE].step()
    bench.clients[0].abandon(gone)  # while it is RUNNING, and the worker has looked
    bench.step()
    bench.run(PRE)
    bench.step()
    infer(bench)
    assert bench.answers(kept) == [1002]
    assert bench.stages[RUN].metrics.rows == 1


def test_a_row_that_is_late_between_the_stages_ends_as_late(bench: StagedBench) -> None:
    late = bench.send(1, within_ns=SECOND)
    preprocess(bench)
    bench.step(after_ns=2 * SECOND)
    with pytest.raises(PoolError) as caught:
        bench.answers(late)
    assert caught.value.code == "deadline_exceeded"
    assert bench.stages[RUN].metrics.ended(End.DEADLINE) == 1


@pytest.mark.parametrize("close", ["close_lane", "evict_lane"])
def test_a_lane_that_closes_takes_its_rows_from_both_stages(bench: StagedBench, close: str) -> None:
    for x in (1, 2):
        bench.send(x)
    preprocess(bench)
    bench.workers[PRE]._worker_segment.ready.set(0)
    bench.send(3)
    bench.step()
    assert (bench.waiting(PRE), bench.waiting(RUN)) == (1, 2)
    getattr(bench.batcher, close)(0)
    assert (bench.waiting(PRE), bench.waiting(RUN)) == (0, 0)
    assert bench.batcher.lanes.by_number == {}
    end = End.CLIENT_GONE if close == "close_lane" else End.NOT_READY
    assert [bench.stages[stage].metrics.ended(end) for stage in (PRE, RUN)] == [1, 2]


def test_a_successor_finds_every_row_in_its_stage(bench: StagedBench) -> None:
    requests = [bench.send(x) for x in (1, 2)]
    preprocess(bench)
    bench.workers[PRE]._worker_segment.ready.set(0)
    requests += [bench.send(40), bench.send(4)]
    bench.step()
    bench.succeed()
    assert (bench.waiting(PRE), bench.waiting(RUN)) == (2, 2)
    bench.workers[PRE]._worker_segment.ready.set(1)
    preprocess(bench)
    for _ in range(3):
        infer(bench)
    done = {request: request for request in bench.clients[0].reap(bench.now_ns)}
    assert len(done) == 4


def test_a_successor_finds_a_lone_row_in_the_first_stage(bench: StagedBench) -> None:
    bench.workers[PRE]._worker_segment.ready.set(0)
    bench.send(1)
    bench.step()
    bench.succeed()
    assert (bench.waiting(PRE), bench.waiting(RUN)) == (1, 0)


def test_a_successor_advances_what_was_finished(bench: StagedBench) -> None:
    """The former batcher died before it looked, after half of it, or just before it let go."""
    for died_after in (0, 1, 2):
        requests = bench.send(3, 5)
        bench.workers[RUN]._worker_segment.ready.set(0)
        bench.step()
        bench.run(PRE)
        lane = bench.batcher.lanes.by_number[0].lane
        for slot in requests.slots[:died_after]:
            lane.stage[slot] = int(RUN)
            lane.state[slot] = int(SlotState.QUEUED)
        bench.succeed()
        assert (bench.waiting(PRE), bench.waiting(RUN)) == (0, 2), died_after
        infer(bench)
        assert bench.answers(requests) == [1003, 1005]


def test_a_stage_that_a_client_wrote_costs_its_own_row_alone(bench: StagedBench) -> None:
    requests = bench.send(3), bench.send(5)
    for worker in bench.workers.values():
        worker._worker_segment.ready.set(0)
    bench.step()
    lane = bench.batcher.lanes.by_number[0].lane
    lane.stage[requests[0].slots[0]] = 77
    bench.succeed()
    assert (bench.waiting(PRE), bench.waiting(RUN)) == (2, 0), "an unknown one is the first"


def test_a_slot_that_is_used_again_begins_with_the_first_stage(bench: StagedBench) -> None:
    for x in range(40):  # the lane has 16 slots
        request = bench.send(x % 5)
        preprocess(bench)
        infer(bench)
        assert bench.answers(request) == [1000 + x % 5]
