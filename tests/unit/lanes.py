"""Lanes and worker segments on real shared memory, all sides in one process."""

from __future__ import annotations

import os

from batchpool.core.layout.segments import Layout, lane_layout, worker_layout
from batchpool.core.layout.states import LaneGate
from batchpool.core.tensors.spec import ModelSpec
from batchpool.shm.lane import Lane
from batchpool.shm.segment import Segment, create, map_checked
from batchpool.shm.worker_segment import WorkerSegment


def segment_of(layout: Layout) -> Segment:
    fd = create(layout, sealed=True)
    try:
        return map_checked(fd, layout)
    finally:
        os.close(fd)


def new_lane(spec: ModelSpec, slots: int, gate: LaneGate = LaneGate.OPEN) -> Lane:
    """A lane as its client maps it, with the batcher's gate already set."""
    layout = lane_layout(spec, slots)
    lane = Lane(spec, segment_of(layout), layout)
    lane.gate.set(int(gate))
    return lane


def other_side(lane: Lane) -> Lane:
    """A lane over this memory as another process would bind it, with its own view objects."""
    return Lane(lane.spec, lane.memory, lane.layout)


def new_worker_segment(max_batch: int, max_lanes: int = 8) -> WorkerSegment:
    layout = worker_layout(max_batch, max_lanes)
    return WorkerSegment(segment_of(layout), layout)
