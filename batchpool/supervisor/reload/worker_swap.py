"""The order of a reload: pure decisions, from what becomes of every worker.

Each seat has an old worker, an heir, or both:

    ahead      heirs load, one at a time in a place (a GPU, or all of the CPU). One that is warm
               takes its seat: new batches are its own. Whom it relieves finishes what is in
               flight and stands by, alive and without rows
    committed  every heir has its seat, and every new lane is open: there is no way back. The old
               workers end, each once it is idle; those of an entry that leaves serve on until it
               has no lanes (supervisor/reload/lane_migration.py)
    back       an heir failed before that. Those that have a seat are relieved by their standbys
               and end once idle; those that load end at once. For a standby that has died
               meanwhile another worker of the old configuration is loaded first
    over       done, or undone: every seat has its new worker, or every seat its old one

    heir  ABSENT > LOADING > WARM > DUTY (> OFF > IDLE) > ENDING > GONE
    old   DUTY > OFF > IDLE > ENDING > GONE, and on the way back OFF or IDLE > DUTY, or
          GONE > LOADING > WARM > DUTY

OFF has no duty but may have rows in flight; IDLE has none, as the batcher says. A worker that
has its seat lives and dies as any other: the reload is told of that only for heirs, and only
ahead and back.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class SwapPhase(enum.Enum):
    AHEAD = "ahead"
    COMMITTED = "committed"
    BACK = "back"
    OVER = "over"


class WorkerStage(enum.Enum):
    """Where a worker is in its life, as a reload sees it."""

    ABSENT = enum.auto()
    LOADING = enum.auto()
    WARM = enum.auto()
    DUTY = enum.auto()
    OFF = enum.auto()
    IDLE = enum.auto()
    ENDING = enum.auto()
    GONE = enum.auto()


class SwapParty(enum.Enum):
    HEIR = "replacement"
    OLD = "old"


class SwapAction(enum.Enum):
    START = enum.auto()  # load the heir; for OLD: load another in place of a dead standby
    TAKE_OVER = enum.auto()  # this one gets the seat, the other is relieved
    RELEASE = enum.auto()  # no more rows for this one, and nobody in its place
    VACATE = enum.auto()  # the seat is old and empty: from now on as any other
    END = enum.auto()  # end the process
    COMMIT = enum.auto()  # the new configuration counts


@dataclass(frozen=True)
class SwapOrder:
    """What is to be done now, to whom, of which seat (of no seat: -1)."""

    act: SwapAction
    worker_slot: int = -1
    who: SwapParty = SwapParty.HEIR


@dataclass(frozen=True)
class SlotChange:
    """What a reload does to one seat. place: where only one heir may load at a time.

    old: whether there is a worker now; new: whether there is to be one. moves: the old one serves
    on after the commit, until it is told that nobody needs it.
    """

    name: str
    place: str
    old: bool = True
    new: bool = True
    moves: bool = False


_READY = (WorkerStage.OFF, WorkerStage.IDLE, WorkerStage.WARM)  # may take the seat at once


@dataclass
class _Seat:
    change: SlotChange
    heir: WorkerStage
    old: WorkerStage
    refilled: bool = False
    needed: bool = True  # where it moves


class WorkerSwap:
    """One reload. Tell it what happens, then carry out what `step` says, in that order.

    lanes_open: whether every lane stands that clients are sent at the commit.
    """

    def __init__(self, changes: Sequence[SlotChange]) -> None:
        self.phase = SwapPhase.AHEAD
        self.failure = ""
        self.lanes_open = True
        self._worker_slots = [
            _Seat(
                change,
                WorkerStage.ABSENT if change.new else WorkerStage.GONE,
                WorkerStage.DUTY if change.old else WorkerStage.GONE,
            )
            for change in changes
        ]

    # -- what happens -------------------------------------------------------------------

    def warm(self, worker_slot: int, who: SwapParty) -> None:
        """It is loaded and warm, and its answers fit its declaration."""
        if self.at(worker_slot, who) is WorkerStage.LOADING:
            self._put(worker_slot, who, WorkerStage.WARM)

    def idle(self, worker_slot: int, who: SwapParty) -> None:
        """It has no rows in flight and gets no more."""
        if self.at(worker_slot, who) is WorkerStage.OFF:
            self._put(worker_slot, who, WorkerStage.IDLE)

    def lost(self, worker_slot: int, who: SwapParty, why: str) -> None:
        """Its process has ended."""
        self._put(worker_slot, who, WorkerStage.GONE)
        if who is SwapParty.HEIR:
            self.fail(f"{self._worker_slots[worker_slot].change.name} {why}")

    def fail(self, why: str) -> None:
        """Turn back, unless it is too late or done already."""
        if self.phase is SwapPhase.AHEAD:
            self.phase, self.failure = SwapPhase.BACK, why

    def emptied(self, worker_slot: int) -> None:
        """The entry of an old worker has no lanes any more."""
        self._worker_slots[worker_slot].needed = False

    @property
    def served(self) -> bool:
        """Whether it is done but for the entries that leave."""
        return self.phase is SwapPhase.COMMITTED and all(
            worker_slot.old is WorkerStage.GONE or worker_slot.change.moves
            for worker_slot in self._worker_slots
        )

    def at(self, worker_slot: int, who: SwapParty) -> WorkerStage:
        found = self._worker_slots[worker_slot]
        return found.heir if who is SwapParty.HEIR else found.old

    def owns(self, worker_slot: int, who: SwapParty) -> bool:
        """Whether this worker's end is the reload's to hear of, not the seat's usual business."""
        if self.phase is SwapPhase.OVER:
            return False
        at = self.at(worker_slot, who)
        if at is WorkerStage.DUTY:
            return who is SwapParty.HEIR and self.phase is not SwapPhase.COMMITTED
        return at not in (WorkerStage.ABSENT, WorkerStage.GONE)

    def progress(self) -> tuple[int, int]:
        """How many heirs have their seats, of how many."""
        new = [worker_slot for worker_slot in self._worker_slots if worker_slot.change.new]
        return sum(worker_slot.heir is WorkerStage.DUTY for worker_slot in new), len(new)

    # -- what to do ---------------------------------------------------------------------

    def step(self) -> list[SwapOrder]:
        """What is to be done now; nothing until something else happens."""
        orders: list[SwapOrder] = []
        if self.phase is SwapPhase.AHEAD:
            self._ahead(orders)
        if self.phase is SwapPhase.COMMITTED:
            self._release(orders)
            self._end_idle(orders, SwapParty.OLD)
            if all(worker_slot.old is WorkerStage.GONE for worker_slot in self._worker_slots):
                self.phase = SwapPhase.OVER
        if self.phase is SwapPhase.BACK:
            for number, worker_slot in enumerate(self._worker_slots):
                self._back(orders, number, worker_slot)
            self._end_idle(orders, SwapParty.HEIR)
            if all(_is_undone(worker_slot) for worker_slot in self._worker_slots):
                self.phase = SwapPhase.OVER
        return orders

    def _ahead(self, orders: list[SwapOrder]) -> None:
        taken = {
            worker_slot.change.place
            for worker_slot in self._worker_slots
            if worker_slot.heir is WorkerStage.LOADING
        }
        for number, worker_slot in enumerate(self._worker_slots):
            if worker_slot.heir is WorkerStage.WARM:
                orders.append(SwapOrder(SwapAction.TAKE_OVER, number))
                worker_slot.heir = WorkerStage.DUTY
                worker_slot.old = (
                    WorkerStage.OFF if worker_slot.old is WorkerStage.DUTY else worker_slot.old
                )
            elif worker_slot.heir is WorkerStage.ABSENT and worker_slot.change.place not in taken:
                orders.append(SwapOrder(SwapAction.START, number))
                worker_slot.heir = WorkerStage.LOADING
                taken.add(worker_slot.change.place)
        serve = all(
            worker_slot.heir is WorkerStage.DUTY
            for worker_slot in self._worker_slots
            if worker_slot.change.new
        )
        if serve and self.lanes_open:
            self.phase = SwapPhase.COMMITTED
            orders.append(SwapOrder(SwapAction.COMMIT))

    def _release(self, orders: list[SwapOrder]) -> None:
        """Those after whom nobody comes."""
        for number, worker_slot in enumerate(self._worker_slots):
            if worker_slot.old is WorkerStage.DUTY and not (
                worker_slot.change.moves and worker_slot.needed
            ):
                orders.append(SwapOrder(SwapAction.RELEASE, number, SwapParty.OLD))
                worker_slot.old = WorkerStage.OFF

    def _back(self, orders: list[SwapOrder], number: int, worker_slot: _Seat) -> None:
        if worker_slot.heir is WorkerStage.ABSENT:
            worker_slot.heir = WorkerStage.GONE
        elif worker_slot.heir in (WorkerStage.LOADING, WorkerStage.WARM):
            orders.append(SwapOrder(SwapAction.END, number))
            worker_slot.heir = WorkerStage.ENDING
        if worker_slot.old in _READY:
            orders.append(SwapOrder(SwapAction.TAKE_OVER, number, SwapParty.OLD))
            worker_slot.old = WorkerStage.DUTY
            worker_slot.heir = (
                WorkerStage.OFF if worker_slot.heir is WorkerStage.DUTY else worker_slot.heir
            )
        elif (
            worker_slot.old is WorkerStage.GONE
            and not worker_slot.change.old
            and worker_slot.heir is WorkerStage.DUTY
        ):
            orders.append(SwapOrder(SwapAction.RELEASE, number))
            worker_slot.heir = WorkerStage.OFF
        elif worker_slot.old is WorkerStage.GONE and worker_slot.change.old:
            if worker_slot.heir is WorkerStage.DUTY and not worker_slot.refilled:
                orders.append(SwapOrder(SwapAction.START, number, SwapParty.OLD))
                worker_slot.old, worker_slot.refilled = WorkerStage.LOADING, True
            else:  # nobody serves in it, or there is no old worker to be had
                orders.append(SwapOrder(SwapAction.VACATE, number, SwapParty.OLD))
                worker_slot.old = WorkerStage.DUTY
                worker_slot.heir = (
                    WorkerStage.OFF if worker_slot.heir is WorkerStage.DUTY else worker_slot.heir
                )

    def _end_idle(self, orders: list[SwapOrder], who: SwapParty) -> None:
        for number in range(len(self._worker_slots)):
            if self.at(number, who) is WorkerStage.IDLE:
                orders.append(SwapOrder(SwapAction.END, number, who))
                self._put(number, who, WorkerStage.ENDING)

    def _put(self, worker_slot: int, who: SwapParty, at: WorkerStage) -> None:
        if who is SwapParty.HEIR:
            self._worker_slots[worker_slot].heir = at
        else:
            self._worker_slots[worker_slot].old = at


def _is_undone(worker_slot: _Seat) -> bool:
    return worker_slot.heir is WorkerStage.GONE and (
        worker_slot.old is WorkerStage.DUTY or not worker_slot.change.old
    )
