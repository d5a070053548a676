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


class Phase(enum.Enum):
    AHEAD = "ahead"
    COMMITTED = "committed"
    BACK = "back"
    OVER = "over"


class At(enum.Enum):
    """Where a worker is in its life, as a reload sees it."""

    ABSENT = enum.auto()
    LOADING = enum.auto()
    WARM = enum.auto()
    DUTY = enum.auto()
    OFF = enum.auto()
    IDLE = enum.auto()
    ENDING = enum.auto()
    GONE = enum.auto()


class Who(enum.Enum):
    HEIR = "heir"
    OLD = "old"


class Act(enum.Enum):
    START = enum.auto()  # load the heir; for OLD: load another in place of a dead standby
    TAKE_OVER = enum.auto()  # this one gets the seat, the other is relieved
    RELEASE = enum.auto()  # no more rows for this one, and nobody in its place
    VACATE = enum.auto()  # the seat is old and empty: from now on as any other
    END = enum.auto()  # end the process
    COMMIT = enum.auto()  # the new configuration counts


@dataclass(frozen=True)
class Order:
    """What is to be done now, to whom, of which seat (of no seat: -1)."""

    act: Act
    seat: int = -1
    who: Who = Who.HEIR


@dataclass(frozen=True)
class Change:
    """What a reload does to one seat. place: where only one heir may load at a time.

    old: whether there is a worker now; new: whether there is to be one. moves: the old one serves
    on after the commit, until it is told that nobody needs it.
    """

    name: str
    place: str
    old: bool = True
    new: bool = True
    moves: bool = False


_READY = (At.OFF, At.IDLE, At.WARM)  # may take the seat at once


@dataclass
class _Seat:
    change: Change
    heir: At
    old: At
    refilled: bool = False
    needed: bool = True  # where it moves


class Reload:
    """One reload. Tell it what happens, then carry out what `step` says, in that order.

    lanes_open: whether every lane stands that clients are sent at the commit.
    """

    def __init__(self, changes: Sequence[Change]) -> None:
        self.phase = Phase.AHEAD
        self.failure = ""
        self.lanes_open = True
        self._seats = [
            _Seat(
                change,
                At.ABSENT if change.new else At.GONE,
                At.DUTY if change.old else At.GONE,
            )
            for change in changes
        ]

    # -- what happens -------------------------------------------------------------------

    def warm(self, seat: int, who: Who) -> None:
        """It is loaded and warm, and its answers fit its declaration."""
        if self.at(seat, who) is At.LOADING:
            self._put(seat, who, At.WARM)

    def idle(self, seat: int, who: Who) -> None:
        """It has no rows in flight and gets no more."""
        if self.at(seat, who) is At.OFF:
            self._put(seat, who, At.IDLE)

    def lost(self, seat: int, who: Who, why: str) -> None:
        """Its process has ended."""
        self._put(seat, who, At.GONE)
        if who is Who.HEIR:
            self.fail(f"{self._seats[seat].change.name} {why}")

    def fail(self, why: str) -> None:
        """Turn back, unless it is too late or done already."""
        if self.phase is Phase.AHEAD:
            self.phase, self.failure = Phase.BACK, why

    def emptied(self, seat: int) -> None:
        """The entry of an old worker has no lanes any more."""
        self._seats[seat].needed = False

    @property
    def served(self) -> bool:
        """Whether it is done but for the entries that leave."""
        return self.phase is Phase.COMMITTED and all(
            seat.old is At.GONE or seat.change.moves for seat in self._seats
        )

    def at(self, seat: int, who: Who) -> At:
        found = self._seats[seat]
        return found.heir if who is Who.HEIR else found.old

    def owns(self, seat: int, who: Who) -> bool:
        """Whether this worker's end is the reload's to hear of, not the seat's usual business."""
        if self.phase is Phase.OVER:
            return False
        at = self.at(seat, who)
        if at is At.DUTY:
            return who is Who.HEIR and self.phase is not Phase.COMMITTED
        return at not in (At.ABSENT, At.GONE)

    def progress(self) -> tuple[int, int]:
        """How many heirs have their seats, of how many."""
        new = [seat for seat in self._seats if seat.change.new]
        return sum(seat.heir is At.DUTY for seat in new), len(new)

    # -- what to do ---------------------------------------------------------------------

    def step(self) -> list[Order]:
        """What is to be done now; nothing until something else happens."""
        orders: list[Order] = []
        if self.phase is Phase.AHEAD:
            self._ahead(orders)
        if self.phase is Phase.COMMITTED:
            self._release(orders)
            self._end_idle(orders, Who.OLD)
            if all(seat.old is At.GONE for seat in self._seats):
                self.phase = Phase.OVER
        if self.phase is Phase.BACK:
            for number, seat in enumerate(self._seats):
                self._back(orders, number, seat)
            self._end_idle(orders, Who.HEIR)
            if all(_is_undone(seat) for seat in self._seats):
                self.phase = Phase.OVER
        return orders

    def _ahead(self, orders: list[Order]) -> None:
        taken = {seat.change.place for seat in self._seats if seat.heir is At.LOADING}
        for number, seat in enumerate(self._seats):
            if seat.heir is At.WARM:
                orders.append(Order(Act.TAKE_OVER, number))
                seat.heir = At.DUTY
                seat.old = At.OFF if seat.old is At.DUTY else seat.old
            elif seat.heir is At.ABSENT and seat.change.place not in taken:
                orders.append(Order(Act.START, number))
                seat.heir = At.LOADING
                taken.add(seat.change.place)
        serve = all(seat.heir is At.DUTY for seat in self._seats if seat.change.new)
        if serve and self.lanes_open:
            self.phase = Phase.COMMITTED
            orders.append(Order(Act.COMMIT))

    def _release(self, orders: list[Order]) -> None:
        """Those after whom nobody comes."""
        for number, seat in enumerate(self._seats):
            if seat.old is At.DUTY and not (seat.change.moves and seat.needed):
                orders.append(Order(Act.RELEASE, number, Who.OLD))
                seat.old = At.OFF

    def _back(self, orders: list[Order], number: int, seat: _Seat) -> None:
        if seat.heir is At.ABSENT:
            seat.heir = At.GONE
        elif seat.heir in (At.LOADING, At.WARM):
            orders.append(Order(Act.END, number))
            seat.heir = At.ENDING
        if seat.old in _READY:
            orders.append(Order(Act.TAKE_OVER, number, Who.OLD))
            seat.old = At.DUTY
            seat.heir = At.OFF if seat.heir is At.DUTY else seat.heir
        elif seat.old is At.GONE and not seat.change.old and seat.heir is At.DUTY:
            orders.append(Order(Act.RELEASE, number))
            seat.heir = At.OFF
        elif seat.old is At.GONE and seat.change.old:
            if seat.heir is At.DUTY and not seat.refilled:
                orders.append(Order(Act.START, number, Who.OLD))
                seat.old, seat.refilled = At.LOADING, True
            else:  # nobody serves in it, or there is no old worker to be had
                orders.append(Order(Act.VACATE, number, Who.OLD))
                seat.old = At.DUTY
                seat.heir = At.OFF if seat.heir is At.DUTY else seat.heir

    def _end_idle(self, orders: list[Order], who: Who) -> None:
        for number in range(len(self._seats)):
            if self.at(number, who) is At.IDLE:
                orders.append(Order(Act.END, number, who))
                self._put(number, who, At.ENDING)

    def _put(self, seat: int, who: Who, at: At) -> None:
        if who is Who.HEIR:
            self._seats[seat].heir = at
        else:
            self._seats[seat].old = at


def _is_undone(seat: _Seat) -> bool:
    return seat.heir is At.GONE and (seat.old is At.DUTY or not seat.change.old)
