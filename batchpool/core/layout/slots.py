"""Which slots of a lane are claimed, by whom, and when a claim is refused: pure bookkeeping.

Slots are handed out next-fit: the search goes on where the last one ended, so that rows that
come one after another lie side by side, and a batch of them is one extent.

A claim of n rows is refused for one of two causes:

    SHARE  The flow holds slots already and would hold more than its share, half of the bound,
           while others are active. A flow that holds nothing may claim one request of any
           size, so that a large one is not refused for ever. Nobody else is shut out.
    LANE   claimed + n > bound, which is floor(watermark x slots); for a raised priority all
           slots. After that the lane is shut until fewer than `reopen` x slots are claimed, so
           that it does not flap; a raised priority does not mind that.

A flow is active while it holds slots, and until ACTIVE_NS after it last asked for some. Asking
counts, not only getting: else a newcomer that finds the lane full of another's rows would have
to be lucky, again and again.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from batchpool.core.priority import DEFAULT as DEFAULT_PRIORITY
from batchpool.core.tensors.dtypes import Array

ACTIVE_NS = 1_000_000_000

_FREE = b"\0"
_NEVER_NS = -(1 << 63)


class Cause(enum.Enum):
    """What keeps a claim out."""

    LANE = "lane"
    SHARE = "share"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a claim was refused. held: slots that count against it, the lane's or its flow's own.
    over: how many of these must be free before it fits."""

    cause: Cause
    held: int
    over: int


def bound_of(slots: int, watermark: float) -> int:
    """The most slots that may be claimed at once; at least 1."""
    return max(1, math.floor(slots * watermark + 1e-9))


class SlotAllocator:
    """The claimed slots of one lane, for its one client.

    flow: whose rows they are, where the client has several callers; 0 is a client that has none
    but itself, and no share. held: {flow: slots it has claimed}, without zeros and without
    flow 0; only this class writes it.
    """

    def __init__(self, slots: int, watermark: float = 0.90, reopen: float = 0.80) -> None:
        self.slots = slots
        self.set_watermark(watermark, reopen)
        self.claimed = 0
        self.held: dict[int, int] = {}
        self.shut = False
        self._used = bytearray(slots)
        self._view = np.frombuffer(self._used, dtype=np.uint8)
        self._cursor = 0
        # Who asked last, and when any other flow did: all it takes to know who is active.
        self._asker = 0
        self._asked_ns = _NEVER_NS
        self._other_asked_ns = _NEVER_NS

    def set_watermark(self, watermark: float, reopen: float = 0.80) -> None:
        """Another bound from now on; who holds more than that keeps it."""
        self.bound = bound_of(self.slots, watermark)
        self.share = max(1, self.bound // 2)
        self.reopen_below = max(1, math.ceil(self.slots * min(reopen, watermark) - 1e-9))

    def refusal(self, n: int, flow: int = 0, now_ns: int = 0, priority: int = 0) -> Refusal | None:
        """Why n more rows may not be claimed now; None if they may.

        priority: 1 (first) to 255; what is before the default is raised; 0 is the default.
        Asking makes the flow active, and a refusal for want of room shuts the lane.
        """
        if flow and (exceeds := self._exceeds_share(n, flow, now_ns)):
            return exceeds
        raised = 0 < priority < DEFAULT_PRIORITY
        over = self.claimed + n - (self.slots if raised else self.bound)
        if self.shut and self.claimed < self.reopen_below:
            self.shut = False
        if over <= 0 and (raised or not self.shut):
            return None
        self.shut = True
        if not raised:
            over = max(over, self.claimed - self.reopen_below + 1)
        return Refusal(Cause.LANE, self.claimed, over)

    def _exceeds_share(self, n: int, flow: int, now_ns: int) -> Refusal | None:
        if flow != self._asker:
            self._other_asked_ns = self._asked_ns
            self._asker = flow
        self._asked_ns = now_ns
        held = self.held.get(flow, 0)
        if held == 0 or held + n <= self.share:
            return None
        if self.claimed == held and now_ns - self._other_asked_ns > ACTIVE_NS:
            return None
        return Refusal(Cause.SHARE, held, min(held, held + n - self.share))

    def has_room(self, n: int, priority: int = 0) -> bool:
        """Whether the lane has room for n more rows of any flow; asking so changes nothing."""
        if 0 < priority < DEFAULT_PRIORITY:
            return self.claimed + n <= self.slots
        if self.shut and self.claimed >= self.reopen_below:
            return False
        return self.claimed + n <= self.bound

    def take_one(self, flow: int = 0) -> int:
        """The next free slot. The caller asked for a `refusal` first."""
        slot = self._used.find(_FREE, self._cursor)
        if slot < 0:
            slot = self._used.find(_FREE)
            assert slot >= 0, "no free slot although the lane admitted the claim"
        self._used[slot] = 1
        self._cursor = slot + 1
        self.claimed += 1
        if flow:
            self.held[flow] = self.held.get(flow, 0) + 1
        return slot

    def take(self, n: int, flow: int = 0) -> Sequence[int]:
        """n free slots, neighbours if there is such a run ahead or at all, else scattered."""
        run = _FREE * n
        first = self._used.find(run, self._cursor)
        if first < 0:
            first = self._used.find(run)
        if first >= 0:
            self._used[first : first + n] = b"\1" * n
            self._cursor = first + n
            self.claimed += n
            if flow:
                self.held[flow] = self.held.get(flow, 0) + n
            return range(first, first + n)
        return [self.take_one(flow) for _ in range(n)]

    def give_back(self, slot: int, flow: int = 0) -> None:
        assert self._used[slot], f"slot {slot} given back twice"
        if flow:
            self._let_go(1, flow)
        self._used[slot] = 0
        self.claimed -= 1

    def give_back_many(self, slots: Sequence[int] | Array, flow: int = 0) -> None:
        if isinstance(slots, range):
            slots = np.arange(slots.start, slots.stop)
        assert bool(self._view[slots].all()), "slots given back twice"
        if flow:
            self._let_go(len(slots), flow)
        self._view[slots] = 0
        self.claimed -= len(slots)

    def _let_go(self, n: int, flow: int) -> None:
        left = self.held.get(flow, 0) - n
        assert left >= 0, f"flow {flow} gives back {n} slots and holds {left + n}"
        if left:
            self.held[flow] = left
        else:
            del self.held[flow]

    def is_claimed(self, slot: int) -> bool:
        return bool(self._used[slot])
