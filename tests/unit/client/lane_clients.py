"""A lane client with the other side of its lane beside it, both in one process."""

from __future__ import annotations

from typing import Any

import numpy as np

from batchpool.batcher.lane import AdmittedLane
from batchpool.client.lane_client import LaneClient
from batchpool.client.pending_request import PendingRequest
from batchpool.core.errors import Status
from batchpool.core.layout.states import LaneGate
from batchpool.core.scheduler.queue import QueueColumn
from batchpool.core.tensors.rows import Rows, check_rows
from tests.unit.lanes import new_lane, other_side
from tests.unit.specs import AFFINE

S = 1_000_000_000
MS = 1_000_000
NOW = 1_000 * S
LATER = NOW + 30 * S


class Pool:
    """The other side of the lane: admits, computes y = 2x + 1, completes."""

    def __init__(self, lane_client: LaneClient) -> None:
        self.rings = 0
        self.lane = AdmittedLane(0, 1, 0, other_side(lane_client.lane), self._ring, own_flow=False)
        self.rows: list[tuple[int, int]] = []

    def _ring(self) -> None:
        self.rings += 1

    def admit(self) -> Any:
        rows = self.lane.admit()
        tickets = zip(
            rows[QueueColumn.SLOT].tolist(), rows[QueueColumn.SEQUENCE].tolist(), strict=True
        )
        self.rows += tickets
        return rows

    def finish(self, *tickets: tuple[int, int], status: Status = Status.OK, text: str = "") -> None:
        lane = self.lane.lane
        slots = np.array([slot for slot, _ in tickets])
        for slot in slots.tolist():
            lane.outputs["y"].values[slot] = 2 * lane.inputs["x"].values[slot] + 1
        lane.write_status(slots, status, text)
        self.lane.complete(slots, np.array([use for _, use in tickets]))

    def finish_all(self) -> None:
        self.admit()
        if self.rows:
            self.finish(*self.rows)
            self.rows.clear()


def new_lane_client(slots: int = 10, gate: LaneGate = LaneGate.OPEN, **options: Any) -> LaneClient:
    return LaneClient(new_lane(AFFINE, slots, gate), **options)


def rows_of(n: int, first: float = 0) -> Rows:
    x = np.arange(4 * n, dtype=np.float32).reshape(n, 4) + np.float32(first)
    return check_rows(AFFINE, {"x": x})


def send(
    lane_client: LaneClient, n: int = 1, first: float = 0, deadline_ns: int = LATER
) -> PendingRequest:
    pending = lane_client.submit(rows_of(n, first), NOW, deadline_ns, tag=first)
    lane_client.flush()
    return pending


def answer(n: int, first: float = 0) -> list[list[float]]:
    values: list[list[float]] = (rows_of(n, first).tensors["x"] * 2 + 1).tolist()
    return values
