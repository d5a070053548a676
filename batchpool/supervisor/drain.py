"""A drain: the pool takes no new requests, and what it accepted is answered."""

from __future__ import annotations

from batchpool.supervisor.resources.lane_table import LaneTable

_REAP_GRACE_NS = 1_000_000_000  # how long clients get to take their last completions
_QUIET_NS = 100_000_000  # a claim made just before the gate closed may not be published yet


class Drain:
    """How far a drain is, by the lanes and by the batcher's word. No clock is read here.

    batcher_done: whether the batcher said that it holds no row.
    """

    def __init__(self, lanes: LaneTable) -> None:
        self._lanes = lanes
        self._turn = 0
        self.begin()

    def begin(self) -> int:
        """A drain begins; returns its turn, which the batcher is to be told."""
        self._turn += 1
        self.batcher_done = False
        self._done_ns = 0
        self._quiet_since_ns = 0
        return self._turn

    def batcher_says(self, turn: int, empty: bool) -> None:
        """Whether the batcher holds no row; of an earlier drain that is no news."""
        if turn == self._turn:
            self.batcher_done = empty
            self._done_ns = 0

    def rows(self) -> int:
        """Rows under way: accepted, and not taken by their clients yet."""
        return sum(entry.claimed() for entry in self._lanes if not entry.closing)

    def is_over(self, now_ns: int) -> bool:
        """Whether every row is answered. What is answered still waits for its client to take it:
        not for ever."""
        if not self.batcher_done:
            return False
        self._done_ns = self._done_ns or now_ns
        if self.rows():
            self._quiet_since_ns = 0
            return now_ns - self._done_ns >= _REAP_GRACE_NS
        self._quiet_since_ns = self._quiet_since_ns or now_ns
        return now_ns - self._quiet_since_ns >= _QUIET_NS
