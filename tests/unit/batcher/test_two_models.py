"""Two models in one batcher: what fills the one's lanes and workers delays nobody of the other."""

from __future__ import annotations

import numpy as np

from batchpool.batcher.batcher import Batcher
from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.model_queue import ModelQueue
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.core.layout.states import BatchOutcome
from batchpool.core.scheduler.decide import Limits
from batchpool.core.tensors.spec import Tensor
from tests.unit.core.scheduler.decisions import NOW
from tests.unit.core.scheduler.queued import MS, rows_of
from tests.unit.lanes import new_lane, new_worker_segment
from tests.unit.specs import model

SLOW, FAST = 0, 1


def two_models() -> Batcher:
    """A worker and a lane of 64 slots for each; batches of up to eight rows, no wait."""
    batcher = Batcher([ModelQueue("slow", Limits(8, 0)), ModelQueue("fast", Limits(8, 0))], 2)
    for entry in (SLOW, FAST):
        lane = new_lane(model(Tensor("x", "float32", (4,))), 64)
        batcher.add_lane(AdmittedLane(entry, 1, entry, lane, lambda: None, own_flow=False))
        proxy = WorkerProxy(entry, entry, new_worker_segment(8, 2), lambda: None)
        proxy.worker_segment.ready.set(1)
        proxy.worker_segment.lanes[:] = 1
        proxy.worker_segment.outcome[:] = int(BatchOutcome.OK)
        batcher.add_worker(proxy)
        proxy.service_time.took(8, 10 * MS)
    return batcher


def send(batcher: Batcher, entry: int, n: int, now_ns: int) -> None:
    rows = rows_of(n, name=np.arange(n).tolist(), submit=now_ns, lane=entry)
    batcher.models[entry].queue.append(rows)
    batcher.step(now_ns)


def test_a_model_that_is_stuck_and_full_delays_no_row_of_another() -> None:
    """C67: each model has lanes of its own."""
    batcher = two_models()
    send(batcher, SLOW, 10_000, NOW)
    slow, fast = batcher.workers.by_number[SLOW], batcher.workers.by_number[FAST]
    stuck = slow.in_flight
    assert stuck == batcher.models[SLOW].limits.depth
    for i in range(4):
        now_ns = NOW + i * 1000 * MS
        send(batcher, FAST, 1, now_ns)
        assert fast.in_flight == 1, "it left in the step that it came in"
        (batch,) = fast.batches.values()
        assert batch.sent_ns == now_ns
        assert len(batcher.models[FAST].queue) == 0
        fast.worker_segment.launched.set(batch.token)
        fast.worker_segment.outcome_of[batch.record] = int(BatchOutcome.OK)
        fast.worker_segment.finished_of[batch.record] = batch.token
        assert fast.has_finished(batch)
        batcher.completion.finish_batch(fast, batch)
        assert slow.in_flight == stuck
