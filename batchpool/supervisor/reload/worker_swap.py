"""Decisions of a rolling reload about worker processes. Pure: no process and no clock is used here.

Each worker slot has an old worker, a new one, or both:

    rolling out   new workers load, one at a time on a device (a GPU, or all of the CPU). One that
                  is warm takes over its slot, so that new batches go to it. The old worker
                  finishes what is in flight and stands by, alive and without rows
    committed     every new worker has taken over and every new lane is open: there is no way back.
                  The old workers stop, each once it is idle; those of an entry that leaves serve
                  on until it has no lanes (`batchpool/supervisor/reload/lane_migration.py`)
    rolling back  a new worker failed before the commit. Standbys take over from the new workers,
                  which stop once they are idle; new workers that load stop at once. For a standby
                  that has ended meanwhile another worker of the old configuration is loaded first
    finished      every slot has its new worker, or every slot has its old one

    new   ABSENT > LOADING > WARM > ACTIVE (> DRAINING > IDLE) > STOPPING > GONE
    old   ACTIVE > DRAINING > IDLE > STOPPING > GONE; when rolling back also DRAINING or IDLE >
          ACTIVE, and GONE > LOADING > WARM > ACTIVE

An active worker is restarted like any other. The reload decides about its end only if it is new
and the commit is still to come.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class SwapPhase(enum.Enum):
    ROLLING_OUT = "rolling out"
    COMMITTED = "committed"
    ROLLING_BACK = "rolling back"
    FINISHED = "finished"


class WorkerStage(enum.Enum):
    """The stage of one worker process in a reload."""

    ABSENT = enum.auto()  # not started yet
    LOADING = enum.auto()
    WARM = enum.auto()
    ACTIVE = enum.auto()  # new batches go to it
    DRAINING = enum.auto()  # no new batches, but rows may be in flight
    IDLE = enum.auto()  # no new batches and, as the batcher says, no rows in flight
    STOPPING = enum.auto()  # it unloads, or was killed, and is not gone yet
    GONE = enum.auto()


class Version(enum.Enum):
    """The configuration that a worker belongs to."""

    NEW = "new"
    OLD = "old"


class SwapAction(enum.Enum):
    START = enum.auto()  # load a new worker, or again an old one in place of a standby that ended
    TAKE_OVER = enum.auto()  # new batches go to this worker and no longer to the other of its slot
    DRAIN = enum.auto()  # no new batches for this worker, and none for another in its place
    LEAVE_EMPTY = enum.auto()  # the slot is old and has no process: it is restarted as any other
    STOP = enum.auto()  # end the process; one that is not warm at once
    COMMIT = enum.auto()  # the new configuration applies


@dataclass(frozen=True)
class SwapCommand:
    """One action to carry out. slot, version: the worker; COMMIT is about none, slot is -1."""

    action: SwapAction
    slot: int = -1
    version: Version = Version.NEW


@dataclass(frozen=True)
class SlotChange:
    """The change of one worker slot.

    device: on which only one new worker may load at a time. old: there is a worker now. new: there
    is to be one. migrates: the old worker serves on after the commit, until `lanes_closed`.
    """

    name: str
    device: str
    old: bool = True
    new: bool = True
    migrates: bool = False


_READY = (WorkerStage.DRAINING, WorkerStage.IDLE, WorkerStage.WARM)  # may take over at once


@dataclass
class _SlotState:
    """The stages of the two workers of one slot.

    refilled: an old worker was loaded again. has_lanes: of the old worker's entry, if it migrates.
    """

    change: SlotChange
    new: WorkerStage
    old: WorkerStage
    refilled: bool = False
    has_lanes: bool = True

    def drain_old(self) -> None:
        if self.old is WorkerStage.ACTIVE:
            self.old = WorkerStage.DRAINING

    def drain_new(self) -> None:
        if self.new is WorkerStage.ACTIVE:
            self.new = WorkerStage.DRAINING

    @property
    def is_undone(self) -> bool:
        return self.new is WorkerStage.GONE and (
            self.old is WorkerStage.ACTIVE or not self.change.old
        )


class WorkerSwap:
    """The state machine of one reload: report events to it, then carry out what `step` returns.

    failure: the reason for rolling back, "" before. lanes_open: every lane is open that clients
    get at the commit.
    """

    def __init__(self, changes: Sequence[SlotChange]) -> None:
        self.phase = SwapPhase.ROLLING_OUT
        self.failure = ""
        self.lanes_open = True
        self._slots = [
            _SlotState(
                change,
                WorkerStage.ABSENT if change.new else WorkerStage.GONE,
                WorkerStage.ACTIVE if change.old else WorkerStage.GONE,
            )
            for change in changes
        ]

    # -- events -------------------------------------------------------------------------

    def warm(self, slot: int, version: Version) -> None:
        """The worker has loaded and warmed up its model."""
        if self.stage(slot, version) is WorkerStage.LOADING:
            self._set_stage(slot, version, WorkerStage.WARM)

    def idle(self, slot: int, version: Version) -> None:
        """The worker gets no new batches and has no rows in flight."""
        if self.stage(slot, version) is WorkerStage.DRAINING:
            self._set_stage(slot, version, WorkerStage.IDLE)

    def ended(self, slot: int, version: Version, reason: str) -> None:
        """The worker's process has ended, or is not waited for any more."""
        self._set_stage(slot, version, WorkerStage.GONE)
        if version is Version.NEW:
            self.fail(f"{self._slots[slot].change.name} {reason}")

    def fail(self, reason: str) -> None:
        """Roll back, unless the reload is committed or rolls back already."""
        if self.phase is SwapPhase.ROLLING_OUT:
            self.phase, self.failure = SwapPhase.ROLLING_BACK, reason

    def lanes_closed(self, slot: int) -> None:
        """The entry of a slot that migrates has no lanes any more."""
        self._slots[slot].has_lanes = False

    # -- state --------------------------------------------------------------------------

    @property
    def rolled_out(self) -> bool:
        """True when the reload is done but for entries whose clients still migrate."""
        return self.phase is SwapPhase.COMMITTED and all(
            slot.old is WorkerStage.GONE or slot.change.migrates for slot in self._slots
        )

    def stage(self, slot: int, version: Version) -> WorkerStage:
        state = self._slots[slot]
        return state.new if version is Version.NEW else state.old

    def handles_end(self, slot: int, version: Version) -> bool:
        """True when the end of this worker is to be reported here, and no restart is due."""
        if self.phase is SwapPhase.FINISHED:
            return False
        stage = self.stage(slot, version)
        if stage is WorkerStage.ACTIVE:
            return version is Version.NEW and self.phase is not SwapPhase.COMMITTED
        return stage not in (WorkerStage.ABSENT, WorkerStage.GONE)

    def progress(self) -> tuple[int, int]:
        """(new workers that have taken over, new workers in all)."""
        slots = [slot for slot in self._slots if slot.change.new]
        return sum(slot.new is WorkerStage.ACTIVE for slot in slots), len(slots)

    # -- decisions ----------------------------------------------------------------------

    def step(self) -> list[SwapCommand]:
        """Return what is to be done now, in this order; [] until another event is reported."""
        commands: list[SwapCommand] = []
        if self.phase is SwapPhase.ROLLING_OUT:
            self._roll_out(commands)
        if self.phase is SwapPhase.COMMITTED:
            self._drain_old(commands)
            self._stop_idle(commands, Version.OLD)
            if all(slot.old is WorkerStage.GONE for slot in self._slots):
                self.phase = SwapPhase.FINISHED
        if self.phase is SwapPhase.ROLLING_BACK:
            for number, slot in enumerate(self._slots):
                self._roll_back_new(commands, number, slot)
                self._roll_back_old(commands, number, slot)
            self._stop_idle(commands, Version.NEW)
            if all(slot.is_undone for slot in self._slots):
                self.phase = SwapPhase.FINISHED
        return commands

    def _roll_out(self, commands: list[SwapCommand]) -> None:
        busy = {slot.change.device for slot in self._slots if slot.new is WorkerStage.LOADING}
        for number, slot in enumerate(self._slots):
            if slot.new is WorkerStage.WARM:
                commands.append(SwapCommand(SwapAction.TAKE_OVER, number))
                slot.new = WorkerStage.ACTIVE
                slot.drain_old()
            elif slot.new is WorkerStage.ABSENT and slot.change.device not in busy:
                commands.append(SwapCommand(SwapAction.START, number))
                slot.new = WorkerStage.LOADING
                busy.add(slot.change.device)
        all_active = all(slot.new is WorkerStage.ACTIVE for slot in self._slots if slot.change.new)
        if all_active and self.lanes_open:
            self.phase = SwapPhase.COMMITTED
            commands.append(SwapCommand(SwapAction.COMMIT))

    def _drain_old(self, commands: list[SwapCommand]) -> None:
        """Drain old workers that have no successor in their slot."""
        for number, slot in enumerate(self._slots):
            is_needed = slot.change.migrates and slot.has_lanes
            if slot.old is WorkerStage.ACTIVE and not is_needed:
                commands.append(SwapCommand(SwapAction.DRAIN, number, Version.OLD))
                slot.drain_old()

    def _roll_back_new(self, commands: list[SwapCommand], number: int, slot: _SlotState) -> None:
        """Stop a new worker that has not taken over."""
        if slot.new is WorkerStage.ABSENT:
            slot.new = WorkerStage.GONE
        elif slot.new in (WorkerStage.LOADING, WorkerStage.WARM):
            commands.append(SwapCommand(SwapAction.STOP, number))
            slot.new = WorkerStage.STOPPING

    def _roll_back_old(self, commands: list[SwapCommand], number: int, slot: _SlotState) -> None:
        """Give a slot back to its old worker, or to another one of the old configuration."""
        if slot.old in _READY:
            commands.append(SwapCommand(SwapAction.TAKE_OVER, number, Version.OLD))
            slot.old = WorkerStage.ACTIVE
            slot.drain_new()
        elif slot.old is not WorkerStage.GONE:
            return
        elif not slot.change.old:
            if slot.new is WorkerStage.ACTIVE:
                commands.append(SwapCommand(SwapAction.DRAIN, number))
                slot.drain_new()
        elif slot.new is WorkerStage.ACTIVE and not slot.refilled:
            commands.append(SwapCommand(SwapAction.START, number, Version.OLD))
            slot.old, slot.refilled = WorkerStage.LOADING, True
        else:  # no worker is active in the slot, or no old one can be loaded
            commands.append(SwapCommand(SwapAction.LEAVE_EMPTY, number, Version.OLD))
            slot.old = WorkerStage.ACTIVE
            slot.drain_new()

    def _stop_idle(self, commands: list[SwapCommand], version: Version) -> None:
        for number in range(len(self._slots)):
            if self.stage(number, version) is WorkerStage.IDLE:
                commands.append(SwapCommand(SwapAction.STOP, number, version))
                self._set_stage(number, version, WorkerStage.STOPPING)

    def _set_stage(self, slot: int, version: Version, stage: WorkerStage) -> None:
        if version is Version.NEW:
            self._slots[slot].new = stage
        else:
            self._slots[slot].old = stage
