"""Rows of a lane with an arena, as the batcher admits them."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from batchpool.batcher.lane import AdmittedLane
from batchpool.client.arena_lane_client import lane_client_of
from batchpool.core.layout.arena import Arena
from batchpool.core.layout.segments import lane_layout
from batchpool.core.layout.states import LaneGate, SlotState
from batchpool.core.scheduler.queue import QueueColumn
from batchpool.core.tensors.rows import check_rows
from batchpool.core.tensors.spec import Tensor
from batchpool.shm.lane import Lane
from tests.unit.lanes import other_side, segment_of
from tests.unit.specs import model

SLOTS, ARENA_BYTES = 16, 1024
SPEC = model(Tensor("x", "bytes", max_bytes=100))
NOW = 10**9


class Road:
    """A lane client with an arena, and the batcher's side of its lane."""

    def __init__(self) -> None:
        layout = lane_layout(SPEC, SLOTS, Arena(("x",), ARENA_BYTES))
        self.lane = Lane(SPEC, segment_of(layout), layout)
        self.lane.gate.set(int(LaneGate.OPEN))
        self.client = lane_client_of(self.lane)
        self.damage: list[tuple[int, str]] = []
        self.side = AdmittedLane(
            3, 5, 0, other_side(self.lane), lambda: None,
            report_damage=lambda number, text: self.damage.append((number, text)),
        )  # fmt: skip

    def send(self, n: int) -> None:
        rows = check_rows(SPEC, {"x": [b"a" * 100] * n})
        self.client.submit(rows, NOW, NOW + 1, priority=200)


@pytest.mark.parametrize("n", [1, 3])
def test_rows_come_in_as_through_any_lane(n: int) -> None:
    road = Road()
    road.send(n)
    road.client.flush()
    rows = road.side.admit()
    assert rows.shape[1] == n
    assert rows[QueueColumn.PRIORITY].tolist() == [200] * n
    assert road.lane.state[rows[QueueColumn.SLOT]].tolist() == [SlotState.QUEUED] * n
    assert road.damage == []


@pytest.mark.parametrize("n", [1, 7])
def test_a_lane_that_is_dropped_is_freed_at_once(n: int) -> None:
    """Left to the garbage collector, its memory and its client's bell would stay until it runs."""
    road = Road()
    road.send(n)
    road.client.flush()
    assert road.side.admit().shape[1] == n
    side = weakref.ref(road.side)
    gc.disable()
    try:
        del road.side
        assert side() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("offset", [ARENA_BYTES, 1, 2**64 - 128])
def test_a_row_that_reaches_out_of_the_arena_breaks_the_lane(n: int, offset: int) -> None:
    road = Road()
    road.send(n)
    road.lane.arena_inputs[0].offsets[:] = np.uint64(offset)
    road.client.flush()
    assert road.side.admit().shape[1] == 0
    assert (road.side.broken, road.damage) == (
        True,
        [(3, "a row of 'x' reaches out of the arena")],
    )
    assert road.lane.gate.get() == LaneGate.BROKEN
