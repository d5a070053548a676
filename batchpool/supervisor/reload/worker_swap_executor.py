"""A reload carried out: what supervisor/reload/worker_swap.py decides, done to real workers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from batchpool.core.errors import StartError
from batchpool.supervisor.children.child import Child, ProcessSlot
from batchpool.supervisor.children.worker_slot import WorkerSlot
from batchpool.supervisor.fleet.workers import WorkerFleet
from batchpool.supervisor.plan.diff import Pair, pairs_of
from batchpool.supervisor.plan.plan import Plan
from batchpool.supervisor.reload.worker_swap import (
    SlotChange,
    SwapAction,
    SwapOrder,
    SwapParty,
    SwapPhase,
    WorkerStage,
    WorkerSwap,
)

_LOG = logging.getLogger("batchpool.supervisor")


@dataclass
class _Two:
    """The old worker and the heir of one seat; one may lack. moves: as in `SlotChange`."""

    old: WorkerSlot | None
    heir: WorkerSlot | None
    moves: bool = False

    def who(self, who: SwapParty) -> WorkerSlot:
        worker_slot = self.heir if who is SwapParty.HEIR else self.old
        assert worker_slot is not None, "nobody there to give an order to"
        return worker_slot

    def other(self, who: SwapParty) -> WorkerSlot | None:
        return self.old if who is SwapParty.HEIR else self.heir


class LaneChanges(Protocol):
    """What becomes of lanes meanwhile (supervisor/reload/lane_migration_executor.py)."""

    def ready(self) -> bool:
        """Whether every lane stands that clients are sent at the commit."""

    def has_any(self, entry: int) -> bool:
        """Whether the entry has lanes still."""


class WorkerSwapExecutor:
    """One reload from a plan to the next one, which is `revised`. It is the workers' observer.

    commit: called when there is no way back; the new plan counts from then on. given_up: who
    does not end, for people.
    """

    def __init__(
        self,
        old: Plan,
        new: Plan,
        workers: WorkerFleet,
        lanes: LaneChanges,
        commit: Callable[[], None],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._workers = workers
        self._lanes = lanes
        self._commit = commit
        self._clock_ns = clock_ns
        self.given_up: list[str] = []
        self._worker_slots = [self._two(pair, new) for pair in pairs_of(old, new)]
        self.reload = WorkerSwap([_change(two) for two in self._worker_slots])
        workers.observer = self

    def _two(self, pair: Pair, new: Plan) -> _Two:
        old = heir = None
        if pair.old is not None:
            old = next(
                worker_slot
                for worker_slot in self._workers.worker_slots
                if worker_slot.entry == pair.model and worker_slot.plan == pair.old
            )
        if pair.new is not None:
            model = new.entries[pair.model]
            name = f"worker {pair.new.index} of {model.spec.name}"
            # A post of its own: restarts and errors are those of its predecessor's code.
            place = pair.model, pair.new, ProcessSlot(name), model, new.server
            heir = WorkerSlot(*place, swap_role="replacement", on_duty=False)
        return _Two(old, heir, pair.moves)

    @property
    def over(self) -> bool:
        return self.reload.phase is SwapPhase.OVER

    def step(self) -> None:
        """Do what is to be done now."""
        self._leave_behind()
        if self.reload.phase is SwapPhase.AHEAD:
            self.reload.lanes_open = self._lanes.ready()
        elif self.reload.phase is SwapPhase.COMMITTED:
            for number, two in enumerate(self._worker_slots):
                if two.moves and not self._lanes.has_any(two.who(SwapParty.OLD).entry):
                    self.reload.emptied(number)
        while orders := self.reload.step():
            for order in orders:
                self._carry_out(order)
        if self.over and self._workers.observer is self:
            self._workers.observer = None

    def _leave_behind(self) -> None:
        """Whoever was killed and does not end is waited for no longer."""
        now_ns = self._clock_ns()
        for number, two in enumerate(self._worker_slots):
            for who, worker_slot in ((SwapParty.HEIR, two.heir), (SwapParty.OLD, two.old)):
                child = None if worker_slot is None else worker_slot.child
                if child is None or not child.is_stuck(now_ns):
                    continue
                assert worker_slot is not None
                at = self.reload.at(number, who)
                moves = two.moves and self.reload.phase is SwapPhase.COMMITTED
                if at is WorkerStage.GONE or (at is WorkerStage.DUTY and not moves):
                    continue  # it has its seat: its successor, if there is one, takes over first
                text = f"{worker_slot.name} (pid {child.pid}) does not end although it was killed"
                _LOG.error("%s: it is waited for no longer", text)
                self.given_up.append(text)
                self._workers.give_up(worker_slot)
                self.reload.lost(number, who, "does not end although it was killed")

    def abandon(self) -> None:
        """The pool stops: whoever loads ends now, the others go on until it has stopped."""
        self._workers.observer = None
        for number, two in enumerate(self._worker_slots):
            for who in SwapParty:
                if self.reload.at(number, who) in (WorkerStage.LOADING, WorkerStage.WARM):
                    _end(two.who(who))

    # -- what happens -------------------------------------------------------------------

    def warm(self, worker_slot: WorkerSlot) -> None:
        number, who = self._find(worker_slot)
        if number >= 0:
            self.reload.warm(number, who)

    def idle(self, worker_slot: WorkerSlot) -> None:
        number, who = self._find(worker_slot)
        if number >= 0:
            self.reload.idle(number, who)

    def lost(self, worker_slot: WorkerSlot, child: Child) -> bool:
        number, who = self._find(worker_slot)
        if number < 0 or not self.reload.owns(number, who):
            return False
        at = self.reload.at(number, who)
        if at is WorkerStage.ENDING:
            _LOG.info("the %s (pid %d) has left", worker_slot.name, child.pid)
        else:
            _LOG.warning("%s (pid %d) %s", worker_slot.name, child.pid, child.reason())
        self._lose(number, who, _why(child))
        return True

    def _lose(self, number: int, who: SwapParty, why: str) -> None:
        worker_slot = self._worker_slots[number].who(who)
        if worker_slot in self._workers.off_plan:
            self._workers.off_plan.remove(worker_slot)
        elif self._worker_slots[number].old is None:  # its seat was new too
            self._workers.worker_slots.remove(worker_slot)
        self.reload.lost(number, who, why)

    def _find(self, worker_slot: WorkerSlot) -> tuple[int, SwapParty]:
        """The place of a worker in this reload; (-1, ...) of one that has none."""
        for number, two in enumerate(self._worker_slots):
            if two.heir is worker_slot:
                return number, SwapParty.HEIR
            if two.old is worker_slot:
                return number, SwapParty.OLD
        return -1, SwapParty.OLD

    # -- what to do ---------------------------------------------------------------------

    def _carry_out(self, order: SwapOrder) -> None:
        if order.act is SwapAction.COMMIT:
            self._change_names()
            self._commit()
        elif order.act is SwapAction.START:
            self._start(order.worker_slot, order.who)
        elif order.act is SwapAction.TAKE_OVER:
            self._take_over(order.worker_slot, order.who)
        elif order.act is SwapAction.RELEASE:
            self._release(order.worker_slot, order.who)
        elif order.act is SwapAction.VACATE:
            self._vacate(order.worker_slot)
        else:
            _end(self._worker_slots[order.worker_slot].who(order.who))

    def _change_names(self) -> None:
        """Workers of an entry that comes have been heirs until now, although nobody was in their
        seats; those of one that leaves are not the model's any more."""
        for two in self._worker_slots:
            if two.heir is not None:
                two.heir.swap_role = ""
            if two.moves:
                two.who(SwapParty.OLD).swap_role = "predecessor"

    def _release(self, number: int, who: SwapParty) -> None:
        worker_slot = self._worker_slots[number].who(who)
        is_there, part = worker_slot.ready, worker_slot.swap_role
        self._stand_aside(worker_slot, who)
        worker_slot.swap_role = part or worker_slot.swap_role
        self._workers.relieve(None, worker_slot)
        if not is_there:  # it was about to start again
            worker_slot.start_at_ns = None
            if worker_slot.child is None:
                self._lose(number, who, "was not there")
            else:
                worker_slot.child.kill()

    def _start(self, number: int, who: SwapParty) -> None:
        two = self._worker_slots[number]
        if who is SwapParty.OLD:
            two.old = _successor(two.who(SwapParty.OLD))
        worker_slot = two.who(who)
        self._workers.off_plan.append(worker_slot)
        try:
            self._workers.start(worker_slot)
        except StartError as exc:
            self._lose(number, who, f"cannot start: {exc}")

    def _take_over(self, number: int, who: SwapParty) -> None:
        two = self._worker_slots[number]
        taker, other = two.who(who), two.other(who)
        self._workers.off_plan.remove(taker)
        self._worker_slot(taker, other)
        if two.old is None:
            taker.swap_role = "replacement"  # the seat is not the plan's yet
        if other is not None and other.child is not None:
            self._stand_aside(other, SwapParty.OLD if who is SwapParty.HEIR else SwapParty.HEIR)
        self._workers.relieve(taker, other)
        if who is SwapParty.HEIR and other is not None and not other.ready:
            # It was about to start again. Its standby would be of no use to anybody.
            other.start_at_ns = None
            if other.child is None:
                self.reload.lost(number, SwapParty.OLD, "was not there")
            else:
                other.child.kill()

    def _worker_slot(self, taker: WorkerSlot, other: WorkerSlot | None) -> None:
        """Put one into the seat of the other, or into one of its own."""
        taker.swap_role = ""
        worker_slots = self._workers.worker_slots
        if other in worker_slots:
            worker_slots[worker_slots.index(other)] = taker
        else:
            worker_slots.append(taker)
        worker_slots.sort(key=lambda worker_slot: (worker_slot.entry, worker_slot.plan.index))

    def _stand_aside(self, worker_slot: WorkerSlot, who: SwapParty) -> None:
        worker_slot.swap_role = "replacement" if who is SwapParty.HEIR else "standby"
        if worker_slot in self._workers.worker_slots:
            self._workers.worker_slots.remove(worker_slot)
        if worker_slot not in self._workers.off_plan:
            self._workers.off_plan.append(worker_slot)

    def _vacate(self, number: int) -> None:
        """The seat is the old plan's and nobody is in it: from now on as any other."""
        two = self._worker_slots[number]
        empty = two.old = _successor(two.who(SwapParty.OLD))
        heir = two.heir
        self._worker_slot(empty, heir)
        if heir is not None and heir.child is not None:
            self._stand_aside(heir, SwapParty.HEIR)
        self._workers.relieve(empty, heir)
        empty.start_at_ns = 0


def _change(two: _Two) -> SlotChange:
    worker_slot = two.heir or two.old
    assert worker_slot is not None
    place = worker_slot.plan.cuda_visible or "cpu"
    return SlotChange(
        worker_slot.process_slot.name, place, two.old is not None, two.heir is not None, two.moves
    )


def _successor(worker_slot: WorkerSlot) -> WorkerSlot:
    """An empty seat for another worker in place of a dead one."""
    place = (
        worker_slot.entry,
        worker_slot.plan,
        worker_slot.process_slot,
        worker_slot.model,
        worker_slot.server,
    )
    return WorkerSlot(*place, swap_role="standby", on_duty=False)


def _end(worker_slot: WorkerSlot) -> None:
    if worker_slot.child is not None:
        worker_slot.child.kill()


def _why(child: Child) -> str:
    """How a worker failed, after its name."""
    why = child.reason()
    if why == child.exit_text():
        return why
    return why if why.startswith(("did not", "was")) else f"failed: {why}"
