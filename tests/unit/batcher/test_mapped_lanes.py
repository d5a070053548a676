"""The batcher's lanes: their gates, their bells, and rows split by lane."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.mapped_lanes import MappedLanes
from batchpool.core.layout.states import LaneGate
from batchpool.core.scheduler.queue import I64
from tests.unit.batcher.batcher_bench import tickets
from tests.unit.core.scheduler.queued import rows_of
from tests.unit.lanes import new_lane
from tests.unit.specs import AFFINE


class Lanes:
    """The lanes of a batcher. rung: the numbers of the clients that were rung. gone: of the lanes
    that were unmapped."""

    def __init__(self) -> None:
        self.rung: list[int] = []
        self.gone: list[int] = []
        self.mapped = MappedLanes(8, self.gone.append)

    def add(
        self,
        number: int,
        gate: LaneGate = LaneGate.CLOSED,
        *,
        draining: bool = False,
        moved: bool = False,
    ) -> AdmittedLane:
        side = new_lane(AFFINE, 4, gate)
        lane = AdmittedLane(number, 10 + number, 0, side, lambda: self.rung.append(number))
        self.mapped.add(lane, draining=draining, moved=moved)
        return lane

    def gates(self) -> dict[int, LaneGate]:
        return {n: LaneGate(lane.lane.gate.get()) for n, lane in self.mapped.by_number.items()}


@pytest.fixture
def lanes() -> Lanes:
    return Lanes()


def rows(*numbers: int) -> I64:
    """One row of each of these lanes; its slot is its place."""
    found = rows_of(len(numbers), lane=list(numbers))
    found[1] = range(len(numbers))
    return found


@pytest.mark.parametrize(("draining", "gate"), [(False, LaneGate.OPEN), (True, LaneGate.DRAINING)])
def test_a_client_hears_that_its_lane_is_mapped(
    lanes: Lanes, draining: bool, gate: LaneGate
) -> None:
    lanes.add(3, draining=draining)
    assert lanes.gates() == {3: gate}
    assert lanes.rung == [3]
    assert lanes.mapped.serials.tolist() == [0, 0, 0, 13, 0, 0, 0, 0]


def test_a_client_that_was_given_another_lane_hears_that_too(lanes: Lanes) -> None:
    lane = lanes.add(3, moved=True)
    assert lanes.rung == [3]
    assert lane.lane.generation.get() == 1


def test_a_lane_that_its_client_has_taken_back_is_left_as_it_is(lanes: Lanes) -> None:
    lane = lanes.add(3, LaneGate.GONE, moved=True)
    assert (lanes.gates(), lanes.rung) == ({3: LaneGate.GONE}, [])
    assert lane.lane.generation.get() == 0


def test_a_drain_shuts_the_open_lanes_only_and_its_end_opens_them_and_rings(lanes: Lanes) -> None:
    """A client that waits for room is woken when there is some, and by nothing before."""
    for number in (1, 2, 3):
        lanes.add(number)
    lanes.mapped.move([2])
    lanes.mapped.by_number[3].set_gate(LaneGate.BROKEN)
    lanes.rung.clear()
    lanes.mapped.set_draining(True)
    shut = {2: LaneGate.MOVED, 3: LaneGate.BROKEN}
    assert (lanes.gates(), lanes.rung) == (shut | {1: LaneGate.DRAINING}, [])
    lanes.mapped.set_draining(True)
    assert lanes.gates() == shut | {1: LaneGate.DRAINING}
    lanes.mapped.set_draining(False)
    assert (lanes.gates(), lanes.rung) == (shut | {1: LaneGate.OPEN}, [1])


def test_a_version_names_one_set_of_lanes(lanes: Lanes) -> None:
    versions = [lanes.mapped.version]
    lane = lanes.add(1)
    versions.append(lanes.mapped.version)
    lanes.add(2)
    versions.append(lanes.mapped.version)
    assert lanes.mapped.start_closing(1, evict=False) is lane
    lanes.mapped.unmap_if_idle(lane)
    versions.append(lanes.mapped.version)
    assert versions == sorted(set(versions))
    assert lanes.mapped.serials.tolist() == [0, 0, 12, 0, 0, 0, 0, 0]
    assert lanes.gone == [1]


def test_a_closing_lane_is_unmapped_when_its_last_row_stops_running(lanes: Lanes) -> None:
    lane = lanes.add(1)
    lane.running = 3
    lanes.mapped.stop_running(lane, 1)
    lanes.mapped.start_closing(1, evict=False)
    lanes.mapped.unmap_if_idle(lane)
    lanes.mapped.stop_running(lane, 1)
    assert (lanes.gone, list(lanes.mapped.by_number)) == ([], [1])
    lanes.mapped.stop_running(lane, 1)
    assert (lanes.gone, list(lanes.mapped.by_number)) == ([1], [])


def test_a_lane_without_running_rows_is_not_unmapped_unless_it_is_closing(lanes: Lanes) -> None:
    lane = lanes.add(1)
    lanes.mapped.unmap_if_idle(lane)
    assert (lanes.gone, list(lanes.mapped.by_number)) == ([], [1])


@pytest.mark.parametrize("evict", [True, False])
def test_only_an_evicted_client_is_told(lanes: Lanes, evict: bool) -> None:
    lane = lanes.add(1)
    lanes.rung.clear()
    lanes.mapped.start_closing(1, evict=evict)
    lanes.mapped.unmap_if_idle(lane)
    assert lane.lane.gate.get() == (LaneGate.GONE if evict else LaneGate.OPEN)
    assert lanes.rung == ([1] if evict else [])


@pytest.mark.parametrize(
    ("of", "parts"),
    [
        ((), []),
        ((2,), [(2, [0])]),
        ((2, 2, 2), [(2, [0, 1, 2])]),
        ((1, 2), [(1, [0]), (2, [1])]),
        ((1, 1, 2, 5, 5, 5), [(1, [0, 1]), (2, [2]), (5, [3, 4, 5])]),
    ],
)
def test_rows_are_split_by_lane(
    lanes: Lanes, of: Sequence[int], parts: list[tuple[int, list[int]]]
) -> None:
    for number in (1, 2, 5):
        lanes.add(number)
    found = list(lanes.mapped.by_lane(rows(*of)))
    assert [(lane.number, [slot for _, slot in tickets(part)]) for lane, part in found] == parts
