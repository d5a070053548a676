"""A reload carried out: what supervisor/reload/worker_swap.py decides, done to real workers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from batchpool.core.errors import StartError
from batchpool.supervisor.children.child import Child, Post
from batchpool.supervisor.children.worker_slot import Seat
from batchpool.supervisor.fleet.workers import Workforce
from batchpool.supervisor.plan.diff import Pair, pairs_of
from batchpool.supervisor.plan.plan import Plan
from batchpool.supervisor.reload.worker_swap import Act, At, Change, Order, Phase, Reload, Who

_LOG = logging.getLogger("batchpool.supervisor")


@dataclass
class _Two:
    """The old worker and the heir of one seat; one may lack. moves: as in `Change`."""

    old: Seat | None
    heir: Seat | None
    moves: bool = False

    def who(self, who: Who) -> Seat:
        seat = self.heir if who is Who.HEIR else self.old
        assert seat is not None, "nobody there to give an order to"
        return seat

    def other(self, who: Who) -> Seat | None:
        return self.old if who is Who.HEIR else self.heir


class Lanes(Protocol):
    """What becomes of lanes meanwhile (supervisor/reload/lane_migration_executor.py)."""

    def ready(self) -> bool:
        """Whether every lane stands that clients are sent at the commit."""

    def has_any(self, entry: int) -> bool:
        """Whether the entry has lanes still."""


class Succession:
    """One reload from a plan to the next one, which is `revised`. It is the workers' witness.

    commit: called when there is no way back; the new plan counts from then on. left_behind: who
    does not end, for people.
    """

    def __init__(
        self,
        old: Plan,
        new: Plan,
        workers: Workforce,
        lanes: Lanes,
        commit: Callable[[], None],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._workers = workers
        self._lanes = lanes
        self._commit = commit
        self._clock_ns = clock_ns
        self.left_behind: list[str] = []
        self._seats = [self._two(pair, new) for pair in pairs_of(old, new)]
        self.reload = Reload([_change(two) for two in self._seats])
        workers.witness = self

    def _two(self, pair: Pair, new: Plan) -> _Two:
        old = heir = None
        if pair.old is not None:
            old = next(
                seat
                for seat in self._workers.seats
                if seat.model == pair.model and seat.plan == pair.old
            )
        if pair.new is not None:
            model = new.entries[pair.model]
            name = f"worker {pair.new.index} of {model.spec.name}"
            # A post of its own: restarts and errors are those of its predecessor's code.
            place = pair.model, pair.new, Post(name), model, new.server
            heir = Seat(*place, part="heir", on_duty=False)
        return _Two(old, heir, pair.moves)

    @property
    def over(self) -> bool:
        return self.reload.phase is Phase.OVER

    def step(self) -> None:
        """Do what is to be done now."""
        self._leave_behind()
        if self.reload.phase is Phase.AHEAD:
            self.reload.lanes_open = self._lanes.ready()
        elif self.reload.phase is Phase.COMMITTED:
            for number, two in enumerate(self._seats):
                if two.moves and not self._lanes.has_any(two.who(Who.OLD).model):
                    self.reload.emptied(number)
        while orders := self.reload.step():
            for order in orders:
                self._carry_out(order)
        if self.over and self._workers.witness is self:
            self._workers.witness = None

    def _leave_behind(self) -> None:
        """Whoever was killed and does not end is waited for no longer."""
        now_ns = self._clock_ns()
        for number, two in enumerate(self._seats):
            for who, seat in ((Who.HEIR, two.heir), (Who.OLD, two.old)):
                child = None if seat is None else seat.child
                if child is None or not child.is_stuck(now_ns):
                    continue
                assert seat is not None
                at = self.reload.at(number, who)
                moves = two.moves and self.reload.phase is Phase.COMMITTED
                if at is At.GONE or (at is At.DUTY and not moves):
                    continue  # it has its seat: its successor, if there is one, takes over first
                text = f"{seat.name} (pid {child.pid}) does not end although it was killed"
                _LOG.error("%s: it is waited for no longer", text)
                self.left_behind.append(text)
                self._workers.leave_behind(seat)
                self.reload.lost(number, who, "does not end although it was killed")

    def abandon(self) -> None:
        """The pool stops: whoever loads ends now, the others go on until it has stopped."""
        self._workers.witness = None
        for number, two in enumerate(self._seats):
            for who in Who:
                if self.reload.at(number, who) in (At.LOADING, At.WARM):
                    _end(two.who(who))

    # -- what happens -------------------------------------------------------------------

    def warm(self, seat: Seat) -> None:
        number, who = self._find(seat)
        if number >= 0:
            self.reload.warm(number, who)

    def idle(self, seat: Seat) -> None:
        number, who = self._find(seat)
        if number >= 0:
            self.reload.idle(number, who)

    def lost(self, seat: Seat, child: Child) -> bool:
        number, who = self._find(seat)
        if number < 0 or not self.reload.owns(number, who):
            return False
        at = self.reload.at(number, who)
        if at is At.ENDING:
            _LOG.info("the %s (pid %d) has left", seat.name, child.pid)
        else:
            _LOG.warning("%s (pid %d) %s", seat.name, child.pid, child.why())
        self._lose(number, who, _why(child))
        return True

    def _lose(self, number: int, who: Who, why: str) -> None:
        seat = self._seats[number].who(who)
        if seat in self._workers.beside:
            self._workers.beside.remove(seat)
        elif self._seats[number].old is None:  # its seat was new too
            self._workers.seats.remove(seat)
        self.reload.lost(number, who, why)

    def _find(self, seat: Seat) -> tuple[int, Who]:
        """The place of a worker in this reload; (-1, ...) of one that has none."""
        for number, two in enumerate(self._seats):
            if two.heir is seat:
                return number, Who.HEIR
            if two.old is seat:
                return number, Who.OLD
        return -1, Who.OLD

    # -- what to do ---------------------------------------------------------------------

    def _carry_out(self, order: Order) -> None:
        if order.act is Act.COMMIT:
            self._change_names()
            self._commit()
        elif order.act is Act.START:
            self._start(order.seat, order.who)
        elif order.act is Act.TAKE_OVER:
            self._take_over(order.seat, order.who)
        elif order.act is Act.RELEASE:
            self._release(order.seat, order.who)
        elif order.act is Act.VACATE:
            self._vacate(order.seat)
        else:
            _end(self._seats[order.seat].who(order.who))

    def _change_names(self) -> None:
        """Workers of an entry that comes have been heirs until now, although nobody was in their
        seats; those of one that leaves are not the model's any more."""
        for two in self._seats:
            if two.heir is not None:
                two.heir.part = ""
            if two.moves:
                two.who(Who.OLD).part = "predecessor"

    def _release(self, number: int, who: Who) -> None:
        seat = self._seats[number].who(who)
        is_there, part = seat.ready, seat.part
        self._stand_aside(seat, who)
        seat.part = part or seat.part
        self._workers.relieve(None, seat)
        if not is_there:  # it was about to start again
            seat.start_at_ns = None
            if seat.child is None:
                self._lose(number, who, "was not there")
            else:
                seat.child.kill()

    def _start(self, number: int, who: Who) -> None:
        two = self._seats[number]
        if who is Who.OLD:
            two.old = _successor(two.who(Who.OLD))
        seat = two.who(who)
        self._workers.beside.append(seat)
        try:
            self._workers.start(seat)
        except StartError as exc:
            self._lose(number, who, f"cannot start: {exc}")

    def _take_over(self, number: int, who: Who) -> None:
        two = self._seats[number]
        taker, other = two.who(who), two.other(who)
        self._workers.beside.remove(taker)
        self._seat(taker, other)
        if two.old is None:
            taker.part = "heir"  # the seat is not the plan's yet
        if other is not None and other.child is not None:
            self._stand_aside(other, Who.OLD if who is Who.HEIR else Who.HEIR)
        self._workers.relieve(taker, other)
        if who is Who.HEIR and other is not None and not other.ready:
            # It was about to start again. Its standby would be of no use to anybody.
            other.start_at_ns = None
            if other.child is None:
                self.reload.lost(number, Who.OLD, "was not there")
            else:
                other.child.kill()

    def _seat(self, taker: Seat, other: Seat | None) -> None:
        """Put one into the seat of the other, or into one of its own."""
        taker.part = ""
        seats = self._workers.seats
        if other in seats:
            seats[seats.index(other)] = taker
        else:
            seats.append(taker)
        seats.sort(key=lambda seat: (seat.model, seat.plan.index))

    def _stand_aside(self, seat: Seat, who: Who) -> None:
        seat.part = "heir" if who is Who.HEIR else "standby"
        if seat in self._workers.seats:
            self._workers.seats.remove(seat)
        if seat not in self._workers.beside:
            self._workers.beside.append(seat)

    def _vacate(self, number: int) -> None:
        """The seat is the old plan's and nobody is in it: from now on as any other."""
        two = self._seats[number]
        empty = two.old = _successor(two.who(Who.OLD))
        heir = two.heir
        self._seat(empty, heir)
        if heir is not None and heir.child is not None:
            self._stand_aside(heir, Who.HEIR)
        self._workers.relieve(empty, heir)
        empty.start_at_ns = 0


def _change(two: _Two) -> Change:
    seat = two.heir or two.old
    assert seat is not None
    place = seat.plan.cuda_visible or "cpu"
    return Change(seat.post.name, place, two.old is not None, two.heir is not None, two.moves)


def _successor(seat: Seat) -> Seat:
    """An empty seat for another worker in place of a dead one."""
    place = seat.model, seat.plan, seat.post, seat.of, seat.server
    return Seat(*place, part="standby", on_duty=False)


def _end(seat: Seat) -> None:
    if seat.child is not None:
        seat.child.kill()


def _why(child: Child) -> str:
    """How a worker failed, after its name."""
    why = child.why()
    if why == child.ending():
        return why
    return why if why.startswith(("did not", "was")) else f"failed: {why}"
