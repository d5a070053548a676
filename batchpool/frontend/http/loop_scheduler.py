"""Shares of the event loop's time: callers who ask for much do not make others wait.

A turn of the loop serves every connection that has sent something, and every task that may go on.
Where dozens of callers send as fast as they can, a request of somebody else would wait for a turn
of their work before it is read, and for another one before it is answered. So the work that
callers cause is timed, and a turn does at most `_AT_ONCE_S` of it as it comes. What comes beyond
that waits in a queue, of which a turn does `_QUEUED_S`: its origins take turns by start-time fair
queueing (P. Goyal, H. M. Vin, H. Cheng, 1996), weighted by the time that their work has taken.

    origin          an address, or a network of IPv6 (caller.py): whoever opens many connections,
                    or gives itself many names, gets no more
    virtual time    the start of the work that was done last; an origin's next work starts
                    `_CREDIT_S` before it, or where its last one ended, whichever is later. The
                    earliest start is next
    an origin that has had less than its share    is ahead of all others until it has used that
                    credit up: a few requests at once, or one long one, cost it no round of theirs
    an origin that is alone with its work         waits for nobody, and is not timed

Within an origin its connections and tasks take turns, one piece of work each.

In a turn that is full rows are exchanged with the pool every `_EXCHANGE_S`: what somebody has
submitted early in it runs meanwhile, and an answer that has come is sent before its end.

Times are those of the clock. Where a piece seems long, it counts no more than the CPU time that the
thread has used in it, since other programs, or another thread, may have had the processor.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Callable

_AT_ONCE_S = 0.0005
_QUEUED_S = 0.0005
_CREDIT_S = 0.004  # of work, ahead of all others, of an origin that has had little
_LONG_S = 0.0005  # a piece of work whose CPU time is looked at
_EXCHANGE_S = 0.0005
_ALONE_S = 1.0  # without work of another origin, after which an origin waits for nobody
_KEPT_ORIGINS = 4096  # of which something is known; others have had nothing


class OriginShare:
    """The use of the loop by one origin. start_s: in virtual time, when its next work starts.

    waiting: its work in the queue, and the time in s that each piece counts for beforehand.
    """

    __slots__ = ("start_s", "waiting")

    def __init__(self) -> None:
        self.start_s = 0.0
        self.waiting: deque[tuple[Callable[[], None], float]] = deque()


def _nothing() -> None:
    """For a loop whose turns end with nothing that others wait for."""


class LoopScheduler:
    """The work of callers on one event loop.

    alone: the share of the only origin that has worked of late, which need not be charged. is_full:
    a turn has done as much as it may at once, or work waits: ask `defers` before doing
    more. exchange: publishes the rows that were submitted, and takes those that are done. It is
    called between two pieces of work.
    """

    def __init__(
        self,
        exchange: Callable[[], None] = _nothing,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.alone: OriginShare | None = None
        self.is_full = False
        self._exchange = exchange
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._shares: dict[str, OriginShare] = {}  # the one asked for least recently first
        # One of each origin that waits: the start of its work, the number of its coming.
        self._queue: list[tuple[float, int, OriginShare]] = []
        self._number = 0
        self._virtual_s = 0.0
        self._latest_s = 0.0  # the latest start of any origin
        self._done_s = 0.0  # of the work of this turn
        self._cpu_s = 0.0  # when the piece of work began
        self._exchanged_s = 0.0  # by the clock, in a turn that was full
        self._turn_ends = False  # `_end_turn` will be called
        self._last: OriginShare | None = None  # whose work was done last
        self._alone_s = 0.0  # by the clock, when that origin is alone

    def share_of(self, origin: str) -> OriginShare:
        """The share of an origin, of all its connections."""
        share = self._shares.pop(origin, None)
        if share is None:
            share = OriginShare()
            if len(self._shares) >= _KEPT_ORIGINS:
                del self._shares[next(iter(self._shares))]
        self._shares[origin] = share
        return share

    def begin(self, loop: asyncio.AbstractEventLoop) -> float:
        """A piece of work begins; returns what `charge` needs."""
        if not self._turn_ends:
            self._plan_end(loop)
        if self.is_full:
            self._exchange_if_due(self._clock())
        self._cpu_s = self._cpu_clock()
        return self._clock()

    def charge(self, share: OriginShare, begun_s: float, counted_s: float = 0.0) -> None:
        """A piece of work has ended. begun_s: from `begin`. counted_s: what it has counted for
        already."""
        took_s = self._clock() - begun_s
        if took_s > _LONG_S:
            took_s = min(took_s, self._cpu_clock() - self._cpu_s)
        if share is not self._last:
            if self._last is not None:
                self._alone_s = begun_s + _ALONE_S
            self._last, self.alone = share, None
        took_s -= counted_s
        self._done_s += took_s
        start_s = share.start_s  # by hand, as each request comes here: `max` takes longer
        earliest_s = self._virtual_s - _CREDIT_S
        if start_s < earliest_s:
            start_s = earliest_s
        share.start_s = start_s = start_s + took_s
        if start_s > self._latest_s:
            self._latest_s = start_s
        if self._done_s >= _AT_ONCE_S and begun_s < self._alone_s:
            self.is_full = True

    def defers(self, share: OriginShare) -> bool:
        """True if work of this origin has to wait. For a scheduler that is full."""
        now_s = self._clock()
        if now_s >= self._alone_s:
            return False
        self._exchange_if_due(now_s)
        return self._done_s >= _AT_ONCE_S or share.start_s > self._virtual_s

    def defer(
        self,
        loop: asyncio.AbstractEventLoop,
        share: OriginShare,
        work: Callable[[], None],
        counts_s: float = 0.0,
    ) -> None:
        """Do a piece of work when its turn comes. counts_s: for how long it counts beforehand; the
        rest is charged when it is done."""
        self.alone = None
        share.waiting.append((work, counts_s))
        if len(share.waiting) == 1:
            self._queue_up(share)
        self.is_full = True
        if not self._turn_ends:
            self._plan_end(loop)

    def _exchange_if_due(self, now_s: float) -> None:
        if now_s - self._exchanged_s >= _EXCHANGE_S:
            self._exchanged_s = now_s
            self._exchange()

    def _plan_end(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turn_ends = True
        loop.call_soon(self._end_turn, loop)

    def _end_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turn_ends = self.is_full = False
        if self._queue:
            self._exchange()
            self._exchanged_s = self._clock()
            self._done_s = 0.0
            while self._queue and self._done_s < _QUEUED_S:
                self._do_next(loop)
        self._done_s = 0.0
        if self._queue:
            self.is_full = True
            if not self._turn_ends:
                self._plan_end(loop)
            return
        self.is_full = False
        self._virtual_s = self._latest_s
        if self._clock() >= self._alone_s:
            self.alone = self._last

    def _do_next(self, loop: asyncio.AbstractEventLoop) -> None:
        start_s, _, share = heapq.heappop(self._queue)
        self._virtual_s = max(self._virtual_s, start_s)
        work, counts_s = share.waiting.popleft()
        self._exchange_if_due(self._clock())
        self._cpu_s = self._cpu_clock()
        begun_s = self._clock()
        try:
            work()
        except Exception as exc:
            # What waits behind it must not wait for ever.
            loop.call_exception_handler({"message": "deferred work failed", "exception": exc})
        self.charge(share, begun_s, -counts_s)
        if share.waiting:
            self._queue_up(share)

    def _queue_up(self, share: OriginShare) -> None:
        self._number += 1
        start_s = max(share.start_s, self._virtual_s - _CREDIT_S)
        heapq.heappush(self._queue, (start_s, self._number, share))
