"""Moves with one rule removed at a time; as tests/sim/mutations_batcher.py."""

from __future__ import annotations

from typing import Any

from batchpool.batcher.batcher import Batcher
from batchpool.batcher.lane import AdmittedLane
from batchpool.client.lane_client import LaneClient
from batchpool.core.layout.states import LaneGate
from batchpool.supervisor.reload.lane_migration import LaneMigration, missing_lanes
from tests.sim import lane_migration
from tests.sim.lane_migration import Moving, SimEntry
from tests.sim.mutations import Patch


def lane_closed_before_its_late_rows_are_served(patch: Patch) -> None:
    """An empty ring is taken for a client that has left."""
    init = LaneMigration.__init__

    def hasty(self: LaneMigration, lanes: Any, until_ns: int) -> None:
        lanes = list(lanes)
        init(self, lanes, until_ns)
        for lane in lanes:
            self.left(lane)

    patch.setattr(LaneMigration, "__init__", hasty)


def client_claims_behind_moved(patch: Patch) -> None:
    patch.setattr(LaneClient, "check_gate", lambda self, now_ns: None)


def one_client_is_not_sent_its_lane(patch: Patch) -> None:
    patch.setattr(lane_migration, "missing_lanes", lambda *known: missing_lanes(*known)[1:])


def client_leaves_with_rows_under_way(patch: Patch) -> None:
    """It says that it has left once it knows of the move."""
    look_again = LaneClient._look_again

    def hasty(self: LaneClient, finished: Any) -> None:
        look_again(self, finished)
        if self.has_moved:
            self.allocator.claimed = 0

    patch.setattr(LaneClient, "_look_again", hasty)


def client_waits_for_a_batcher_that_has_left(patch: Patch) -> None:
    patch.setattr(LaneClient, "_take_back", lambda self: None)


def clients_are_not_told_of_the_gate(patch: Patch) -> None:
    """One that claims nothing keeps its lane, and the old workers."""
    patch.setattr(AdmittedLane, "close_gate", lambda self, gate: self.set_gate(gate))


def takeover_opens_moved_gates(patch: Patch) -> None:
    add_lane = Batcher.add_lane

    def open_all(self: Batcher, lane: AdmittedLane, *, moved: bool = False) -> None:
        add_lane(self, lane)
        lane.set_gate(LaneGate.OPEN)

    patch.setattr(Batcher, "add_lane", open_all)


def evicted_lane_is_unmapped_while_its_rows_run(patch: Patch) -> None:
    evict_lane = Batcher.evict_lane

    def hasty(self: Batcher, number: int) -> None:
        lane = self.lanes.by_number.get(number)
        if lane is not None:
            lane.running = 0
        evict_lane(self, number)

    patch.setattr(Batcher, "evict_lane", hasty)


def old_workers_end_at_the_commit(patch: Patch) -> None:
    commit = Moving._commit

    def hasty(self: Moving, entry: SimEntry) -> None:
        commit(self, entry)
        assert self.leaving is not None
        self.release(self.leaving)

    patch.setattr(Moving, "_commit", hasty)


def old_gates_move_before_the_new_ones_are_open(patch: Patch) -> None:
    patch.setattr(Moving, "_may_commit", lambda self, entry: True)
