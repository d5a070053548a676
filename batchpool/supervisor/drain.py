"""The progress of a drain: the pool takes no new requests, and answers those it accepted."""

from __future__ import annotations

from batchpool.supervisor.resources.lane_table import LaneTable

_REAP_GRACE_NS = 1_000_000_000  # for clients to reap their last completions
_QUIET_NS = 100_000_000  # a claim made just before the gate closed may not be published yet


class Drain:
    """Decides when a drain is over, from the lanes and the batcher's reports. Reads no clock.

    batcher_done: the batcher has reported that it holds no row. last: the pool ends, and the
    batcher admits nothing any more, so that there is nothing to wait for but its rows.
    """

    def __init__(self, lanes: LaneTable) -> None:
        self._lanes = lanes
        self._number = 0
        self.begin()

    def begin(self, *, last: bool = False) -> int:
        """Begin a drain and return its number, which the batcher repeats in its reports."""
        self._number += 1
        self.last = last
        self.batcher_done = False
        self._done_ns = 0
        self._quiet_since_ns = 0
        return self._number

    def batcher_reported(self, number: int, empty: bool) -> None:
        """The batcher holds no row, or holds some again; reports of earlier drains are ignored."""
        if number == self._number:
            self.batcher_done = empty
            self._done_ns = 0

    def rows(self) -> int:
        """Rows that were accepted and not reaped by their clients yet."""
        return sum(lane.rows() for lane in self._lanes if not lane.closing)

    def is_over(self, now_ns: int) -> bool:
        """True when every row is answered and reaped.

        Rows that are answered wait for their clients for a second at most.
        """
        if not self.batcher_done:
            return False
        if self.last:
            return True
        self._done_ns = self._done_ns or now_ns
        if self.rows():
            self._quiet_since_ns = 0
            return now_ns - self._done_ns >= _REAP_GRACE_NS
        self._quiet_since_ns = self._quiet_since_ns or now_ns
        return now_ns - self._quiet_since_ns >= _QUIET_NS
