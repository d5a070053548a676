"""Online estimators of the adaptive policy: batch service times and the arrivals of rows.

`ServiceTime` fits t(n) = base + n x row for one worker. Batches of similar size (the same power
of two) share an average that forgets slowly, and a weighted least-squares line goes through the
averages. So one slow batch changes little, and sizes without recent batches keep their times.

`ArrivalEstimator` keeps exponentially weighted moving averages (EWMA) of the gap between arrivals
and of the rows that each brings, so that a burst shows after a few arrivals. A silence of more
than `_SILENCE` usual gaps ends a burst. An arrival after such a silence belongs to no known
burst: until the next one the silence counts as the gap, and its rows as all that are expected.
So after a silence of `_SILENCE` times base no row waits for others, and none ever waits longer
than base.

`patience_ns` is the rule for one worker. The worker is idle and n rows wait. If they run now, the
next k rows, which come in after a gap g, wait for t(n) first. If they wait, n rows wait for g and
for the larger batch. Summed over all rows waiting pays when

    n (g + k row) < k (base - g),   that is   g < k (base - n row) / (n + k)

It goes on paying as long as the silence since the last arrival is below that limit.

Closed-loop clients send again once they are answered, all together, shortly after a batch ends
(`_ClosedLoopTraffic`). A batch that starts just before they send splits them for good into groups
that are served alternately. So the usual number of them is waited for, where that takes less time
than it saves. With one worker it saves base: a row left behind waits for a whole batch more.
With several it saves base / workers, since some worker is idle that soon.

With several workers `patience_ns` would wait too little: a small batch occupies the worker that
the next rows need. There n rows wait until batches of their size keep up with the arrivals,
rate <= workers x n / t(n), or until arrivals stop; but not where that, or the next arrival, would
take longer than base, which is the most that waiting can save.
"""

from __future__ import annotations

import math
from collections import deque
from heapq import nlargest

from batchpool.core.scheduler.batch_sizes import padded_size

SMOOTHING = 8  # arrivals: the reciprocal of the weight of a new one in an EWMA
_BATCHES = 16  # batches: the reciprocal of the weight of a new time in an average
_LONGEST_GAP_NS = 1e9
_OUTLIER = 4.0  # a time counts as at most so many times the average
_QUANTILE = 0.99
_STEP = 0.05
# Factors of a stochastic quantile estimate: applied after a longer and after a shorter time.
_UP, _DOWN = 1 + _STEP * _QUANTILE, 1 + _STEP * (_QUANTILE - 1)
_TAIL_BATCHES = 512  # batches whose times are kept
_TAIL_RARE = 200  # the tail is the time that one in so many batches exceeds
_CYCLES = 4  # batches: the reciprocal of the weight of a new closed-loop cycle
_EARLY = 4  # closed-loop rows come in the first part of a cycle: on average in a quarter of it
_DELAYS = 4  # mean delays after a batch: nearly all closed-loop rows have come in by then
_SLACK = 1.3  # ratio of the rate of several workers to the arrival rate that they should have
_GAPS = 3  # usual gaps without an arrival, after which arrivals count as stopped
_SILENCE = 8  # usual gaps; random arrivals have a longer gap once in 3,000 times
_EXP_GAMMA = 1.781072417990198  # e to Euler's constant: mean / geometric mean of exponentials
_ALL_ROWS = 2**31
_REFIT_EVERY = 8  # batches between two fits, after the first `_BATCHES`
_TAIL_EVERY = 40  # batches after which a tail that was not exceeded is found again


class ServiceTime:
    """The service time t(n) of one worker, in ns; `known` once a batch was measured.

    sizes: the batch sizes that the model allows, rising, or () for any; n rows take the time of
    the next allowed size.
    """

    def __init__(self, sizes: tuple[int, ...] = ()) -> None:
        self._sizes = sizes
        self.base_ns = 0.0
        self.row_ns = 0.0
        self.spread = 1.25  # 99th percentile of measured / fitted times
        self.tail = 1.25  # exceeded by one in 200 batches; at least the spread
        self.batches = 0
        self._tail_exceeded = False
        self._times: deque[float] = deque(
            maxlen=_TAIL_BATCHES
        )  # measured / fitted, of the last batches
        self._classes: dict[int, list[float]] = {}  # bit length of n -> [count, mean n, mean ns]

    @property
    def known(self) -> bool:
        return self.batches > 0

    def mean_ns(self, n: int) -> float:
        """The expected time of n rows."""
        if self._sizes:
            n = padded_size(self._sizes, n)
        return self.base_ns + n * self.row_ns

    @property
    def least_share(self) -> int:
        """The fewest rows whose own time is as long as a call's fixed cost: a smaller batch wastes
        more of a worker than it uses. 1 while batches of other sizes have not shown what a row
        takes, so that smaller ones are tried."""
        if len(self._classes) < 2 and not self.row_ns:
            return 1
        return math.ceil(self.base_ns / self.row_ns) if self.row_ns else _ALL_ROWS

    def high_ns(self, n: int) -> float:
        """The 99th percentile of the time of n rows."""
        return self.spread * self.mean_ns(n)

    def took(self, n: int, ns: float) -> None:
        """Record that a batch of n >= 1 rows took `ns`."""
        ns = max(1.0, ns)
        if self._sizes:
            n = padded_size(self._sizes, n)
        if self.batches >= 2:
            times = ns / self.mean_ns(n)
            moved = self.spread * (_UP if times > self.spread else _DOWN)
            self.spread = min(_OUTLIER, max(1.02, moved))
            if self.batches >= _BATCHES:
                self._times.append(times)
                self._tail_exceeded |= times > self.tail
        average = self._classes.setdefault(n.bit_length(), [0.0, 0.0, 0.0])
        count, n_mean, ns_mean = average
        if count >= 2:
            ns = min(ns, _OUTLIER * ns_mean)
        elif self.row_ns and self.batches >= _BATCHES:  # the line gives the expected time
            ns = min(ns, _OUTLIER * self.mean_ns(n))
        count = min(count + 1, _BATCHES)
        average[:] = count, n_mean + (n - n_mean) / count, ns_mean + (ns - ns_mean) / count
        self.batches += 1
        if self.batches <= _BATCHES or self.batches % _REFIT_EVERY == 0:
            self._fit()
            if self._tail_exceeded or self.batches % _TAIL_EVERY == 0:
                self.tail = min(_OUTLIER, self._tail_ratio())
                self._tail_exceeded = False
            self.tail = max(self.spread, self.tail)

    def _tail_ratio(self) -> float:
        """The measured / fitted time that one in 200 recent batches exceeds; of few, the largest.

        The spread follows a change by steps and does not show times rarer than one in a hundred.
        A row queued behind another batch depends on those too.
        """
        if not self._times:
            return 0.0
        return nlargest(math.ceil(len(self._times) / _TAIL_RARE), self._times)[-1]

    def _fit(self) -> None:
        """Fit base and row by weighted least squares through the averages; both are >= 0."""
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
        if base_ns < 0:  # times rise faster than linearly: fit a line through the origin
            squares = sum(c * n * n for c, n, _ in averages)
            row_ns = sum(c * n * t for c, n, t in averages) / squares
            base_ns = 0.0
        self.base_ns, self.row_ns = base_ns, row_ns


class ArrivalEstimator:
    """The arrival process of one model's rows, estimated online.

    gap_ns: the usual gap between arrivals; after a silence the silence itself, until the next
    arrival. A silence between bursts is no estimate of the gaps inside one, but nothing else is
    known then.  rows: the rows that one arrival brings.  last_ns: the time of the last arrival.
    """

    def __init__(self) -> None:
        self.last_ns = 0
        self._rows = 1.0
        self._gap = _GeometricMean()
        self._mean_gap_ns = _LONGEST_GAP_NS
        self._silence_ns = 0  # the gap before the last arrival, if it was a silence
        self._came = 0  # rows of the last arrival
        self._closed_loop = _ClosedLoopTraffic()

    def arrived(self, n: int, now_ns: int) -> None:
        """Record that n >= 1 rows came in together."""
        gap_ns = now_ns - self.last_ns
        self._silence_ns = gap_ns if gap_ns > _SILENCE * self._gap.ns else 0
        self._came = n
        usual_ns = min(_LONGEST_GAP_NS, max(1.0, gap_ns))
        self._gap.add(usual_ns)
        self._mean_gap_ns += (usual_ns - self._mean_gap_ns) / SMOOTHING
        self._rows += (n - self._rows) / SMOOTHING
        self.last_ns = now_ns
        self._closed_loop.arrived(n, now_ns)

    def finished(self, now_ns: int) -> None:
        """Record that a batch was answered."""
        self._closed_loop.finished(now_ns)

    @property
    def gap_ns(self) -> float:
        return self._silence_ns or self._gap.ns

    @property
    def rows(self) -> float:
        return self._came if self._silence_ns else self._rows

    @property
    def rows_per_s(self) -> float:
        """The recent arrival rate."""
        return 1e9 * self.rows / (self._silence_ns or self._mean_gap_ns)

    def worth_until_ns(self, n: int, time: ServiceTime, workers: int, most: int) -> int:
        """The time until which n rows should wait for others if none come in; 0 for no wait.

        workers: those that serve the model.  most: the rows of a full batch.
        """
        silence_ns = (
            patience_ns(n, time, self)
            if workers == 1
            else self._shared_patience_ns(n, time, workers, most)
        )
        until_ns = self.last_ns + int(silence_ns) if silence_ns else 0
        return max(until_ns, self._closed_loop.until_ns(time.base_ns / workers))

    def _shared_patience_ns(self, n: int, time: ServiceTime, workers: int, most: int) -> float:
        """`patience_ns` where several workers run."""
        missing = min(self.rows_to_keep_up(time, workers), most) - n
        if missing <= 0 or missing * 1e9 > time.base_ns * self.rows_per_s:
            return 0.0  # waiting saves base at most, and the missing rows take longer to come
        if self.gap_ns >= time.base_ns:
            return 0.0
        return min(_GAPS * self.gap_ns, time.base_ns)

    def rows_to_keep_up(self, time: ServiceTime, workers: int) -> float:
        """The rows that a batch needs so that workers with such batches keep up with arrivals."""
        rate = _SLACK * self.rows_per_s / 1e9 / workers  # rows per ns
        left = 1 - rate * time.row_ns
        return rate * time.base_ns / left if left > 0 else math.inf


class _ClosedLoopTraffic:
    """Rows that come in soon after a batch was answered, from clients that send again.

    A cycle reaches from the end of one batch to the end of the next. Kept are moving averages of
    its length, of the rows that come in during it, and of their delay from its beginning.
    """

    def __init__(self) -> None:
        self._cycle_ns = self._rows = self._delay_ns = 0.0
        self._done_ns = 0
        self._came = 0
        self._came_delay_ns = 0

    def arrived(self, n: int, now_ns: int) -> None:
        self._came += n
        self._came_delay_ns += n * (now_ns - self._done_ns)

    def finished(self, now_ns: int) -> None:
        if self._done_ns:
            self._cycle_ns += (now_ns - self._done_ns - self._cycle_ns) / _CYCLES
            # It rises at once: two of 64 rows that were late once should not be left behind.
            self._rows = max(self._came, self._rows + (self._came - self._rows) / (2 * _CYCLES))
            if self._came:
                delay_ns = self._came_delay_ns / self._came
                self._delay_ns += (delay_ns - self._delay_ns) / _CYCLES
        self._done_ns, self._came, self._came_delay_ns = now_ns, 0, 0

    def until_ns(self, saved_ns: float) -> int:
        """The time until which the rest of a cycle's rows is waited for; 0 for no wait.

        saved_ns: the time that the rest would have to wait for the next batch. A shorter wait
        now lets all of them be done sooner.
        """
        longest_ns = _DELAYS * self._delay_ns
        if self._came + 0.5 >= self._rows or longest_ns > saved_ns:
            return 0
        if _EARLY * self._delay_ns > self._cycle_ns:
            return 0  # rows come all the time, not because a batch was answered
        return self._done_ns + int(longest_ns)


class _GeometricMean:
    """A moving average of times that a few very long ones hardly change.

    It is the EWMA of their logarithms, scaled so that it equals the mean where the times are
    exponentially distributed.
    """

    def __init__(self) -> None:
        self._log = math.log(_LONGEST_GAP_NS)
        self.ns = _EXP_GAMMA * math.exp(self._log)

    def add(self, ns: float) -> None:
        self._log += (math.log(ns) - self._log) / SMOOTHING
        self.ns = _EXP_GAMMA * math.exp(self._log)


def patience_ns(n: int, time: ServiceTime, traffic: ArrivalEstimator) -> float:
    """The longest silence since the last arrival that n rows should wait; 0 for no wait."""
    k = traffic.rows
    limit_ns = k * (time.base_ns - n * time.row_ns) / (n + k)
    return limit_ns if traffic.gap_ns < limit_ns else 0.0
