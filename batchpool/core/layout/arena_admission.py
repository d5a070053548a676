"""Room in a lane's arena: admission of claims by watermark and fair share, as for slots, in bytes.

A claim of n rows takes n runs, all or none. Beside the causes for which slots are refused, there
may be bytes but no run of them that is long enough for a row, and small rows could take what
becomes free for ever. So the length of the largest row that was refused is kept: until such a row
has come, or the time of the refused one is up, claims of smaller rows leave a run of so many bytes,
if there is one, and so many bytes below the watermark. While a row as large as that is under way
nothing is kept for a second one, and never more than half of the arena; so that small rows find
room as well, however many large ones are refused. A call that needs more than half has a turn
(core/layout/whole_turn.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from batchpool.core.flows import NAMED_FROM, origin_of
from batchpool.core.layout.admission import Cause, Refusal
from batchpool.core.layout.free_runs import FreeRuns
from batchpool.core.layout.whole_turn import WholeTurn
from batchpool.core.priority import DEFAULT as DEFAULT_PRIORITY


class ArenaAllocator:
    """The claimed runs of one lane's arena, in its client's process.

    nbytes: of the arena. largest: the most bytes of a row. used: bytes claimed now. bound: the most
    that may be, at least one row. held: {flow: bytes that it has claimed}, without zeros and
    without flow 0. named: {origin: bytes that its flows with names have claimed}, none of them 0.
    shut: a claim was refused, and not less than `reopen` of it has become free.
    """

    def __init__(self, nbytes: int, largest: int, watermark: float = 0.90) -> None:
        assert largest <= nbytes
        self.nbytes = nbytes
        self.used = 0
        self.held: dict[int, int] = {}
        self.named: dict[int, int] = {}
        self.shut = False
        self._largest = largest
        self._free = FreeRuns(nbytes)
        self._runs: dict[int, int] = {}  # claimed: their sizes by their places
        self._kept = 0  # the length of a run
        self._kept_bytes = 0
        self._kept_until_ns = 0
        self._as_large = 0  # claimed runs of at least the kept length
        self._turn = WholeTurn()
        self.set_watermark(watermark)

    def set_watermark(self, watermark: float, reopen: float = 0.80) -> None:
        """Set another bound. What is claimed above it stays claimed."""
        self.bound = max(self._largest, math.floor(self.nbytes * watermark + 1e-9))
        self.share = self.bound // 2
        self.reopen_below = max(1, math.ceil(self.nbytes * min(reopen, watermark) - 1e-9))

    def claim(
        self,
        sizes: Sequence[int],
        now_ns: int,
        *,
        flow: int = 0,
        contested: bool = False,
        origin_contested: bool = False,
        priority: int = 0,
    ) -> list[int] | Refusal:
        """The places of runs of these sizes, or why there are none; a refusal shuts the arena.

        A size of 0 takes nothing and gets the place 0. contested: other flows are active, so that
        this one has a share. origin_contested: the same of its origin. priority: as of
        `SlotAllocator.refusal`.
        """
        total = sum(sizes)
        if contested and (held := self.held.get(flow, 0)) and held + total > self.share:
            return Refusal(Cause.ARENA_SHARE, held, min(held, held + total - self.share))
        held = self._held_of(flow) if self.named and origin_contested else 0
        if held and held + total > self.share:
            return Refusal(Cause.ARENA_SHARE, held, min(held, held + total - self.share))
        raised = 0 < priority < DEFAULT_PRIORITY
        kept, kept_bytes = (0, 0) if raised else self._kept_from(sizes, total, now_ns)
        over = self.used + total + kept_bytes - (self.nbytes if raised else self.bound)
        if self.shut and self.used < self.reopen_below:
            self.shut = False
        if over <= 0 and (raised or not self.shut):
            places = self._take(sizes, kept)
            if places is not None:
                self._admitted(places, sizes, total, flow)
                return places
        self.shut = True
        if not raised:
            over = max(over, self.used - self.reopen_below + 1)
        return Refusal(Cause.ARENA, self.used, max(1, over))

    def _held_of(self, flow: int) -> int:
        """The bytes that all flows of this one's origin have claimed."""
        origin = origin_of(flow)
        return self.held.get(origin, 0) + self.named.get(origin, 0)

    def full(self, priority: int = 0) -> Refusal | None:
        """The refusal that a claim of any size would meet now; None if small ones may fit."""
        raised = 0 < priority < DEFAULT_PRIORITY
        is_shut = not raised and self.shut and self.used >= self.reopen_below
        if self.used < (self.nbytes if raised else self.bound) and not is_shut:
            return None
        return Refusal(Cause.ARENA, self.used, max(1, self.used - self.reopen_below + 1))

    def has_room(self, sizes: Sequence[int], now_ns: int, priority: int = 0) -> bool:
        """True if runs of these sizes may be claimed now, whatever their flow. Shuts nothing."""
        total = sum(sizes)
        raised = 0 < priority < DEFAULT_PRIORITY
        kept, kept_bytes = (0, 0) if raised else self._kept_from(sizes, total, now_ns)
        if self.used + total + kept_bytes > (self.nbytes if raised else self.bound):
            return False
        if not raised and self.shut and self.used >= self.reopen_below:
            return False
        places = self._take(sizes, kept)
        if places is None:
            return False
        self._put_back(places, sizes)
        return True

    def keep(self, sizes: Sequence[int], now_ns: int, until_ns: int) -> None:
        """Keep room for rows of these sizes that were refused and come again, together, before
        until_ns: a run for the largest, and bytes for all, of which half of the arena is kept at
        most; where they need more, their turn comes."""
        size, total = max(sizes, default=0), sum(sizes)
        if self.bound // 2 < total <= self.bound:
            self._turn.want(total, now_ns, until_ns)
        if size < self._kept or not size or size > self.nbytes // 2 or size >= self.bound:
            return
        self._as_large = sum(run >= size for run in self._runs.values())
        self._kept, self._kept_until_ns = size, until_ns
        self._kept_bytes = max(size, min(total, self.bound // 2))

    def forget(self, sizes: Sequence[int]) -> None:
        """Keep no room for refused rows of these sizes: they do not come again."""
        self._turn.forget(sum(sizes))
        if max(sizes, default=0) == self._kept:
            self._kept = 0

    def give_back(self, place: int, size: int, flow: int = 0) -> None:
        """Free a claimed run of a flow; one of no bytes is nothing."""
        if not size:
            return
        had = self._runs.pop(place)
        assert had == size, f"the run at {place} has {had} bytes, not {size}"
        self._free.give_back(place, size)
        self._turn.gave_back(place)
        self.used -= size
        self._as_large -= size >= self._kept
        if flow:
            left = self.held[flow] - size
            assert left >= 0, f"flow {flow} gives back {size} bytes and holds {left + size}"
            if left:
                self.held[flow] = left
            else:
                del self.held[flow]
            if flow >= NAMED_FROM:
                origin = origin_of(flow)
                self.named[origin] -= size
                if not self.named[origin]:
                    del self.named[origin]

    def _kept_from(self, sizes: Sequence[int], total: int, now_ns: int) -> tuple[int, int]:
        """The length of a run, and the bytes, that a claim of these sizes must leave."""
        if self._turn.total:
            if self._turn.refuses(total, self.bound - self.used, now_ns):
                return self._kept, self.bound
            if self._turn.is_of(total):
                return 0, 0
        if self._kept and now_ns >= self._kept_until_ns:
            self._kept = 0
        if max(sizes, default=0) >= self._kept or self._as_large:
            return 0, 0
        return self._kept, self._kept_bytes

    def _admitted(self, places: Sequence[int], sizes: Sequence[int], total: int, flow: int) -> None:
        for place, size in zip(places, sizes, strict=True):
            if size:
                self._runs[place] = size
                self._as_large += size >= self._kept
        self.used += total
        if self._turn.total == total and total:
            runs = zip(places, sizes, strict=True)
            self._turn.came(total, [place for place, size in runs if size])
        if flow and total:
            self.held[flow] = self.held.get(flow, 0) + total
            if flow >= NAMED_FROM:
                origin = origin_of(flow)
                self.named[origin] = self.named.get(origin, 0) + total

    def _take(self, sizes: Sequence[int], keep: int) -> list[int] | None:
        """Runs of all these sizes, or none of them."""
        places: list[int] = []
        for size in sizes:
            place = self._free.take(size, keep) if size else 0
            if place < 0:
                self._put_back(places, sizes)
                return None
            places.append(place)
        return places

    def _put_back(self, places: Sequence[int], sizes: Sequence[int]) -> None:
        for place, size in zip(places, sizes, strict=False):
            if size:
                self._free.give_back(place, size)
