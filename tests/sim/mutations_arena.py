"""The arena of a lane with one rule removed at a time; as in mutations.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from batchpool.client.arena_lane_client import ArenaLaneClient, ArenaRows
from batchpool.client.lane_arena import LaneArena, Runs
from batchpool.client.lane_client import LaneClient
from batchpool.client.pending_request import PendingRequest
from batchpool.core.layout.free_runs import FreeRuns
from tests.sim.mutations import Patch


def run_is_free_when_its_row_is_cancelled(patch: Patch) -> None:
    abandon = LaneClient.abandon

    def hasty(self: ArenaLaneClient, pending: PendingRequest) -> None:
        abandon(self, pending)
        self.arena.free(pending.slots, pending.flow)

    patch.setattr(ArenaLaneClient, "abandon", hasty)


def runs_are_free_when_the_first_row_is_done(patch: Patch) -> None:
    complete = ArenaLaneClient._complete

    def hasty(
        self: ArenaLaneClient, tickets: Iterable[tuple[int, int]], finished: list[PendingRequest]
    ) -> None:
        known = list(tickets)
        owners = {id(p): p for slot, _ in known if (p := self._owner[slot]) is not None}
        complete(self, known, finished)
        for pending in owners.values():
            self.arena.free(pending.slots, pending.flow)

    patch.setattr(ArenaLaneClient, "_complete", hasty)


def run_is_given_to_two_rows(patch: Patch) -> None:
    patch.setattr(FreeRuns, "take", lambda self, size, keep=0: 0)
    patch.setattr(FreeRuns, "give_back", lambda self, place, size: None)


def runs_of_abandoned_rows_are_not_freed(patch: Patch) -> None:
    patch.setattr(ArenaLaneClient, "_free", LaneClient._free)


def place_is_written_after_the_entry(patch: Patch) -> None:
    submit = ArenaLaneClient.submit

    def hasty(self: ArenaLaneClient, *args: Any, **more: Any) -> PendingRequest:
        late: list[tuple[Any, Runs]] = []
        place = LaneArena.place
        with patch.context() as without:
            without.setattr(LaneArena, "place", lambda _, where, runs: late.append((where, runs)))
            pending = submit(self, *args, **more)
        self.flush()
        for where, runs in late:
            place(self.arena, where, runs)
        return pending

    patch.setattr(ArenaLaneClient, "submit", hasty)


def rows_are_written_where_the_last_ones_stood(patch: Patch) -> None:
    write = ArenaRows.write

    def stale(self: ArenaRows, where: Any, rows: Any) -> None:
        runs, self.runs = self.runs, getattr(self, "_before", self.runs)
        self._before = runs  # type: ignore[attr-defined]
        if len(self.runs.places) != len(runs.places):
            self.runs = runs
        write(self, where, rows)

    patch.setattr(ArenaRows, "write", stale)


def slots_keep_the_runs_of_their_last_use(patch: Patch) -> None:
    """`free` gives back what it gave back before."""

    def free(self: LaneArena, slots: Sequence[int], flow: int) -> None:
        for slot in slots:
            self.allocator.used -= self._sizes[slot]
            self.allocator._free._places[:] = [0]
            self.allocator._free._sizes[:] = [self.allocator.nbytes]
            self._sizes[slot] = 0

    patch.setattr(LaneArena, "free", free)
