"""The memory that the callers of one front end may make it hold, counted in one budget.

Counted, once they are there:

    a head that is not complete
    a body while it arrives in several reads
    a compressed body's decoded bytes, from the start of the decoding until its rows are submitted
    bytes behind a request that is under way, which are not parsed before its response is complete
    a response beyond the high-water mark of its transport, until the caller has taken it

Bytes count when they have come, not when they are announced: a caller that announces much and sends
nothing does not exclude others. A request that comes whole in one read never counts: it is freed
with that read.

A caller has a share. With H bytes held by all, of B in the budget, one caller may hold
`_SHARE * (B - H)`: four fifths of the budget if it is alone, and less with each other caller that
holds as much as it may, so that something is left for a newcomer (the dynamic thresholds of
Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998).
One body of the largest size is never above a caller's share.

An eighth of the budget is never taken by bodies and heads, however many callers send them, unless
one body of the largest size would not fit otherwise: requests that come whole go on beside bodies
that never end.

A number of addresses could still hold all of that, each within its share, and everybody else
would be refused. So what comes slowly is given up for whoever needs room: of the bodies and heads
that still arrive, and the responses that callers do not read, those that moved at less than
`_SLOW_BYTES_S` in the last seconds, or not at all for `_STILL_S`, a second after they began at the
earliest, the slowest first. They are taken only from who holds half of an equal share of the
budget, or more. So strangers shut nobody out whose body takes up to half of the budget, however
many addresses they have: those who hold less than half of an equal share hold less than half of all
together, and what the others hold either moves on, or goes. And strangers throw no body out that
comes faster than that, or of who holds little, or that comes faster than their own do.

Callers of a few addresses could fill the budget anew as fast as they can send. So whoever needs
room, and holds with it at most half of what the largest holder does, gets it from that one where it
holds several things: the one that has stood still for longest is given up.

A body or a head that does not fit is refused, and so is a long response: of what callers do not
read, all of them together may have three quarters, and one of them its share of these, or whoever
sends requests and reads no answer would shut the others out. A short response is written in any
case. While the budget is used up no request is taken, and callers that are behind with reading are
cut.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeAlias

from batchpool.core.errors import Overloaded
from batchpool.core.flows import origin_of

GiveUp: TypeAlias = Callable[[Overloaded], bool]

_RETRY_AFTER_MS = 1000
_SHARE = 4
_RESERVE = 8
_SLOW_BYTES_S = 256 << 10  # of a body, a head or a response
_STILL_S = 5.0  # what has not moved for so long is slow, however fast it came before
_MARKS_S = 2.0  # between the times from which a pace is counted, at least
_YOUNG_S = 1.0  # too young to be called slow
_LOOK_AGAIN_S = 0.05  # after nothing was slow: a crowd that is refused does not look for each
_LOOKED_AT = 8  # of what one caller lets stand still; the slowest stand at the front


class MemoryBudget:
    """The bytes held for all callers. max_bytes: the most that may be held.

    body_bytes: the largest body of one request. clock: in seconds. is_full: no byte more may be
    held.
    """

    def __init__(
        self, max_bytes: int, body_bytes: int = 0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.clock = clock
        self.max_bytes = max_bytes
        self.body_bytes = body_bytes
        self.held_bytes = 0
        self.is_full = False
        self._none_slow_until_s = -math.inf
        # Bytes held by origin, which no caller can make up; without those who hold nothing.
        self._callers: dict[int, int] = {}
        # What may be given up, by origin; what has stood still for longest comes first.
        self._yielding: dict[int, dict[MemoryReservation, None]] = {}

    def learn(self, max_bytes: int, body_bytes: int) -> None:
        """Take other limits from now on."""
        self.max_bytes = max_bytes
        self.body_bytes = body_bytes
        self.is_full = self.held_bytes >= max_bytes

    def held_for(self, flow: int) -> int:
        """The bytes held for one caller, under all of its names."""
        return self._callers.get(origin_of(flow), 0)

    def take(self, flow: int, more_bytes: int) -> None:
        """Count more bytes for a caller. Raises Overloaded, counting nothing, for too many."""
        most_bytes = self._most_arriving()
        mine = self.held_for(flow) + more_bytes
        if self.held_bytes + more_bytes > most_bytes:
            self._make_room(flow, mine, most_bytes - more_bytes)
        held_bytes = self.held_bytes + more_bytes
        if held_bytes > most_bytes:
            raise self._used_up()
        if flow and mine > max(self.body_bytes, _SHARE * (self.max_bytes - held_bytes)):
            raise self._above_share()
        self._set(flow, held_bytes, mine)

    def count(self, flow: int, more_bytes: int) -> None:
        """Count bytes of a caller that cannot be refused any more."""
        self._set(flow, self.held_bytes + more_bytes, self.held_for(flow) + more_bytes)

    def check_response(self, flow: int, size: int) -> None:
        """Raise Overloaded for a response of so many bytes that its caller may not take just now.

        A response that is larger than all that callers may leave unread goes where the budget is
        almost unused, since it would go nowhere else.
        """
        mine = self.held_for(flow)
        most = self.max_bytes - 2 * (self.max_bytes // _RESERVE)
        if self.held_bytes + size > most:
            self._make_room(flow, mine + size, most - size)
        held_bytes = self.held_bytes + size
        if held_bytes > most and self.held_bytes > self.max_bytes // _RESERVE:
            raise self._used_up()
        if mine and flow and mine + size > _SHARE * (most - held_bytes):
            raise self._above_share()

    def check(self) -> None:
        """Raise Overloaded while the budget is used up."""
        if self.is_full:
            raise self._used_up()

    def may_yield(self, reservation: MemoryReservation) -> None:
        """Something that may be given up has moved: its size is not what it was."""
        origin = origin_of(reservation.flow)
        kept = self._yielding.setdefault(origin, {})
        kept.pop(reservation, None)
        kept[reservation] = None

    def forget(self, reservation: MemoryReservation) -> None:
        """Something must not be given up any more."""
        origin = origin_of(reservation.flow)
        if (kept := self._yielding.get(origin)) is not None:
            kept.pop(reservation, None)
            if not kept:
                del self._yielding[origin]

    def _make_room(self, flow: int, mine: int, most_bytes: int) -> None:
        """Give up what comes slowly, and what the largest holder's callers let stand still, until
        no more than this is held, for a caller that will hold `mine`."""
        while flow and self._yielding and self.held_bytes > most_bytes:
            if _given_up(self._slow(origin_of(flow)), self._too_slow):
                continue
            largest = max(self._yielding, key=lambda origin: self._callers.get(origin, 0))
            several = list(self._yielding[largest])
            if len(several) < 2 or self._callers.get(largest, 0) < 2 * mine:
                return
            if not _given_up(several, self._from_largest):
                return

    def _slow(self, own: int) -> list[MemoryReservation]:
        """The reservations of other origins than this one that come slowly, the slowest first."""
        now_s = self.clock()
        if now_s < self._none_slow_until_s:
            return []
        paces = [
            (pace, reservation)
            for reservation in self._of_holders()
            if (pace := reservation.pace(now_s)) < _SLOW_BYTES_S
        ]
        if not paces:  # of nobody, whoever asks: so that nobody keeps others from looking
            self._none_slow_until_s = now_s + _LOOK_AGAIN_S
        paces.sort(key=lambda pair: pair[0])
        return [each for _, each in paces if origin_of(each.flow) != own]

    def _of_holders(self) -> Iterator[MemoryReservation]:
        """The reservations that may be given up of those who hold half of an equal share or more,
        where one more than they are has such a share."""
        least_bytes = self._most_arriving() // (2 * (len(self._callers) + 1))
        for origin, kept in self._yielding.items():
            if self._callers.get(origin, 0) >= least_bytes:
                yield from islice(kept, _LOOKED_AT)

    def _most_arriving(self) -> int:
        """The bytes that may be held when more of a body or a head comes."""
        most = self.max_bytes - self.max_bytes // _RESERVE
        return max(most, min(self.max_bytes, self.body_bytes))

    def _used_up(self) -> Overloaded:
        # No text says how much came: that depends on how the bytes were cut into reads.
        return Overloaded(
            "requests and responses take all of the memory that the server has for them,"
            f" {self.max_bytes} bytes; send the request again",
            _RETRY_AFTER_MS,
        )

    def _above_share(self) -> Overloaded:
        return Overloaded(
            "this caller's requests and responses take more than its share of the"
            f" {self.max_bytes} bytes that the server holds of them; send fewer at a time, and read"
            " the responses",
            _RETRY_AFTER_MS,
        )

    def _from_largest(self) -> Overloaded:
        return Overloaded(
            "the server gave this request up for another caller's: this caller's requests and"
            f" responses take most of the {self.max_bytes} bytes that it holds of them; send fewer"
            " at a time, and faster",
            _RETRY_AFTER_MS,
        )

    def _too_slow(self) -> Overloaded:
        return Overloaded(
            "the server gave this request up for another caller's: it comes, or its response is"
            f" read, at less than {_SLOW_BYTES_S} bytes a second, and requests and responses take"
            f" most of the {self.max_bytes} bytes that the server holds of them; send it again",
            _RETRY_AFTER_MS,
        )

    def give_back(self, flow: int, fewer_bytes: int) -> None:
        """Count fewer bytes for a caller."""
        self._set(flow, self.held_bytes - fewer_bytes, self.held_for(flow) - fewer_bytes)

    def _set(self, flow: int, held_bytes: int, mine: int) -> None:
        self.held_bytes = held_bytes
        self.is_full = held_bytes >= self.max_bytes
        origin = origin_of(flow)
        if mine:
            self._callers[origin] = mine
        else:
            del self._callers[origin]


def _given_up(reservations: Iterable[MemoryReservation], error: Callable[[], Overloaded]) -> bool:
    """Give the first of these up that does not have to go on; False if all of them have to."""
    for reservation in list(reservations):
        give_up = reservation.give_up
        if give_up is not None and give_up(error()):
            reservation.release()
            return True
    return False


class MemoryReservation:
    """The bytes held of one thing. size: in bytes. flow: of its caller; 0 has no share.

    give_up: gives the thing up for another caller's and returns True, or returns False where it
    must go on; None for what is never given up. To be set while nothing is held.
    """

    __slots__ = (
        "_before_s",
        "_began_s",
        "_budget",
        "_bytes_at_mark",
        "_bytes_before",
        "_mark_s",
        "_moved_bytes",
        "_moved_s",
        "flow",
        "give_up",
        "size",
    )

    def __init__(
        self, budget: MemoryBudget, flow: int = 0, *, give_up: GiveUp | None = None
    ) -> None:
        self._budget = budget
        self.flow = flow
        self.give_up = give_up
        self.size = 0
        self._began_s = self._moved_s = 0.0
        self._moved_bytes = 0
        # The pace is that since the mark before the last one.
        self._before_s = self._mark_s = 0.0
        self._bytes_before = self._bytes_at_mark = 0

    def pace(self, now_s: float) -> float:
        """The bytes a second that came, or went, lately; of what is young, no less than of any
        other."""
        if now_s - self._began_s < _YOUNG_S:
            return math.inf
        if now_s - self._moved_s >= _STILL_S:
            return 0.0
        return (self._moved_bytes - self._bytes_before) / (now_s - self._before_s)

    def grow_to(self, size: int) -> None:
        """Record that `size` bytes are held by now, which may be fewer than before.

        Raises Overloaded where the budget or the caller's share would be exceeded; the earlier
        reservation is kept then.
        """
        more = size - self.size
        if more > 0:
            self._budget.take(self.flow, more)
        elif more < 0:
            self._budget.give_back(self.flow, -more)
        if self.give_up is not None and more:
            self._move(size)
        self.size = size

    def count(self, size: int) -> None:
        """Record that `size` bytes are held by now, of what cannot be refused any more."""
        if size > self.size:
            self._budget.count(self.flow, size - self.size)
            if self.give_up is not None:
                self._move(size)
            self.size = size
        else:
            self.grow_to(size)

    def keep(self) -> None:
        """Let it be given up for nobody from now on."""
        self._budget.forget(self)
        self.give_up = None

    def close(self) -> None:
        """Give the whole reservation back, and let go of what it belongs to."""
        self.release()
        self.give_up = None

    def release(self) -> None:
        """Give the whole reservation back."""
        if self.size:
            self._budget.give_back(self.flow, self.size)
            if self.give_up is not None:
                self._move(0)
            self.size = 0

    def _move(self, size: int) -> None:
        """Note that the size changes to this one."""
        self._moved_s = now_s = self._budget.clock()
        if not self.size:
            self._began_s = self._before_s = self._mark_s = now_s
            self._moved_bytes = self._bytes_before = self._bytes_at_mark = 0
        elif now_s - self._mark_s >= _MARKS_S:
            self._before_s, self._bytes_before = self._mark_s, self._bytes_at_mark
            self._mark_s, self._bytes_at_mark = now_s, self._moved_bytes
        self._moved_bytes += abs(size - self.size)
        if size:
            self._budget.may_yield(self)
        else:
            self._budget.forget(self)
