"""Rows that a third stage answers: the hand-over after `infer`, with `preprocess` and without."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from batchpool.batcher.metrics import End
from batchpool.core.errors import InvalidInput, Overloaded, PoolError
from batchpool.core.layout.states import SlotState
from batchpool.core.scheduler.queue import QueueColumn
from batchpool.core.tensors.spec import ModelSpec
from batchpool.core.tensors.stages import Stage, stages_of
from tests.unit.batcher.staged_bench import AFTER, SECOND, WHOLE, StagedBench

MS = 1_000_000
PRE, RUN, POST = Stage.PREPROCESS, Stage.INFER, Stage.POSTPROCESS


@pytest.fixture(params=[WHOLE, AFTER], ids=["after both", "after infer alone"])
def bench(request: pytest.FixtureRequest) -> Iterator[StagedBench]:
    spec: ModelSpec = request.param
    made = StagedBench(spec=spec, few=0 if spec is AFTER else 8)
    set_ready(made, 0)
    yield made
    made.close()


def set_ready(bench: StagedBench, ready: int) -> None:
    for worker in bench.workers.values():
        worker._worker_segment.ready.set(ready)


def take(bench: StagedBench, stage: Stage) -> None:
    """Rows go through one stage, and wait for the next: no other worker is ready."""
    set_ready(bench, 0)
    bench.workers[stage]._worker_segment.ready.set(1)
    bench.step()
    while any(worker.batches for worker in bench.batcher.workers.by_number.values()):
        bench.run(stage)
        bench.step()
    set_ready(bench, 0)


def predict(bench: StagedBench) -> None:
    """Rows go through all stages but the last."""
    for stage in stages_of(bench.spec)[:-1]:
        take(bench, stage)


def waiting(bench: StagedBench) -> list[int]:
    return [bench.waiting(stage) for stage in stages_of(bench.spec)]


def test_rows_are_done_after_postprocess_and_counted_once(bench: StagedBench) -> None:
    request = bench.send(3, 5)
    predict(bench)
    assert bench.clients[0].reap(bench.now_ns) == []
    assert bench.waiting(POST) == 2 == sum(waiting(bench))
    take(bench, POST)
    assert bench.answers(request) == [1003, 1005]
    stages = bench.stages.values()
    assert [stage.metrics.admitted for stage in stages] == [2, *[0] * (len(stages) - 1)]
    assert [stage.metrics.ended(End.OK) for stage in stages] == [*[0] * (len(stages) - 1), 2]
    assert [stage.metrics.rows for stage in stages] == [2] * len(stages)
    assert bench.batcher.is_empty()


def test_a_row_that_postprocess_refuses_ends_alone(bench: StagedBench) -> None:
    bench.model.bad_after = (7,)
    good, bad, other = bench.send(1), bench.send(7), bench.send(2)
    predict(bench)
    take(bench, POST)
    client = bench.clients[0]
    assert client.reap(bench.now_ns) == [good, bad, other]
    with pytest.raises(InvalidInput, match="bad after 7"):
        client.result(bad, copy=True)
    assert client.result(other, copy=True)["y"].tolist() == [1002]
    post = bench.stages[POST].metrics
    assert (post.ended(End.INVALID_INPUT), post.ended(End.OK), post.completed) == (1, 2, 3)


def test_batches_of_postprocess_are_formed_by_the_sizes_of_the_predictions(
    bench: StagedBench,
) -> None:
    """54 and 52 gaps share a batch, 4 do not."""
    for x in (10, 60, 12):
        bench.send(x)
    predict(bench)
    buckets = bench.stages[POST].queue.view()[QueueColumn.BUCKET].tolist()
    of_slots = dict(zip(bench.stages[POST].queue.view()[QueueColumn.SLOT].tolist(), buckets,
                        strict=True))  # fmt: skip
    assert of_slots[0] == of_slots[2] != of_slots[1]


def test_failed_batches_of_infer_do_not_count_for_postprocess(bench: StagedBench) -> None:
    bench.send(1)
    for stage in stages_of(bench.spec)[:-2]:
        take(bench, stage)
    bench.step()
    lane = bench.batcher.lanes.by_number[0].lane
    bench.stages[RUN].queue.view()[QueueColumn.ATTEMPT] = lane.attempt[0] = 2
    take(bench, RUN)
    assert bench.stages[POST].queue.view()[QueueColumn.ATTEMPT].tolist() == [0]
    assert lane.attempt[0] == 0, "nor for a successor"


def test_a_successor_finds_every_row_in_its_stage(bench: StagedBench) -> None:
    stages = stages_of(bench.spec)
    sent = []
    for last in reversed(range(len(stages))):
        sent.append(bench.send(last + 1))
        for stage in stages[:last]:
            take(bench, stage)
        bench.step()
        expected = [int(at == last) for at in range(len(stages))]
        assert waiting(bench) == expected, last
        bench.succeed()
        assert waiting(bench) == expected, f"{last}, by the successor"
        for stage in stages[last:]:
            take(bench, stage)
        assert bench.answers(sent[-1]) == [1000 + last + 1]


def test_a_successor_tells_waiting_rows_of_all_stages_apart(bench: StagedBench) -> None:
    stages = stages_of(bench.spec)
    requests = [bench.send(x) for x in range(1, len(stages) + 1)]
    bench.step()
    lane = bench.batcher.lanes.by_number[0].lane
    for request, stage in zip(requests, stages, strict=True):
        lane.stage[request.slots[0]] = int(stage)
    bench.succeed()
    assert waiting(bench) == [1] * len(stages)


def test_a_successor_advances_what_infer_has_finished(bench: StagedBench) -> None:
    """The former batcher died before it looked, after half of it, or just before it let go."""
    before, last = stages_of(bench.spec)[:-2], Stage.INFER
    for died_after in (0, 1, 2):
        request = bench.send(3, 5)
        for stage in before:
            take(bench, stage)
        bench.workers[last]._worker_segment.ready.set(1)
        bench.step()
        bench.run(last)
        set_ready(bench, 0)
        lane = bench.batcher.lanes.by_number[0].lane
        for slot in request.slots[:died_after]:
            lane.stage[slot] = int(POST)
            lane.state[slot] = int(SlotState.QUEUED)
        bench.succeed()
        assert bench.waiting(POST) == 2 == sum(waiting(bench)), died_after
        take(bench, POST)
        assert bench.answers(request) == [1003, 1005]


def test_a_stage_that_a_client_wrote_costs_its_own_row_alone(bench: StagedBench) -> None:
    """Its words name no stage, or one that the row has not come to."""
    requests = bench.send(3), bench.send(5), bench.send(7)
    bench.step()
    lane = bench.batcher.lanes.by_number[0].lane
    lane.stage[requests[0].slots[0]] = 77
    lane.stage[requests[1].slots[0]] = int(POST)
    bench.succeed()
    found = waiting(bench)
    assert (found[0], found[-1]) == (2, 1), "an unknown one is the first"
    take(bench, POST)
    (done,) = bench.clients[0].reap(bench.now_ns)
    assert done == requests[1], "with whatever an earlier use of its slot has left there"


def test_a_row_cancelled_while_infer_runs_is_not_postprocessed(bench: StagedBench) -> None:
    gone, kept = bench.send(1), bench.send(2)
    for stage in stages_of(bench.spec)[:-2]:
        take(bench, stage)
    bench.workers[RUN]._worker_segment.ready.set(1)
    bench.step()
    bench.workers[RUN].step()
    bench.clients[0].abandon(gone)  # while it is RUNNING, and the worker has looked
    bench.step()
    bench.run(RUN)
    set_ready(bench, 0)
    bench.step()
    take(bench, POST)
    assert bench.answers(kept) == [1002]
    assert bench.stages[POST].metrics.rows == 1


def measure(bench: StagedBench) -> None:
    """Batches of postprocess take 80 ms, the others 20."""
    for worker in bench.batcher.workers.by_number.values():
        is_last = bench.batcher.models[worker.model] is bench.stages[POST]
        for n in (1, 4) * 10:
            worker.service_time.took(n, (80 if is_last else 20) * MS)


def test_a_deadline_leaves_time_for_postprocess(bench: StagedBench) -> None:
    """A row waits for others, until its deadline leaves just the time to run both stages."""
    bench.send(1, within_ns=SECOND)
    for stage in stages_of(bench.spec)[:-2]:
        take(bench, stage)
    run = bench.stages[RUN]
    run.limits = replace(run.limits, max_wait_ns=10 * SECOND)
    measure(bench)
    bench.workers[RUN]._worker_segment.ready.set(1)
    lane = bench.batcher.lanes.by_number[0]
    bench.step(after_ns=850 * MS)
    assert lane.running == 0
    bench.step(after_ns=60 * MS)
    assert (lane.running, run.metrics.reasons) == (1, {"DEADLINE": 1})


@pytest.mark.parametrize("waited_ms", [30, 110])
def test_the_latency_target_has_room_for_postprocess(bench: StagedBench, waited_ms: int) -> None:
    """Of 200 ms it takes 80, so a row that infer would end after 130 is late already."""
    row = bench.send(1)
    for stage in stages_of(bench.spec)[:-2]:
        take(bench, stage)
    run = bench.stages[RUN]
    run.limits = replace(run.limits, adaptive=True, target_ns=200 * MS)
    measure(bench)
    bench.workers[RUN]._worker_segment.ready.set(1)
    bench.step(after_ns=waited_ms * MS)
    if waited_ms > 50:
        with pytest.raises(Overloaded, match="target_p99_ms = 200"):
            bench.answers(row)
    else:
        assert bench.batcher.lanes.by_number[0].running == 1


def test_a_row_that_is_late_before_postprocess_ends_as_late(bench: StagedBench) -> None:
    late = bench.send(1, within_ns=SECOND)
    predict(bench)
    bench.step(after_ns=2 * SECOND)
    with pytest.raises(PoolError) as caught:
        bench.answers(late)
    assert caught.value.code == "deadline_exceeded"
    assert bench.stages[POST].metrics.ended(End.DEADLINE) == 1


@pytest.mark.parametrize("close", ["close_lane", "evict_lane"])
def test_a_lane_that_closes_takes_its_rows_from_all_stages(bench: StagedBench, close: str) -> None:
    bench.send(1)
    bench.send(2)
    predict(bench)
    bench.send(3)
    bench.step()
    assert waiting(bench)[0] == 1
    assert waiting(bench)[-1] == 2
    getattr(bench.batcher, close)(0)
    assert sum(waiting(bench)) == 0
    assert bench.batcher.lanes.by_number == {}
    end = End.CLIENT_GONE if close == "close_lane" else End.NOT_READY
    ended = [bench.stages[stage].metrics.ended(end) for stage in stages_of(bench.spec)]
    assert (ended[0], ended[-1], sum(ended)) == (1, 2, 3)


def test_a_slot_that_is_used_again_begins_with_the_first_stage(bench: StagedBench) -> None:
    for x in range(40):  # the lane has 16 slots
        request = bench.send(x % 5)
        predict(bench)
        take(bench, POST)
        assert bench.answers(request) == [1000 + x % 5]
