"""Rates and percentiles of the last seconds, from counts that only ever rise.

The totals of every snapshot are kept for a few seconds. The newest less the oldest of them are the
counts in between, of which rates and percentiles are made.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from batchpool.core.metrics.totals import Histogram, Totals

WINDOW_S = 5.0


@dataclass(frozen=True)
class Span:
    """Two readings of the totals. seconds: between them; 0 when there is only one reading yet."""

    now: Totals
    then: Totals
    seconds: float

    def by_model(self) -> dict[str, Span]:
        """The span of each model that there is now."""
        then = self.then.by_model()
        return {
            name: Span(now, then.get(name, Totals()), self.seconds)
            for name, now in self.now.by_model().items()
        }

    def rate_per_s(self, name: str, **labels: str) -> float | None:
        """A counter's increase; None when no time has passed."""
        if not self.seconds:
            return None
        rise = self.now.value(name, **labels) - self.then.value(name, **labels)
        return max(0.0, rise) / self.seconds

    def rises(self, name: str, by: str, **labels: str) -> dict[str, int]:
        """A counter's increase for each value of the label `by`, without zeros."""
        now = self.now.values(name, by, **labels)
        then = self.then.values(name, by, **labels)
        found = {key: count - then.get(key, 0) for key, count in now.items()}
        return {key: rise for key, rise in found.items() if rise > 0}

    def histogram(self, name: str, **labels: str) -> Histogram:
        """The samples that a histogram got between the readings.

        Words of a histogram are read one by one while their writer goes on, and the counts of a
        removed model vanish; so negative differences occur, and count as 0.
        """
        rise = self.now.histogram(name, **labels) - self.then.histogram(name, **labels)
        counts = tuple(max(0, count) for count in rise.counts)
        return Histogram(rise.bounds, counts, max(0.0, rise.total))


class SlidingWindow:
    """The readings of the last WINDOW_S seconds."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, Totals]] = deque()

    def add(self, at_s: float, totals: Totals) -> Span:
        """Add a reading; returns the span that it ends. at_s: of a monotonic clock."""
        readings = self._readings
        readings.append((at_s, totals))
        # The oldest is kept while the next one would make the window too short.
        while len(readings) > 2 and at_s - readings[1][0] >= WINDOW_S:
            readings.popleft()
        then_s, then = readings[0]
        return Span(totals, then, at_s - then_s)

    def clear(self) -> None:
        """Forget all readings."""
        self._readings.clear()
