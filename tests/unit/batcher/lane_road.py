"""A lane between one client and the batcher, without queue and workers."""

from __future__ import annotations

import numpy as np

from batchpool.batcher.lane import AdmittedLane
from batchpool.client.lane_client import LaneClient
from batchpool.client.pending_request import PendingRequest
from batchpool.core.scheduler.queue import I64, QueueColumn
from batchpool.core.tensors.rows import check_rows
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from tests.unit.lanes import new_lane, other_side

SLOTS = 16
SERIAL = 5
SPEC = ModelSpec(
    "ragged", "numpy", (Tensor("x", "float32", (Dim(100),)),), (Tensor("y", "float32", (1,)),)
)


class Road:
    """A lane client and the batcher's side of its lane. few: rows that need no arrays. runs: those
    in neighbouring slots need none of indices."""

    few = 8
    runs = True

    def __init__(
        self, *, own_flow: bool = False, few: int | None = None, runs: bool | None = None
    ) -> None:
        self.lane_client = LaneClient(new_lane(SPEC, SLOTS))
        self.rings = 0
        lane = other_side(self.lane_client.lane)
        few = self.few if few is None else few
        runs = self.runs if runs is None else runs
        self.side = AdmittedLane(
            3, SERIAL, 0, lane, self.ring, own_flow=own_flow, few=few, runs=runs
        )

    def ring(self) -> None:
        self.rings += 1

    def send(
        self, size: int = 1, priority: int = 0, flow: int = 0, deadline_ns: int = 9
    ) -> PendingRequest:
        rows = check_rows(SPEC, {"x": np.zeros((1, size), np.float32)})
        return self.lane_client.submit(rows, 7, deadline_ns, priority=priority, flow=flow)

    def take(self) -> I64:
        """The admitted rows of all that were sent, without the queue's own fields."""
        self.lane_client.flush()
        return self.side.admit()[: QueueColumn.BUCKET + 1].copy()
