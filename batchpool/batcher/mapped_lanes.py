"""The batcher's lanes: adding, closing and unmapping them, and splitting rows by lane."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import numpy as np

from batchpool.batcher.lane import AdmittedLane
from batchpool.core.few_rows import FEW_ROWS
from batchpool.core.layout.states import LaneGate
from batchpool.core.scheduler.queue import I64, QueueColumn

LaneParts = list[tuple[AdmittedLane, I64]]  # the rows of each lane among some, [QUEUE_COLUMNS, n]


class MappedLanes:
    """The lanes that are mapped in the batcher.

    by_number: the lanes. serials: the serial of the lane with each number, 0 where there is none.
    version: rises whenever a lane is added or unmapped. lane_closed: called with the number of a
    lane that was unmapped.
    """

    def __init__(self, max_lanes: int, lane_closed: Callable[[int], None]) -> None:
        self.by_number: dict[int, AdmittedLane] = {}
        self.serials: I64 = np.zeros(max_lanes, dtype=np.int64)
        self.version = 0
        self._lane_closed = lane_closed

    def add(self, lane: AdmittedLane, *, draining: bool, moved: bool) -> None:
        """Add a lane and set its gate, so that its client may claim unless the lane has moved."""
        assert lane.number not in self.by_number, f"lane {lane.number} is here already"
        self.by_number[lane.number] = lane
        self.serials[lane.number] = lane.serial
        self.version += 1
        gate = lane.lane.gate.get()
        if gate != LaneGate.GONE and (moved or gate == LaneGate.MOVED):
            lane.close_gate(LaneGate.MOVED)
        elif gate != LaneGate.GONE:
            lane.set_gate(LaneGate.DRAINING if draining else LaneGate.OPEN)
            lane.ring_client()

    def move(self, numbers: Iterable[int]) -> None:
        """Close the gates of lanes whose clients have been given other lanes."""
        for number in numbers:
            if number in self.by_number:
                self.by_number[number].close_gate(LaneGate.MOVED)

    def start_closing(self, number: int, *, evict: bool) -> AdmittedLane | None:
        """Mark a lane as closing. evict: its client may be alive, and finds GONE at the gate.

        None if the lane is not here; it is reported as closed then.
        """
        lane = self.by_number.get(number)
        if lane is None:
            self._lane_closed(number)
            return None
        lane.closing = True
        if evict:
            lane.evicted = True
        return lane

    def unmap_if_idle(self, lane: AdmittedLane) -> None:
        """Unmap a closing lane, unless rows of it are RUNNING."""
        if lane.closing and lane.running == 0:
            if lane.evicted:
                lane.close_gate(LaneGate.GONE)
            del self.by_number[lane.number]
            self.serials[lane.number] = 0
            self.version += 1
            self._lane_closed(lane.number)

    def set_draining(self, draining: bool) -> None:
        """Stop or allow new claims in all lanes that are not moved, gone or broken."""
        before, after = LaneGate.OPEN, LaneGate.DRAINING
        if not draining:
            before, after = after, before
        for lane in self.by_number.values():
            if lane.lane.gate.get() == before:
                lane.set_gate(after)
                if not draining:
                    lane.ring_client()

    def by_lane(self, rows: I64) -> LaneParts:
        """Split rows [QUEUE_COLUMNS, n], which are sorted by lane, into (lane, its rows)."""
        n = rows.shape[1]
        if n == 0:
            return []
        first = rows.item(QueueColumn.LANE, 0)
        if first == rows.item(QueueColumn.LANE, n - 1):
            return [(self.by_number[first], rows)]
        numbers = rows[QueueColumn.LANE]
        if n <= FEW_ROWS:
            listed = numbers.tolist()
            cuts = [at for at in range(1, n) if listed[at] != listed[at - 1]]
        else:
            cuts = ((numbers[1:] != numbers[:-1]).nonzero()[0] + 1).tolist()
        return [
            (self.by_number[numbers.item(start)], rows[:, start:stop])
            for start, stop in pairwise([0, *cuts, n])
        ]

    def stop_running(self, lane: AdmittedLane, n: int) -> None:
        """n rows of a lane are not RUNNING any more; unmap it if it is closing and has no other."""
        lane.running -= n
        if lane.closing:
            self.unmap_if_idle(lane)
