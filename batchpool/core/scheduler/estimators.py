"""What the adaptive policy knows: how long batches take, and how rows come in.

`ServiceTime` fits t(n) = base + n x row for one worker. Batches of like size (the same power of
two) share an average that forgets slowly, and a weighted line goes through the averages: one
slow batch moves little, and sizes that were not seen for a while are not forgotten.

`ArrivalEstimator` averages arrivals: the gap between them and how many rows each brings (exponentially
weighted, so that a burst shows after a few arrivals). What comes in after a silence of more than
`_SILENCE` usual gaps belongs to no burst that is known of: until the next arrival that silence is
the gap, and what has come in is all that is expected in it. So, whatever came before, after a
silence of `_SILENCE` times `base` nobody waits for company, and never longer than `base`.

`patience_ns` is the rule. A worker is idle and n rows wait. Running them now makes the next
k rows, which come in after a gap g, wait for t(n) first; waiting for them makes n rows wait
for g and for the larger batch. Summed over all rows waiting pays when

    n (g + k row) < k (base - g),   that is   g < k (base - n row) / (n + k)

For as long as the silence since the last arrival is below that limit, it still may.

Callers that send again once they are answered come all together, shortly after a batch ends
(`_Echo`). Running what waits just before they come splits them for ever into groups that take
turns; so the usual number of them is waited for, where that takes less time than it saves. With
one worker that is `base`: who is left behind waits for a whole batch more. With several it is
`base / workers`, since some worker is free that soon.

With several workers the rule would see too little: a small batch holds the worker that the next
rows need. There n rows wait until they are so many that batches of that size keep up with the
arrivals, rate <= workers x n / t(n), or until arrivals stop; but not where that, or the next
arrival, would take longer than base, which is all that company can save.
"""

from __future__ import annotations

import math
from collections import deque
from heapq import nlargest

from batchpool.core.scheduler.batch_sizes import padded_size

SMOOTHING = 8  # arrivals an average of traffic reaches back
_BATCHES = 16  # batches an average of times reaches back
_LONGEST_GAP_NS = 1e9
_OUTLIER = 4.0  # times its average counts as this many averages at most
_QUANTILE = 0.99
_STEP = 0.05
_UP, _DOWN = 1 + _STEP * _QUANTILE, 1 + _STEP * (_QUANTILE - 1)  # what the spread is moved by
_TAIL_BATCHES = 512  # whose times are remembered
_TAIL_RARE = 200  # one in so many batches makes the tail
_CYCLES = 4  # batches an average of what follows one reaches back
_ECHO_FRONT = 4  # an echo comes in the first part of a cycle: its mean below a quarter of it
_ECHO_TIMES = 4  # its mean delay: nearly all of it has come then
_SLACK = 1.3  # how much faster than the arrivals several workers should be
_GAPS = 3  # usual gaps without an arrival: nobody comes any more
_SILENCE = 8  # usual gaps: random arrivals bear that once in 3,000 times
_EXP_GAMMA = 1.781072417990198  # e to Euler's constant: mean over geometric mean
_REFIT_EVERY = 8  # batches, once there were `_BATCHES` of them


class ServiceTime:
    """t(n) of one worker, in ns; `known` once a batch was measured.

    sizes: the only ones its engine takes, rising; n rows take the time of the next one.
    """

    def __init__(self, sizes: tuple[int, ...] = ()) -> None:
        self._sizes = sizes
        self.base_ns = 0.0
        self.row_ns = 0.0
        self.spread = 1.25  # the 99th percentile of measured over fitted times
        self.tail = 1.25  # what all but one in 200 keep; at least the spread
        self.batches = 0
        self._times: deque[float] = deque(maxlen=_TAIL_BATCHES)  # measured over fitted, of late
        self._classes: dict[int, list[float]] = {}  # bit length of n -> [count, mean n, mean ns]

    @property
    def known(self) -> bool:
        return self.batches > 0

    def mean_ns(self, n: int) -> float:
        """The expected time of n rows."""
        if self._sizes:
            n = padded_size(self._sizes, n)
        return self.base_ns + n * self.row_ns

    def high_ns(self, n: int) -> float:
        """A time of n rows that 99 of 100 batches keep."""
        return self.spread * self.mean_ns(n)

    def took(self, n: int, ns: float) -> None:
        """A batch of n >= 1 rows took so long."""
        ns = max(1.0, ns)
        if self._sizes:
            n = padded_size(self._sizes, n)
        if self.batches >= 2:
            times = ns / self.mean_ns(n)
            moved = self.spread * (_UP if times > self.spread else _DOWN)
            self.spread = min(_OUTLIER, max(1.02, moved))
            if self.batches >= _BATCHES:
                self._times.append(times)
        average = self._classes.setdefault(n.bit_length(), [0.0, 0.0, 0.0])
        count, n_mean, ns_mean = average
        if count >= 2:
            ns = min(ns, _OUTLIER * ns_mean)
        elif self.row_ns and self.batches >= _BATCHES:  # the line says what to expect of others
            ns = min(ns, _OUTLIER * self.mean_ns(n))
        count = min(count + 1, _BATCHES)
        average[:] = count, n_mean + (n - n_mean) / count, ns_mean + (ns - ns_mean) / count
        self.batches += 1
        if self.batches <= _BATCHES or self.batches % _REFIT_EVERY == 0:
            self._fit()
            self.tail = max(self.spread, min(_OUTLIER, self._slow()))

    def _slow(self) -> float:
        """What one in 200 of those of late took, while they are few the slowest of them.

        The spread follows a change by steps, and knows nothing of times rarer than its one in a
        hundred; whoever stands behind another batch needs to know of them at once.
        """
        if not self._times:
            return 0.0
        return nlargest(math.ceil(len(self._times) / _TAIL_RARE), self._times)[-1]

    def _fit(self) -> None:
        """Weighted least squares through the averages; neither part is below zero."""
        averages = self._classes.values()
        weight = n_sum = t_sum = variance = covariance = 0.0
        for c, n, t in averages:
            weight += c
            n_sum += c * n
            t_sum += c * t
        n_mean, t_mean = n_sum / weight, t_sum / weight
        for c, n, t in averages:
            variance += c * (n - n_mean) ** 2
            covariance += c * (n - n_mean) * (t - t_mean)
        row_ns = max(0.0, covariance / variance) if len(averages) > 1 else 0.0
        base_ns = t_mean - row_ns * n_mean
        if base_ns < 0:  # more than linear: a line through the origin
            squares = sum(c * n * n for c, n, _ in averages)
            row_ns = sum(c * n * t for c, n, t in averages) / squares
            base_ns = 0.0
        self.base_ns, self.row_ns = base_ns, row_ns


class ArrivalEstimator:
    """How rows come in.

    gap_ns: between arrivals, as is usual: one long silence between bursts says nothing about the
    gaps inside one, but nothing else is known until the next arrival. rows: that one arrival
    brings. last_ns: when rows came last.
    """

    def __init__(self) -> None:
        self.last_ns = 0
        self._rows = 1.0
        self._gap = _Usual()
        self._mean_gap_ns = _LONGEST_GAP_NS
        self._silence_ns = 0  # before the last arrival, if it was one
        self._came = 0  # with the last arrival
        self._echo = _Echo()

    def arrived(self, n: int, now_ns: int) -> None:
        """n >= 1 rows came in together."""
        gap_ns = now_ns - self.last_ns
        self._silence_ns = gap_ns if gap_ns > _SILENCE * self._gap.ns else 0
        self._came = n
        usual_ns = min(_LONGEST_GAP_NS, max(1.0, gap_ns))
        self._gap.add(usual_ns)
        self._mean_gap_ns += (usual_ns - self._mean_gap_ns) / SMOOTHING
        self._rows += (n - self._rows) / SMOOTHING
        self.last_ns = now_ns
        self._echo.arrived(n, now_ns)

    def finished(self, now_ns: int) -> None:
        """A batch was answered."""
        self._echo.finished(now_ns)

    @property
    def gap_ns(self) -> float:
        return self._silence_ns or self._gap.ns

    @property
    def rows(self) -> float:
        return self._came if self._silence_ns else self._rows

    @property
    def rows_per_s(self) -> float:
        """The arrival rate of late."""
        return 1e9 * self.rows / (self._silence_ns or self._mean_gap_ns)

    def worth_until_ns(self, n: int, time: ServiceTime, workers: int, most: int) -> int:
        """Until when n rows should wait for company, if nobody comes before; 0: not at all.

        most: the rows of a full batch.
        """
        silence_ns = (
            patience_ns(n, time, self) if workers == 1 else self._crowd_ns(n, time, workers, most)
        )
        alone_ns = self.last_ns + int(silence_ns) if silence_ns else 0
        return max(alone_ns, self._echo.until_ns(time.base_ns / workers))

    def _crowd_ns(self, n: int, time: ServiceTime, workers: int, most: int) -> float:
        """The longest silence since the last arrival that n rows should bear where several
        workers run; 0: none at all."""
        missing = min(self.keeping_up(time, workers), most) - n
        if missing <= 0 or missing * 1e9 > time.base_ns * self.rows_per_s:
            return 0.0  # company saves no more than base, and would take longer to come
        if self.gap_ns >= time.base_ns:
            return 0.0
        return min(_GAPS * self.gap_ns, time.base_ns)

    def keeping_up(self, time: ServiceTime, workers: int) -> float:
        """Rows a batch needs so that workers with such batches keep up with what comes in."""
        rate = _SLACK * self.rows_per_s / 1e9 / workers  # rows per ns
        left = 1 - rate * time.row_ns
        return rate * time.base_ns / left if left > 0 else math.inf


class _Echo:
    """Rows that come soon after a batch was answered: callers that send again.

    From the end of one batch to the end of the next: how long, how many rows come in it, and
    how late in it on average.
    """

    def __init__(self) -> None:
        self._cycle_ns = self._rows = self._offset_ns = 0.0
        self._done_ns = 0
        self._came = 0
        self._came_offset_ns = 0

    def arrived(self, n: int, now_ns: int) -> None:
        self._came += n
        self._came_offset_ns += n * (now_ns - self._done_ns)

    def finished(self, now_ns: int) -> None:
        if self._done_ns:
            self._cycle_ns += (now_ns - self._done_ns - self._cycle_ns) / _CYCLES
            # Up at once: that the last two of 64 came late once is no reason to leave them behind.
            self._rows = max(self._came, self._rows + (self._came - self._rows) / (2 * _CYCLES))
            if self._came:
                offset_ns = self._came_offset_ns / self._came
                self._offset_ns += (offset_ns - self._offset_ns) / _CYCLES
        self._done_ns, self._came, self._came_offset_ns = now_ns, 0, 0

    def until_ns(self, saved_ns: float) -> int:
        """Until when the rest of an echo may be waited for; 0 if there is none to wait for.

        saved_ns: how much longer the rest would wait for the next batch. Waiting for less than
        that lets all of them be done sooner.
        """
        longest_ns = _ECHO_TIMES * self._offset_ns
        if self._came + 0.5 >= self._rows or longest_ns > saved_ns:
            return 0
        if _ECHO_FRONT * self._offset_ns > self._cycle_ns:
            return 0  # they come all the time, not because somebody was answered
        return self._done_ns + int(longest_ns)


class _Usual:
    """An average of times that a few very long ones do not rule: the mean of their logarithms,
    scaled so that it is the plain mean where times are exponentially distributed."""

    def __init__(self) -> None:
        self._log = math.log(_LONGEST_GAP_NS)
        self.ns = _EXP_GAMMA * math.exp(self._log)

    def add(self, ns: float) -> None:
        self._log += (math.log(ns) - self._log) / SMOOTHING
        self.ns = _EXP_GAMMA * math.exp(self._log)


def patience_ns(n: int, time: ServiceTime, traffic: ArrivalEstimator) -> float:
    """The longest silence since the last arrival that n rows should bear; 0: none at all."""
    k = traffic.rows
    limit_ns = k * (time.base_ns - n * time.row_ns) / (n + k)
    return limit_ns if traffic.gap_ns < limit_ns else 0.0
