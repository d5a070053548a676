"""Carries out the decisions of `batchpool/supervisor/reload/worker_swap.py` on real workers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from batchpool.core.errors import StartError
from batchpool.supervisor.children.child import Child, ProcessSlot
from batchpool.supervisor.children.worker_slot import WorkerSlot, worker_name
from batchpool.supervisor.fleet.workers import WorkerFleet
from batchpool.supervisor.plan.diff import WorkerPair, worker_pairs
from batchpool.supervisor.plan.plan import Plan
from batchpool.supervisor.reload.worker_swap import (
    SlotChange,
    SwapAction,
    SwapCommand,
    SwapPhase,
    Version,
    WorkerStage,
    WorkerSwap,
)

_LOG = logging.getLogger("batchpool.supervisor")
_NOT_RUNNING = "was not running"
_STUCK = "does not end although it was killed"


@dataclass
class _SlotPair:
    """The old and the new worker of one slot; one may be missing. migrates: as in `SlotChange`."""

    old: WorkerSlot | None
    new: WorkerSlot | None
    migrates: bool = False

    def get(self, version: Version) -> WorkerSlot:
        """The worker of this version, which must exist."""
        worker_slot = self.new if version is Version.NEW else self.old
        assert worker_slot is not None, f"there is no {version.value} worker"
        return worker_slot

    def other(self, version: Version) -> WorkerSlot | None:
        return self.old if version is Version.NEW else self.new

    def change(self) -> SlotChange:
        worker_slot = self.new or self.old
        assert worker_slot is not None
        device = worker_slot.plan.cuda_visible or "cpu"
        name = worker_slot.process_slot.name
        return SlotChange(name, device, self.old is not None, self.new is not None, self.migrates)


class LaneReadiness(Protocol):
    """The state of lanes that a swap waits for; `LaneMigrationExecutor` provides it."""

    def ready(self) -> bool:
        """True when every lane is open that clients get at the commit."""

    def has_any(self, entry: int) -> bool:
        """True while the entry has lanes that a worker must serve."""


class WorkerSwapExecutor:
    """Replaces the workers of one plan by those of the next one, which is `revised`.

    It is the workers' observer as long as it lasts. commit: called once, when there is no way
    back; the new plan applies from then on. swap: the decisions. given_up: texts about workers
    that do not end.
    """

    def __init__(
        self,
        old: Plan,
        new: Plan,
        workers: WorkerFleet,
        lanes: LaneReadiness,
        commit: Callable[[], None],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._workers = workers
        self._lanes = lanes
        self._commit = commit
        self._clock_ns = clock_ns
        self.given_up: list[str] = []
        self._pairs = [self._slot_pair(pair, new) for pair in worker_pairs(old, new)]
        self.swap = WorkerSwap([pair.change() for pair in self._pairs])
        workers.observer = self

    def _slot_pair(self, pair: WorkerPair, plan: Plan) -> _SlotPair:
        old = new = None
        if pair.old is not None:
            old = next(
                worker_slot
                for worker_slot in self._workers.worker_slots
                if worker_slot.entry == pair.entry and worker_slot.plan == pair.old
            )
        if pair.new is not None:
            model = plan.entries[pair.entry]
            # A process slot of its own: restarts and errors so far are those of the old code.
            process_slot = ProcessSlot(worker_name(pair.new, model))
            new = WorkerSlot(
                pair.entry, pair.new, process_slot, model, plan.server,
                swap_role="replacement", on_duty=False,
            )  # fmt: skip
        return _SlotPair(old, new, pair.migrates)

    @property
    def over(self) -> bool:
        return self.swap.phase is SwapPhase.FINISHED

    def step(self) -> None:
        """Carry out what is decided by now."""
        self._give_up_stuck()
        if self.swap.phase is SwapPhase.ROLLING_OUT:
            self.swap.lanes_open = self._lanes.ready()
        elif self.swap.phase is SwapPhase.COMMITTED:
            for number, pair in enumerate(self._pairs):
                if pair.migrates and not self._lanes.has_any(pair.get(Version.OLD).entry):
                    self.swap.lanes_closed(number)
        while commands := self.swap.step():
            for command in commands:
                self._carry_out(command)
        if self.over and self._workers.observer is self:
            self._workers.observer = None

    def _give_up_stuck(self) -> None:
        """Stop waiting for workers that were killed and do not end."""
        now_ns = self._clock_ns()
        for number, pair in enumerate(self._pairs):
            for version, worker_slot in ((Version.NEW, pair.new), (Version.OLD, pair.old)):
                child = None if worker_slot is None else worker_slot.child
                if child is None or not child.is_stuck(now_ns):
                    continue
                assert worker_slot is not None
                stage = self.swap.stage(number, version)
                migrates = pair.migrates and self.swap.phase is SwapPhase.COMMITTED
                if stage is WorkerStage.GONE or (stage is WorkerStage.ACTIVE and not migrates):
                    continue  # the other worker of the slot, if there is one, takes over first
                text = f"{worker_slot.name} (pid {child.pid}) {_STUCK}"
                _LOG.error("%s: it is waited for no longer", text)
                self.given_up.append(text)
                self._workers.give_up(worker_slot)
                self.swap.ended(number, version, _STUCK)

    def abandon(self) -> None:
        """Stop loading, because the pool stops; active workers go on until it has stopped."""
        self._workers.observer = None
        for number, pair in enumerate(self._pairs):
            for version in Version:
                if self.swap.stage(number, version) in (WorkerStage.LOADING, WorkerStage.WARM):
                    pair.get(version).end(self._clock_ns())

    # -- events, reported by the workers' fleet -----------------------------------------

    def warm(self, worker_slot: WorkerSlot) -> None:
        if found := self._find(worker_slot):
            self.swap.warm(*found)

    def idle(self, worker_slot: WorkerSlot) -> None:
        if found := self._find(worker_slot):
            self.swap.idle(*found)

    def lost(self, worker_slot: WorkerSlot, child: Child) -> bool:
        """A worker has ended. Returns False if it is to be restarted like any other."""
        found = self._find(worker_slot)
        if found is None or not self.swap.handles_end(*found):
            return False
        if self.swap.stage(*found) is WorkerStage.STOPPING:
            _LOG.info("the %s (pid %d) has stopped", worker_slot.name, child.pid)
        else:
            _LOG.warning("%s (pid %d) %s", worker_slot.name, child.pid, child.reason())
        self._end(*found, _failure_text(child))
        return True

    def _end(self, number: int, version: Version, reason: str) -> None:
        worker_slot = self._pairs[number].get(version)
        if worker_slot in self._workers.off_plan:
            self._workers.off_plan.remove(worker_slot)
        elif self._pairs[number].old is None:  # the new plan added this slot
            self._workers.worker_slots.remove(worker_slot)
        self.swap.ended(number, version, reason)

    def _find(self, worker_slot: WorkerSlot) -> tuple[int, Version] | None:
        """The number and version of a worker in this reload; None if it has no part in it."""
        for number, pair in enumerate(self._pairs):
            if pair.new is worker_slot:
                return number, Version.NEW
            if pair.old is worker_slot:
                return number, Version.OLD
        return None

    # -- commands -----------------------------------------------------------------------

    def _carry_out(self, command: SwapCommand) -> None:
        match command.action:
            case SwapAction.COMMIT:
                self._name_by_new_plan()
                self._commit()
            case SwapAction.START:
                self._start(command.slot, command.version)
            case SwapAction.TAKE_OVER:
                self._take_over(command.slot, command.version)
            case SwapAction.DRAIN:
                self._drain(command.slot, command.version)
            case SwapAction.LEAVE_EMPTY:
                self._leave_empty(command.slot)
            case SwapAction.STOP:
                self._pairs[command.slot].get(command.version).end(self._clock_ns())

    def _name_by_new_plan(self) -> None:
        """Name workers as after the commit: new ones without a prefix, those of an entry that
        leaves as predecessors."""
        for pair in self._pairs:
            if pair.new is not None:
                pair.new.swap_role = ""
            if pair.migrates:
                pair.get(Version.OLD).swap_role = "predecessor"

    def _drain(self, number: int, version: Version) -> None:
        worker_slot = self._pairs[number].get(version)
        was_ready, swap_role = worker_slot.ready, worker_slot.swap_role
        self._move_off_plan(worker_slot, version)
        worker_slot.swap_role = swap_role or worker_slot.swap_role
        self._workers.relieve(None, worker_slot)
        if not self._pairs[number].migrates:  # others of its entry go on with them
            worker_slot.return_sequences(on=True)
        if not was_ready:  # it was about to be restarted
            worker_slot.start_at_ns = None
            if worker_slot.child is None:
                self._end(number, version, _NOT_RUNNING)
            else:
                worker_slot.child.kill()

    def _start(self, number: int, version: Version) -> None:
        pair = self._pairs[number]
        if version is Version.OLD:
            pair.old = _empty_copy(pair.get(Version.OLD))
        worker_slot = pair.get(version)
        self._workers.off_plan.append(worker_slot)
        try:
            self._workers.start(worker_slot)
        except StartError as exc:
            self._end(number, version, f"cannot start: {exc}")

    def _take_over(self, number: int, version: Version) -> None:
        pair = self._pairs[number]
        taker, other = pair.get(version), pair.other(version)
        self._workers.off_plan.remove(taker)
        self._put_in_plan(taker, other)
        if pair.old is None:
            taker.swap_role = "replacement"  # its slot is not in the plan before the commit
        if other is not None and other.child is not None:
            self._move_off_plan(other, Version.OLD if version is Version.NEW else Version.NEW)
        if version is Version.OLD:
            taker.return_sequences(on=False)
        self._workers.relieve(taker, other)
        if other is not None:
            other.return_sequences(on=True)
        if version is Version.NEW and other is not None and not other.ready:
            # The old worker was about to be restarted. As a standby it would serve nobody.
            other.start_at_ns = None
            if other.child is None:
                self.swap.ended(number, Version.OLD, _NOT_RUNNING)
            else:
                other.child.kill()

    def _leave_empty(self, number: int) -> None:
        """Leave an empty slot to the old plan, so that it is restarted like any other."""
        pair = self._pairs[number]
        empty = pair.old = _empty_copy(pair.get(Version.OLD))
        self._put_in_plan(empty, pair.new)
        if pair.new is not None and pair.new.child is not None:
            self._move_off_plan(pair.new, Version.NEW)
        self._workers.relieve(empty, pair.new)
        if pair.new is not None:
            pair.new.return_sequences(on=True)
        empty.start_at_ns = 0

    def _put_in_plan(self, taker: WorkerSlot, other: WorkerSlot | None) -> None:
        """Put a worker in the place of the other one, or in one of its own."""
        taker.swap_role = ""
        worker_slots = self._workers.worker_slots
        if other in worker_slots:
            worker_slots[worker_slots.index(other)] = taker
        else:
            worker_slots.append(taker)
        worker_slots.sort(key=lambda worker_slot: (worker_slot.entry, worker_slot.plan.index))

    def _move_off_plan(self, worker_slot: WorkerSlot, version: Version) -> None:
        worker_slot.swap_role = "replacement" if version is Version.NEW else "standby"
        if worker_slot in self._workers.worker_slots:
            self._workers.worker_slots.remove(worker_slot)
        if worker_slot not in self._workers.off_plan:
            self._workers.off_plan.append(worker_slot)


def _empty_copy(slot: WorkerSlot) -> WorkerSlot:
    """A copy of the slot without a process, for another worker of the same configuration."""
    place = slot.entry, slot.plan, slot.process_slot, slot.model, slot.server
    return WorkerSlot(*place, swap_role="standby", on_duty=False)


def _failure_text(child: Child) -> str:
    """The reason of a worker's end in words that follow its name."""
    reason = child.reason()
    if reason == child.exit_text():
        return reason
    return reason if reason.startswith(("did not", "was")) else f"failed: {reason}"
