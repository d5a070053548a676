"""Rows that their clients cancel while they are queued."""

from __future__ import annotations

from batchpool.batcher.batcher import Batcher
from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.metrics import End
from batchpool.batcher.model_queue import ModelQueue
from batchpool.core.errors import Status
from batchpool.core.scheduler.decide import Limits
from batchpool.core.scheduler.queue import QueueColumn
from tests.unit.client.lane_clients import LATER, NOW, new_lane_client, rows_of
from tests.unit.lanes import other_side


def test_a_cancelled_row_ends_as_cancelled_and_one_that_is_late_too_as_late() -> None:
    """Clients cancel what they no longer wait for, also because it is late."""
    model = ModelQueue("m", Limits(8, 0))
    batcher = Batcher([model], 8)
    lane_client = new_lane_client(16)
    batcher.add_lane(AdmittedLane(0, 1, 0, other_side(lane_client.lane), lambda: None))
    late, early, kept = (
        lane_client.submit(rows_of(1), NOW, deadline_ns) for deadline_ns in (NOW + 10, LATER, LATER)
    )
    lane_client.flush()
    batcher.step(NOW)
    for pending in (late, early):
        lane_client.abandon(pending)
    batcher.step(NOW + 10)
    assert model.metrics.ended(End.DEADLINE) == 1
    assert model.metrics.ended(End.CANCELLED) == 1
    statuses = [lane_client.lane.status[pending.slots[0]] for pending in (late, early)]
    assert statuses == [Status.DEADLINE, Status.CANCELLED]
    assert [int(slot) for slot in model.queue.view()[QueueColumn.SLOT]] == list(kept.slots)
