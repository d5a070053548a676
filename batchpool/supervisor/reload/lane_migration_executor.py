"""Entries that come and go in a reload: what supervisor/reload/lane_migration.py decides, done to real lanes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from batchpool.core.errors import PoolError, StartError
from batchpool.core.layout.states import Gate
from batchpool.supervisor.fleet.processes import Staff
from batchpool.supervisor.plan.plan import ModelPlan, Plan
from batchpool.supervisor.reload.lane_migration import Act, Departure, wishes
from batchpool.supervisor.resources.client_connection import Attached
from batchpool.supervisor.resources.lane_table import LaneEntry
from batchpool.supervisor.resources.resources import Holdings

_LOG = logging.getLogger("batchpool.supervisor")
_OPENED = (Gate.OPEN, Gate.DRAINING)


class Moving:
    """One reload's entries, from a plan to the next one, which is `revised`.

    clients: all that are attached now. failure: why it cannot go on, "" if it can.
    """

    def __init__(
        self,
        old: Plan,
        new: Plan,
        holdings: Holdings,
        staff: Staff,
        clients: Callable[[], Sequence[Attached]],
        clock_ns: Callable[[], int],
    ) -> None:
        self._holdings = holdings
        self._staff = staff
        self._clients = clients
        self._clock_ns = clock_ns
        self._drain_ns = int(new.server.drain_s * 1e9)
        self._coming = {m.entry: m for m in new.models if m.entry not in old.entries}
        self._leaving = {m.entry: m for m in old.models if m.entry not in new.entries}
        comes = {model.spec.name: entry for entry, model in self._coming.items()}
        names = {entry: model.spec.name for entry, model in self._leaving.items()}
        self._heir_of = {entry: comes[name] for entry, name in names.items() if name in comes}
        self._departures: dict[int, Departure] = {}
        self._ending: dict[int, ModelPlan] = {}
        self.failure = ""
        for model in self._coming.values():
            staff.add_entry(model)

    # -- until the commit -----------------------------------------------------------------

    def ready(self) -> bool:
        """Give a lane to whoever lacks one; whether all are open."""
        book, clients = self._holdings.lanes, {who.owner: who for who in self._clients()}
        known = [(who.owner, who.frontend is not None) for who in clients.values()]
        has = [(lane.owner, lane.model) for lane in book if not lane.closing]
        try:
            for wish in wishes(known, has, list(self._coming), self._heir_of):
                who, model = clients[wish.owner], self._coming[wish.entry]
                self._staff.open_lane(who, model, handed=False)
        except (PoolError, StartError) as exc:
            self.failure = self.failure or f"there is no room for its lanes: {exc}"
            return False
        lanes = [lane for entry in self._coming for lane in book.of_entry(entry)]
        return all(lane.closing or lane.word("gate") in _OPENED for lane in lanes)

    def commit(self) -> None:
        """The new plan counts, and front ends were sent their lanes: the old gates move."""
        until_ns = self._clock_ns() + self._drain_ns
        for entry in self._leaving:
            lanes = [n for n in self._holdings.lanes.of_entry(entry) if not n.closing]
            self._departures[entry] = Departure([lane.number for lane in lanes], until_ns)
            self._staff.move_lanes(lanes)

    def undo(self) -> None:
        """No client knows of what was to come: it goes."""
        for entry in self._coming:
            for lane in self._holdings.lanes.of_entry(entry):
                if not lane.closing:
                    self._staff.retire_lane(lane)
        self._ending |= self._coming
        self._coming = {}

    # -- what is left ---------------------------------------------------------------------

    def has_any(self, entry: int) -> bool:
        """Whether the entry has lanes still; where a worker does not end, lanes that workers serve:
        those that are being closed may have to wait for it."""
        served = not self._staff.workers.has_remains(entry)
        return any(served or not lane.closing for lane in self._holdings.lanes.of_entry(entry))

    def leaving(self) -> str:
        """What is still there of entries that leave, for people."""
        left = {
            model.spec.name: len(self._holdings.lanes.of_entry(entry))
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
            if not self.has_any(entry) and not self._staff.workers.has_any(entry):
                del self._ending[entry]
                self._departures.pop(entry, None)
                self._staff.retire_entry(model)

    def settle(self) -> None:
        """All workers are of the plan that counts: what has left is to be retired."""
        self._ending |= self._leaving if self._departures else {}
        self.step()

    @property
    def over(self) -> bool:
        """Whether everything is retired that is to be."""
        return not self._ending

    @property
    def waits_for_remains(self) -> bool:
        """Whether it is only not over since workers do not end."""
        return all(map(self._staff.workers.has_remains, self._ending))

    def _see_off(self, entry: int, departure: Departure) -> None:
        for lane in self._holdings.lanes.of_entry(entry):
            if lane.left or not lane.handed:
                departure.left(lane.number)
        for order in departure.step(self._clock_ns()):
            found = self._holdings.lanes.get(order.lane)
            if found is not None and found.model == entry and not found.closing:
                self._close(found, order.act)

    def _close(self, lane: LaneEntry, act: Act) -> None:
        if act is Act.CLOSE:
            self._staff.retire_lane(lane)
            return
        rows = lane.claimed()
        if rows:
            _LOG.warning("%s had its time to move and did not: %d rows left", lane.owner, rows)
        self._staff.evict_lane(lane)
