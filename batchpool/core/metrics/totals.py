"""Totals: the counts of all writers added up, and quantiles of histograms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from batchpool.core.metrics.table import BLOCKS, GAUGE, Metric, metric_of

Labels = tuple[str, ...]


@dataclass(frozen=True)
class Histogram:
    """A histogram in the unit of the metric's name.

    counts: values in each bucket, not cumulated; the last counts those above all bounds.
    total: the sum of the values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @cached_property
    def count(self) -> int:
        return sum(self.counts)

    def __add__(self, other: Histogram) -> Histogram:
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return Histogram(self.bounds, counts, self.total + other.total)

    def __sub__(self, earlier: Histogram) -> Histogram:
        counts = tuple(a - b for a, b in zip(self.counts, earlier.counts, strict=True))
        return Histogram(self.bounds, counts, self.total - earlier.total)

    def quantile(self, share: float) -> float | None:
        """The value that `share` of the values do not exceed; None without values.

        Interpolated linearly inside a bucket, as Prometheus' histogram_quantile; the last bound
        where the value is above all bounds.
        """
        if not self.count:
            return None
        rank = share * self.count
        below = 0
        for i, count in enumerate(self.counts[:-1]):
            if below + count >= rank and count:
                low = self.bounds[i - 1] if i else 0.0
                return low + (self.bounds[i] - low) * (rank - below) / count
            below += count
        return self.bounds[-1]


class Totals:
    """The counts of all writers, added up: {metric's name: {label values: words}}."""

    def __init__(self) -> None:
        self._words: dict[str, dict[Labels, list[int]]] = {}

    def add(
        self,
        writer: str,
        own: Labels,
        words: Sequence[int],
        *,
        alive: bool = True,
        gone: bool = False,
    ) -> None:
        """Add one block of a writer; `own` are the values of the writer's own labels.

        Blocks with equal labels are added up. Gauges of a process that is not alive are left
        out.  gone: the process is not to exist any more, and only its counters are added, and its
        gauges of something past.
        """
        block = BLOCKS[writer]
        for metric in block.metrics:
            is_present = metric.kind == GAUGE and not metric.lasting
            if is_present and (gone or not (alive or metric.always)):
                continue
            series = self._words.setdefault(metric.name, {})
            at, each = block.at[metric.name], metric.words_each
            for case in metric.cases:
                labels = own + case
                found = words[at : at + each]
                at += each
                before = series.get(labels)
                if before is None:
                    series[labels] = list(found)
                elif metric.most:
                    series[labels] = [max(before[0], found[0])]
                else:
                    series[labels] = [a + b for a, b in zip(before, found, strict=True)]

    def by_model(self) -> dict[str, Totals]:
        """The totals of each model by itself, which take less time to query than all of them."""
        found: dict[str, Totals] = {}
        for name, series in self._words.items():
            if metric_of(name).label_names[:1] == ("model",):
                for labels, words in series.items():
                    of_one = found.setdefault(labels[0], Totals())
                    of_one._words.setdefault(name, {})[labels] = words
        return found

    def series(self, metric: Metric) -> Iterator[tuple[Labels, Sequence[int]]]:
        """(label values, words) of every series of a metric."""
        return iter(self._words.get(metric.name, {}).items())

    def value(self, name: str, **labels: str) -> float:
        """The sum of a counter or gauge over all series with these labels.

        name: with the prefix or without.
        """
        metric = metric_of(name)
        total = sum(words[0] for _, words in self._matching(metric, labels))
        return total / metric.per_unit if metric.per_unit != 1 else total

    def values(self, name: str, by: str, **labels: str) -> dict[str, int]:
        """`value` for each value of the label `by`, without zeros."""
        metric = metric_of(name)
        place = metric.label_names.index(by)
        found: dict[str, int] = {}
        for own, words in self._matching(metric, labels):
            if words[0]:
                found[own[place]] = found.get(own[place], 0) + words[0]
        return found

    def words(self, name: str, **labels: str) -> list[int]:
        """The words of one case of a metric, in their own unit, added up over all series with these
        labels."""
        metric = metric_of(name)
        total = [0] * metric.words_each
        for _, words in self._matching(metric, labels):
            total = [a + b for a, b in zip(total, words, strict=True)]
        return total

    def histogram(self, name: str, **labels: str) -> Histogram:
        return as_histogram(metric_of(name), self.words(name, **labels))

    def _matching(
        self, metric: Metric, labels: dict[str, str]
    ) -> Iterator[tuple[Labels, Sequence[int]]]:
        names = metric.label_names
        wanted = [(names.index(label), value) for label, value in labels.items()]
        for own, words in self.series(metric):
            if all(own[place] == value for place, value in wanted):
                yield own, words


def as_histogram(metric: Metric, words: Sequence[int]) -> Histogram:
    """The histogram that these words of a metric hold."""
    bounds = tuple(bound / metric.per_unit for bound in metric.bounds)
    return Histogram(bounds, tuple(words[:-1]), words[-1] / metric.per_unit)
