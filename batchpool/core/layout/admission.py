"""Slot allocation of a lane, and admission of claims by watermark and fair share.

Slots are allocated next-fit: the search continues where the last one ended, so that rows that
come in one after another get neighbouring slots, and a batch of them is one extent.

A claim of n rows is refused for one of two causes:

    SHARE  The flow holds slots and would hold more than its share, half of the bound, while
           other flows are active. A flow that holds nothing may claim one request of any size,
           so that a large one is not refused for ever. Other flows are not affected. The same
           holds of all flows of one origin together (core/flows.py) while other origins are
           active, so that no number of names is more than one share.
    LANE   claimed + n > bound, which is floor(watermark x slots), or all slots for a raised
           priority. From then on the lane is shut until fewer than `reopen` x slots are
           claimed (hysteresis); a raised priority is admitted meanwhile.

A flow is active while it holds slots, and for ACTIVE_NS after its last claim, refused ones
included: a newcomer that finds the lane full of another flow's rows is then given a share.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from batchpool.core.flows import NAMED_FROM, origin_of
from batchpool.core.priority import DEFAULT as DEFAULT_PRIORITY
from batchpool.core.tensors.dtypes import Array

ACTIVE_NS = 1_000_000_000

_FREE = b"\0"
_NEVER_NS = -(1 << 63)


class Cause(enum.Enum):
    """The limit that a refused claim exceeds."""

    LANE = "lane"
    SHARE = "share"
    ARENA = "arena"
    ARENA_SHARE = "arena share"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The refusal of a claim.

    held: the slots that count against it, of the lane or of its flow; of the causes of an arena
    (core/layout/arena_admission.py) its bytes.  over: how many of these must become free before
    it fits.
    """

    cause: Cause
    held: int
    over: int

    @property
    def is_of_lane(self) -> bool:
        """True if the lane has no room, False if only the share of the flow has none."""
        return self.cause in (Cause.LANE, Cause.ARENA)


def bound_of(slots: int, watermark: float) -> int:
    """The most slots that may be claimed at a time; at least 1."""
    return max(1, math.floor(slots * watermark + 1e-9))


class SlotAllocator:
    """The claimed slots of one lane, in its client's process.

    A flow is one caller of a client that has several; flow 0 is a client without callers, which
    has no share.  claimed: slots claimed now.  held: {flow: slots that it has claimed}, without
    zeros and without flow 0.  named: {origin: slots that its flows with names have claimed}, none
    of them 0.  shut: the lane is above its watermark and not yet below `reopen`.
    """

    def __init__(self, slots: int, watermark: float = 0.90, reopen: float = 0.80) -> None:
        self.slots = slots
        self.set_watermark(watermark, reopen)
        self.claimed = 0
        self.held: dict[int, int] = {}
        self.named: dict[int, int] = {}
        self.shut = False
        self._used = bytearray(slots)
        self._view = np.frombuffer(self._used, dtype=np.uint8)
        self._cursor = 0
        # The flow of the last claim, and the times of its and of any other flow's last claim: they
        # suffice to know whether another flow is active.
        self._last_flow = 0
        self._claimed_ns = _NEVER_NS
        self._other_claimed_ns = _NEVER_NS
        # The same of origins, whose last claim is that of the last flow.
        self._last_origin = 0
        self._other_origin_ns = _NEVER_NS

    def set_watermark(self, watermark: float, reopen: float = 0.80) -> None:
        """Set another bound. Slots above it stay claimed."""
        self.bound = bound_of(self.slots, watermark)
        self.share = max(1, self.bound // 2)
        self.reopen_below = max(1, math.ceil(self.slots * min(reopen, watermark) - 1e-9))

    def refusal(self, n: int, flow: int = 0, now_ns: int = 0, priority: int = 0) -> Refusal | None:
        """The refusal of a claim of n more rows; None if they may be claimed.

        priority: 1 (first) to 255; one before the default is raised; 0 is the default.  The call
        makes the flow active, and a refusal by the LANE shuts the lane.
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
        if flow != self._last_flow:
            self._other_claimed_ns = self._claimed_ns
            self._last_flow = flow
            origin = origin_of(flow)
            if origin != self._last_origin:
                self._other_origin_ns = self._claimed_ns
                self._last_origin = origin
        self._claimed_ns = now_ns
        held = self.held.get(flow, 0)
        if held and held + n > self.share and self.is_contested(flow, now_ns):
            return Refusal(Cause.SHARE, held, min(held, held + n - self.share))
        if not self.named:
            return None
        held = self.held_of(origin_of(flow))
        if held and held + n > self.share and self.is_origin_contested(flow, now_ns):
            return Refusal(Cause.SHARE, held, min(held, held + n - self.share))
        return None

    def held_of(self, origin: int) -> int:
        """The slots that all flows of an origin have claimed."""
        return self.held.get(origin, 0) + self.named.get(origin, 0)

    def is_origin_contested(self, flow: int, now_ns: int) -> bool:
        """True if flows of other origins are active; flow 0 has no others."""
        origin = origin_of(flow)
        is_last = origin == self._last_origin
        others_ns = self._other_origin_ns if is_last else self._claimed_ns
        alone = self.claimed == self.held_of(origin)
        return flow != 0 and not (alone and now_ns - others_ns > ACTIVE_NS)

    def is_contested(self, flow: int, now_ns: int) -> bool:
        """True if flows are active besides this one; flow 0 has no others."""
        is_last = flow == self._last_flow
        others_ns = self._other_claimed_ns if is_last else self._claimed_ns
        alone = self.claimed == self.held.get(flow, 0)
        return flow != 0 and not (alone and now_ns - others_ns > ACTIVE_NS)

    def has_room(self, n: int, priority: int = 0) -> bool:
        """True if the lane may take n more rows, whatever their flow. Changes nothing."""
        if 0 < priority < DEFAULT_PRIORITY:
            return self.claimed + n <= self.slots
        if self.shut and self.claimed >= self.reopen_below:
            return False
        return self.claimed + n <= self.bound

    def take_one(self, flow: int = 0) -> int:
        """Claim the next free slot. The caller has checked `refusal` before."""
        slot = self._used.find(_FREE, self._cursor)
        if slot < 0:
            slot = self._used.find(_FREE)
            assert slot >= 0, "no free slot although the lane admitted the claim"
        self._used[slot] = 1
        self._cursor = slot + 1
        self.claimed += 1
        if flow:
            self.held[flow] = self.held.get(flow, 0) + 1
            if flow >= NAMED_FROM:
                self._count_named(1, flow)
        return slot

    def take(self, n: int, flow: int = 0) -> Sequence[int]:
        """Claim n free slots: neighbours if there is such a run, else scattered ones."""
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
                if flow >= NAMED_FROM:
                    self._count_named(n, flow)
            return range(first, first + n)
        return [self.take_one(flow) for _ in range(n)]

    def give_back(self, slot: int, flow: int = 0) -> None:
        """Free a claimed slot of a flow."""
        assert self._used[slot], f"slot {slot} given back twice"
        if flow:
            self._release_share(1, flow)
        self._used[slot] = 0
        self.claimed -= 1

    def give_back_many(self, slots: Sequence[int] | Array, flow: int = 0) -> None:
        """Free different claimed slots of one flow."""
        if isinstance(slots, range):
            slots = np.arange(slots.start, slots.stop)
        assert bool(self._view[slots].all()), "slots given back twice"
        if flow:
            self._release_share(len(slots), flow)
        self._view[slots] = 0
        self.claimed -= len(slots)

    def _count_named(self, n: int, flow: int) -> None:
        """Count n slots more, or fewer, for the origin of a flow with a name."""
        origin = origin_of(flow)
        left = self.named.get(origin, 0) + n
        if left:
            self.named[origin] = left
        else:
            del self.named[origin]

    def _release_share(self, n: int, flow: int) -> None:
        left = self.held.get(flow, 0) - n
        assert left >= 0, f"flow {flow} gives back {n} slots and holds {left + n}"
        if left:
            self.held[flow] = left
        else:
            del self.held[flow]
        if flow >= NAMED_FROM:
            self._count_named(-n, flow)

    def is_claimed(self, slot: int) -> bool:
        return bool(self._used[slot])
