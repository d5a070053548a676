"""Entries that come and go in a reload: what supervisor/reload/lane_migration.py decides, done to real lanes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from batchpool.core.errors import PoolError, StartError
from batchpool.core.layout.states import LaneGate
from batchpool.supervisor.fleet.processes import ProcessFleet
from batchpool.supervisor.plan.plan import ModelPlan, Plan
from batchpool.supervisor.reload.lane_migration import LaneMigration, MigrationAction, wishes
from batchpool.supervisor.resources.client_connection import ClientConnection
from batchpool.supervisor.resources.lane_table import LaneEntry
from batchpool.supervisor.resources.resources import PoolResources

_LOG = logging.getLogger("batchpool.supervisor")
_OPENED = (LaneGate.OPEN, LaneGate.DRAINING)


class LaneMigrationExecutor:
    """One reload's entries, from a plan to the next one, which is `revised`.

    clients: all that are attached now. failure: why it cannot go on, "" if it can.
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
        comes = {model.spec.name: entry for entry, model in self._coming.items()}
        names = {entry: model.spec.name for entry, model in self._leaving.items()}
        self._heir_of = {entry: comes[name] for entry, name in names.items() if name in comes}
        self._departures: dict[int, LaneMigration] = {}
        self._ending: dict[int, ModelPlan] = {}
        self.failure = ""
        for model in self._coming.values():
            process_fleet.add_entry(model)

    # -- until the commit -----------------------------------------------------------------

    def ready(self) -> bool:
        """Give a lane to whoever lacks one; whether all are open."""
        book, clients = self._resources.lanes, {who.owner: who for who in self._clients()}
        known = [(who.owner, who.frontend is not None) for who in clients.values()]
        has = [(lane.owner, lane.model) for lane in book if not lane.closing]
        try:
            for wish in wishes(known, has, list(self._coming), self._heir_of):
                who, model = clients[wish.owner], self._coming[wish.entry]
                self._process_fleet.open_lane(who, model, handed=False)
        except (PoolError, StartError) as exc:
            self.failure = self.failure or f"there is no room for its lanes: {exc}"
            return False
        lanes = [lane for entry in self._coming for lane in book.of_entry(entry)]
        return all(lane.closing or lane.word("gate") in _OPENED for lane in lanes)

    def commit(self) -> None:
        """The new plan counts, and front ends were sent their lanes: the old gates move."""
        until_ns = self._clock_ns() + self._drain_ns
        for entry in self._leaving:
            lanes = [n for n in self._resources.lanes.of_entry(entry) if not n.closing]
            self._departures[entry] = LaneMigration([lane.number for lane in lanes], until_ns)
            self._process_fleet.move_lanes(lanes)

    def undo(self) -> None:
        """No client knows of what was to come: it goes."""
        for entry in self._coming:
            for lane in self._resources.lanes.of_entry(entry):
                if not lane.closing:
                    self._process_fleet.retire_lane(lane)
        self._ending |= self._coming
        self._coming = {}

    # -- what is left ---------------------------------------------------------------------

    def has_any(self, entry: int) -> bool:
        """Whether the entry has lanes still; where a worker does not end, lanes that workers serve:
        those that are being closed may have to wait for it."""
        served = not self._process_fleet.workers.has_stuck(entry)
        return any(served or not lane.closing for lane in self._resources.lanes.of_entry(entry))

    def leaving(self) -> str:
        """What is still there of entries that leave, for people."""
        left = {
            model.spec.name: len(self._resources.lanes.of_entry(entry))
            for entry, model in self._leaving.items()
            if entry in self._departures
        }
        told = [f"{n} old lane{'s' * (n > 1)} of {name}" for name, n in left.items() if n]
        return ", ".join(told)

    def step(self) -> None:
        """Do what is to be done now."""
        for entry, departure in self._departures.items():
            self._see_off(entry, departure)
        for entry, model in list(self._ending.items()):
            if not self.has_any(entry) and not self._process_fleet.workers.has_any(entry):
                del self._ending[entry]
                self._departures.pop(entry, None)
                self._process_fleet.retire_entry(model)

    def settle(self) -> None:
        """All workers are of the plan that counts: what has left is to be retired."""
        self._ending |= self._leaving if self._departures else {}
        self.step()

    @property
    def over(self) -> bool:
        """Whether everything is retired that is to be."""
        return not self._ending

    @property
    def waits_for_stuck(self) -> bool:
        """Whether it is only not over since workers do not end."""
        return all(map(self._process_fleet.workers.has_stuck, self._ending))

    def _see_off(self, entry: int, departure: LaneMigration) -> None:
        for lane in self._resources.lanes.of_entry(entry):
            if lane.left or not lane.handed:
                departure.left(lane.number)
        for order in departure.step(self._clock_ns()):
            found = self._resources.lanes.get(order.lane)
            if found is not None and found.model == entry and not found.closing:
                self._close(found, order.act)

    def _close(self, lane: LaneEntry, act: MigrationAction) -> None:
        if act is MigrationAction.CLOSE:
            self._process_fleet.retire_lane(lane)
            return
        rows = lane.claimed()
        if rows:
            _LOG.warning("%s had its time to move and did not: %d rows left", lane.owner, rows)
        self._process_fleet.evict_lane(lane)
