"""How fast a lane drains, measured from its completions, for Retry-After."""

from __future__ import annotations

_WINDOW_NS = 100_000_000
_WEIGHT = 0.3
_UNKNOWN_MS = 1000
_MOST_MS = 60_000


class Pace:
    """An exponentially weighted moving average of completed rows per second."""

    __slots__ = ("_count", "_rows_per_s", "_since_ns")

    def __init__(self) -> None:
        self._count = 0
        self._since_ns = 0
        self._rows_per_s = 0.0

    def count(self, rows: int, now_ns: int) -> None:
        """`rows` completions were seen at now_ns (CLOCK_MONOTONIC)."""
        if not self._since_ns:
            self._since_ns = now_ns
            return
        self._count += rows
        passed_ns = now_ns - self._since_ns
        if passed_ns < _WINDOW_NS:
            return
        rate = self._count * 1e9 / passed_ns
        old = self._rows_per_s
        self._rows_per_s = old + _WEIGHT * (rate - old) if old else rate
        self._count = 0
        self._since_ns = now_ns

    def pause(self) -> None:
        """Nothing is under way: the time until the next completion measures no drain."""
        self._count = 0
        self._since_ns = 0

    def rows_per_s(self) -> float:
        return self._rows_per_s

    def wait_ms(self, rows: int) -> int:
        """How long until `rows` rows have drained, 1 ms to 60 s; 1 s before any measurement."""
        if self._rows_per_s <= 0:
            return _UNKNOWN_MS
        return min(_MOST_MS, max(1, round(max(rows, 1) * 1000 / self._rows_per_s)))
