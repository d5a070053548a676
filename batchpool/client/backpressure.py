"""What Retry-After is told from: how fast a lane drains, and for how long nobody serves."""

from __future__ import annotations

_WINDOW_NS = 100_000_000
_KEEP = 0.8  # of what was measured before, with each new window
# A window this many times as long as the longest of late is a stall, as when the workers died
# or hang: its rows did not drain slowly, they did not drain.
_STALL = 4
_FORGET = 0.9  # of the longest, with each new window
_LONGEST_NS = 1_000_000_000  # until there are windows
_UNKNOWN_MS = 1000
_MOST_MS = 30_000
_FORGOTTEN_NS = 2 * _MOST_MS * 1_000_000
_NS_PER_MS = 1_000_000


class DrainRate:
    """Completed rows per second of late, stalls left out.

    Completions are counted in windows that end with the first one after a tenth of a second. The
    rate is rows over time, both fading by a fifth with each window. A window far longer than the
    longest of late is left out; if it was no stall but the new pace, the next one or two
    like it are no longer far longer, and count.
    """

    __slots__ = ("_count", "_longest_ns", "_measured_ns", "_rows", "_since_ns")

    def __init__(self) -> None:
        self._count = 0
        self._since_ns = 0
        self._rows = 0.0
        self._measured_ns = 0.0
        self._longest_ns = float(_LONGEST_NS)

    def count(self, rows: int, now_ns: int) -> None:
        """`rows` completions were seen at now_ns (CLOCK_MONOTONIC)."""
        if not self._since_ns:
            self._since_ns = now_ns
            return
        self._count += rows
        passed_ns = now_ns - self._since_ns
        if passed_ns < _WINDOW_NS:
            return
        most_ns = _STALL * self._longest_ns
        if passed_ns <= most_ns:
            self._rows = _KEEP * self._rows + self._count
            self._measured_ns = _KEEP * self._measured_ns + passed_ns
        self._longest_ns = max(_FORGET * self._longest_ns, min(passed_ns, most_ns))
        self._count = 0
        self._since_ns = now_ns

    def pause(self) -> None:
        """Nothing is under way: the time until the next completion measures no drain."""
        self._count = 0
        self._since_ns = 0

    def rows_per_s(self) -> float:
        """0 before any measurement."""
        return self._rows * 1e9 / self._measured_ns if self._measured_ns else 0.0

    def wait_ms(self, rows: int) -> int:
        """How long until `rows` rows have drained, 1 ms to 30 s; 1 s before any measurement."""
        rate = self.rows_per_s()
        if rate <= 0:
            return _UNKNOWN_MS
        return min(_MOST_MS, max(1, round(max(rows, 1) * 1000 / rate)))


class OutageBackoff:
    """For how long a model has had nobody to serve it, as far as its callers saw.

    Nobody knows how much longer it will last; as long again is the best guess. Whoever keeps to it
    comes back at most twice as late as could be, and asks but a few times.
    """

    __slots__ = ("_seen_ns", "_since_ns")

    def __init__(self, now_ns: int) -> None:
        self._since_ns = self._seen_ns = now_ns

    def wait_ms(self, now_ns: int) -> int:
        """Nobody serves at now_ns either: when to come back, 1 s to 30 s.

        An outage that nobody met for a minute is over; this is another.
        """
        if now_ns - self._seen_ns > _FORGOTTEN_NS:
            self._since_ns = now_ns
        self._seen_ns = now_ns
        return min(_MOST_MS, max(_UNKNOWN_MS, (now_ns - self._since_ns) // _NS_PER_MS))
