"""The turn of a call whose rows together take more than half of an arena.

No more than half is kept free for what was refused, since small rows want room as well. A call that
needs more would never find it while small rows keep coming. So when it has waited for a while its
turn begins, in which all others are refused:

    refused    TURN_NS    its turn: no row is admitted, those under way end    it comes
    --|--------------------|----------------------------------------------------|--------->
       half is kept

A turn ends unused where the call does not ask again within TURN_NS although there is room. The next
one begins no sooner than TURN_NS after the call that had a turn has ended, or after an unused turn,
so that turns leave time for small rows. After each further turn that is not used it takes twice as
long, since callers that are refused may never come back.
"""

from __future__ import annotations

from collections.abc import Sequence

TURN_NS = 1_000_000_000
_WAIT_NS_MOST = 64 * TURN_NS


class WholeTurn:
    """The call that has its turn in one arena, or waits for it. total: its bytes; 0 if there
    is none."""

    def __init__(self) -> None:
        self.total = 0
        self._until_ns = 0  # when the call is expected no more
        self._wait_ns = TURN_NS
        self._begins_ns = 0
        self._ends_ns = 0  # 0 until there is room
        self._has_begun = False
        self._places: set[int] = set()  # of the runs of a call under way that had a turn

    def want(self, total: int, now_ns: int, until_ns: int) -> None:
        """A call of so many bytes was refused, and comes again before until_ns."""
        if self.total and now_ns < self._until_ns and total != self.total:
            return
        if not self.total or now_ns >= self._until_ns:
            self._begins_ns = max(self._begins_ns, now_ns + self._wait_ns)
            self._has_begun = False
        self.total, self._until_ns, self._ends_ns = total, until_ns, 0

    def forget(self, total: int) -> None:
        """The call does not come again."""
        if total == self.total:
            self.total = 0

    def refuses(self, total: int, room: int, now_ns: int) -> bool:
        """True if a claim of so many bytes must wait for another call. room: bytes that may be
        claimed now."""
        if not self.total:
            return False
        if self._places:
            self._begins_ns = now_ns + self._wait_ns
        if now_ns < self._begins_ns:
            return False
        self._has_begun = True
        if not self._ends_ns and room >= self.total:
            self._ends_ns = now_ns + TURN_NS
        if now_ns >= self._until_ns or (self._ends_ns and now_ns >= self._ends_ns):
            self._wait_ns = min(2 * self._wait_ns, _WAIT_NS_MOST)
            self._begins_ns, self.total = now_ns + self._wait_ns, 0
            return False
        return total != self.total

    def is_of(self, total: int) -> bool:
        """True if it is the turn of a call of so many bytes; ask `refuses` first."""
        return self._has_begun and total == self.total

    def came(self, total: int, places: Sequence[int]) -> None:
        """A call of so many bytes was admitted. places: of its runs."""
        if total != self.total:
            return
        self.total = 0
        if self._has_begun:
            self._places.update(places)
            self._wait_ns = TURN_NS

    def gave_back(self, place: int) -> None:
        """A run has become free."""
        if self._places:
            self._places.discard(place)
