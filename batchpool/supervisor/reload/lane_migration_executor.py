"""Carries out the decisions of `batchpool/supervisor/reload/lane_migration.py` on real lanes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from batchpool.core.errors import PoolError, StartError
from batchpool.core.layout.states import LaneGate
from batchpool.supervisor.fleet.processes import ProcessFleet
from batchpool.supervisor.plan.plan import ModelPlan, Plan
from batchpool.supervisor.reload.lane_migration import (
    LaneMigration,
    MigrationAction,
    missing_lanes,
)
from batchpool.supervisor.resources.client_connection import ClientConnection
from batchpool.supervisor.resources.lane_table import LaneEntry
from batchpool.supervisor.resources.resources import PoolResources

_LOG = logging.getLogger("batchpool.supervisor")
_OPENED = (LaneGate.OPEN, LaneGate.DRAINING)


class LaneMigrationExecutor:
    """The entries and lanes of one reload, from a plan to the next one, which is `revised`.

    clients: returns all clients that are attached now. failure: the reason why the reload cannot
    be committed, "" if there is none.
    """

    def __init__(
        self,
        old: Plan,
        new: Plan,
        resources: PoolResources,
        process_fleet: ProcessFleet,
        clients: Callable[[], Sequence[ClientConnection]],
        clock_ns: Callable[[], int],
    ) -> None:
        self._resources = resources
        self._process_fleet = process_fleet
        self._clients = clients
        self._clock_ns = clock_ns
        self._drain_ns = int(new.server.drain_s * 1e9)
        self._coming = {m.entry: m for m in new.models if m.entry not in old.entries}
        self._leaving = {m.entry: m for m in old.models if m.entry not in new.entries}
        by_name = {model.spec.name: entry for entry, model in self._coming.items()}
        self._replaced_by = {
            entry: by_name[model.spec.name]
            for entry, model in self._leaving.items()
            if model.spec.name in by_name
        }
        self._migrations: dict[int, LaneMigration] = {}
        self._retiring: dict[int, ModelPlan] = {}
        self.failure = ""
        for model in self._coming.values():
            process_fleet.add_entry(model)

    # -- until the commit -----------------------------------------------------------------

    def ready(self) -> bool:
        """Open the lanes that clients lack; True when all new lanes are open."""
        lanes = self._resources.lanes
        clients = {client.owner: client for client in self._clients()}
        known = [(client.owner, client.frontend is not None) for client in clients.values()]
        has = [(lane.owner, lane.model) for lane in lanes if not lane.closing]
        try:
            for missing in missing_lanes(known, has, list(self._coming), self._replaced_by):
                client, model = clients[missing.owner], self._coming[missing.entry]
                self._process_fleet.open_lane(client, model, handed=False)
        except (PoolError, StartError) as exc:
            self.failure = self.failure or f"there is no room for its lanes: {exc}"
            return False
        new = [lane for entry in self._coming for lane in lanes.of_entry(entry)]
        return all(lane.closing or lane.word("gate") in _OPENED for lane in new)

    def commit(self) -> None:
        """Move the old gates; the new plan is in force and front ends were sent their lanes."""
        until_ns = self._clock_ns() + self._drain_ns
        for entry in self._leaving:
            lanes = [lane for lane in self._resources.lanes.of_entry(entry) if not lane.closing]
            self._migrations[entry] = LaneMigration([lane.number for lane in lanes], until_ns)
            self._process_fleet.move_lanes(lanes)

    def undo(self) -> None:
        """Close the new lanes, of which no client was told."""
        for entry in self._coming:
            for lane in self._resources.lanes.of_entry(entry):
                if not lane.closing:
                    self._process_fleet.retire_lane(lane)
        self._retiring |= self._coming
        self._coming = {}

    # -- after it -------------------------------------------------------------------------

    def has_any(self, entry: int) -> bool:
        """True while the entry has lanes that a worker must serve.

        A lane that is being closed counts too, unless a worker of the entry does not end: the lane
        may have to wait for that one.
        """
        counts_closing = not self._process_fleet.workers.has_stuck(entry)
        lanes = self._resources.lanes.of_entry(entry)
        return any(counts_closing or not lane.closing for lane in lanes)

    def leaving(self) -> str:
        """The lanes that entries which leave still have, in words; "" for none."""
        left = {
            model.spec.name: len(self._resources.lanes.of_entry(entry))
            for entry, model in self._leaving.items()
            if entry in self._migrations
        }
        return ", ".join(f"{n} old lane{'s' * (n > 1)} of {name}" for name, n in left.items() if n)

    def step(self) -> None:
        """Carry out what is decided by now, and retire entries without lanes and workers."""
        for entry, migration in self._migrations.items():
            self._migrate(entry, migration)
        for entry, model in list(self._retiring.items()):
            if not self.has_any(entry) and not self._process_fleet.workers.has_any(entry):
                del self._retiring[entry]
                self._migrations.pop(entry, None)
                self._process_fleet.retire_entry(model)

    def settle(self) -> None:
        """Retire entries that leave; all workers belong to the plan in force by now."""
        self._retiring |= self._leaving if self._migrations else {}
        self.step()

    @property
    def over(self) -> bool:
        """True when no entry is left to retire."""
        return not self._retiring

    @property
    def waits_for_stuck(self) -> bool:
        """True when it waits for nothing but workers that do not end."""
        return all(map(self._process_fleet.workers.has_stuck, self._retiring))

    def _migrate(self, entry: int, migration: LaneMigration) -> None:
        for lane in self._resources.lanes.of_entry(entry):
            if lane.left or not lane.handed:
                migration.left(lane.number)
        for command in migration.step(self._clock_ns()):
            found = self._resources.lanes.get(command.lane)
            # The number may be that of another lane by now.
            if found is not None and found.model == entry and not found.closing:
                self._close(found, command.action)

    def _close(self, lane: LaneEntry, action: MigrationAction) -> None:
        if action is MigrationAction.CLOSE:
            self._process_fleet.retire_lane(lane)
            return
        rows = lane.rows()
        if rows:
            _LOG.warning("%s did not move to its new lane in time: %d rows left", lane.owner, rows)
        self._process_fleet.evict_lane(lane)
