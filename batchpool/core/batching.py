"""Which rows ride together and when: a pure decision.

    decide(now, queue, workers, limits, traffic) -> dispatch, expire, refuse, wake_at

The queue is in the order of service (core/queue.py); a batch is the first rows in that order
that may share one: of one bucket, whose lanes the worker has mapped. A partial batch goes to
an idle worker only: while a worker is busy, more rows may still join without starting later.
A full batch may also queue behind the one a worker runs (up to `depth` in flight), so that the
worker never idles between two batches.

When a partial batch leaves an idle worker no longer waiting:

    fixed     its oldest row has waited max_wait since it was submitted
    adaptive  at once where waiting is not worth it (core/adaptive.py); else when it stops
              being so, or the oldest row has waited max_wait, in a flood max_wait_peak
    both      a row's deadline leaves just the time to run it, or the pool drains

With a target for the 99th percentile a batch is not larger than what two batch times one after
the other allow, since a row may come in just after one has left; a wait leaves time for the
batch; and a row that, behind what is before it, would be answered after the target or its own
deadline is refused at once.

Invariants, which are the property tests too:

    - never more than max_batch rows in a batch, never two buckets, and never a row twice;
    - a full batch never waits while a worker is free;
    - nobody waits longer than the policy's limit, counted from submission, while a worker is
      idle;
    - in the order of service among the rows of a bucket that a worker may run;
    - nothing at or past its deadline is dispatched; expiry does not wait for a worker;
    - nothing is refused without a target, nor what is expected to be answered in time;
    - while draining nobody waits for company and nobody is refused;
    - the same input gives the same output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from batchpool.core.adaptive import BatchTime, Traffic
from batchpool.core.config import ModelConfig
from batchpool.core.lifecycle import Reason
from batchpool.core.queue import I64, Field, least

NEVER_NS = 2**63 - 1
_FLOOD = 0.5  # of what the workers can do: above it waits may reach max_wait_peak
_TARGET_SHARE = 0.85  # of the target; the rest is for the way to the caller


@dataclass(frozen=True)
class Limits:
    """What bounds a model's batches. depth: batches a worker may have in flight.

    sizes: the only ones the engine takes, rising; () means any. bucketed: rows differ in
    BUCKET. target_ns: of the 99th percentile from submission to answer; 0 means none.
    """

    max_batch: int
    max_wait_ns: int
    depth: int = 2
    draining: bool = False
    adaptive: bool = False
    max_wait_peak_ns: int = 0
    target_ns: int = 0
    sizes: tuple[int, ...] = ()
    bucketed: bool = False

    @classmethod
    def of(cls, config: ModelConfig) -> Limits:
        """What a model's configuration says."""
        return cls(
            max_batch=config.max_batch,
            max_wait_ns=round(config.max_wait_ms * 1e6),
            adaptive=config.policy == "adaptive",
            max_wait_peak_ns=round(config.max_wait_peak_ms * 1e6),
            target_ns=round(config.target_p99_ms * 1e6),
            sizes=config.batch_sizes,
        )

    @property
    def within_ns(self) -> float:
        """How much of the target the pool itself may use; 0 without one."""
        return _TARGET_SHARE * self.target_ns

    def padded(self, n: int) -> int:
        """The rows the engine is given for n."""
        if not self.sizes:
            return n
        return next((size for size in self.sizes if size >= n), n)


@dataclass(frozen=True)
class Worker:
    """A worker as the decision sees it. lanes: which it may run, by lane number; None: all.

    time: what is known of its batches. free_at_ns: when it will have run what it has.
    """

    number: int
    in_flight: int
    lanes: npt.NDArray[np.bool_] | None = None
    time: BatchTime | None = None
    free_at_ns: int = 0


@dataclass(frozen=True)
class Dispatch:
    """Rows (positions in the queue as it was given, rising) for one worker."""

    worker: int
    rows: slice | npt.NDArray[Any]
    reason: Reason


@dataclass(frozen=True)
class Decision:
    """expire: positions of the rows past their deadline; refuse: of those that would be late.
    wake_at_ns: decide again then."""

    dispatch: tuple[Dispatch, ...]
    expire: npt.NDArray[Any]
    refuse: npt.NDArray[Any]
    wake_at_ns: int


_NONE = np.empty(0, dtype=np.int64)


def decide(
    now_ns: int,
    queue: I64,
    workers: Sequence[Worker],
    limits: Limits,
    traffic: Traffic | None = None,
) -> Decision:
    """Decide for one model. queue: [FIELDS, n] in the order of service; see core/queue.py."""
    n = queue.shape[1]
    if n == 0:
        return Decision((), _NONE, _NONE, NEVER_NS)
    deadlines = queue[Field.DEADLINE_NS]
    earliest_ns = least(deadlines)
    live = None if earliest_ns > now_ns else deadlines > now_ns
    refuse = _NONE
    if limits.target_ns and not limits.draining:
        refuse = _too_late(now_ns, queue, live, workers, limits)
        if len(refuse):
            live = np.ones(n, dtype=bool) if live is None else live
            live[refuse] = False
    shift = _Shift(now_ns, queue, workers, limits, traffic)
    if live is None and shift.takes_all():
        shift.send_prefixes(earliest_ns)
        return Decision(tuple(shift.dispatch), _NONE, refuse, min(earliest_ns, shift.wake_at_ns))
    if live is None:
        live = np.ones(n, dtype=bool)
    expire = np.flatnonzero(deadlines <= now_ns)
    shift.send_any(live)
    wake_at_ns = min(int(deadlines[live].min()), shift.wake_at_ns) if live.any() else NEVER_NS
    return Decision(tuple(shift.dispatch), expire, refuse, wake_at_ns)


class _Shift:
    """One decision in the making: who has how many batches, what was sent, when to look again."""

    def __init__(
        self,
        now_ns: int,
        queue: I64,
        workers: Sequence[Worker],
        limits: Limits,
        traffic: Traffic | None,
    ) -> None:
        self.now_ns = now_ns
        self.queue = queue
        self.limits = limits
        self.traffic = traffic
        self.workers = {worker.number: worker for worker in workers}
        self.load = {worker.number: worker.in_flight for worker in workers}
        self.free_ns = {worker.number: worker.free_at_ns for worker in workers}
        self.dispatch: list[Dispatch] = []
        self.wake_at_ns = NEVER_NS

    def takes_all(self) -> bool:
        """Whether every worker may run every row, and any of them together."""
        for worker in self.workers.values():
            if worker.lanes is not None:
                return False
        buckets = self.queue[Field.BUCKET]
        return not self.limits.bucketed or bool((buckets == buckets[0]).all())

    def send_prefixes(self, earliest_ns: int) -> None:
        """The common case: batches are the front of the queue, slice by slice."""
        n, at = self.queue.shape[1], 0
        submit = self.queue[Field.SUBMIT_NS]
        while at < n and self.load:
            number = self._least_loaded()
            left = n - at
            deadline_ns = earliest_ns if at == 0 else least(self.queue[Field.DEADLINE_NS, at:])
            reason, until_ns = self._due(number, left, least(submit[at:]), deadline_ns)
            if reason is None or self.load[number] >= self._room(reason):
                self._look_again(number, reason, until_ns)
                break
            size = min(left, self._cap(number))
            self._send(number, slice(at, at + size), size, reason)
            at += size

    def send_any(self, live: npt.NDArray[np.bool_]) -> None:
        """The general case: rows that may not leave, workers without every lane, buckets."""
        free = live.copy()
        while self.load:
            number = self._least_loaded()
            may = self.workers[number].lanes
            rows = np.flatnonzero(free if may is None else free & may[self.queue[Field.LANE]])
            sent = self._send_first_due(number, rows)
            if sent is None:
                # Nothing for this worker; another one may run other lanes.
                del self.load[number]
            else:
                free[sent] = False

    def _send_first_due(self, number: int, rows: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
        """A batch of the first bucket, in the order of service, that is due; its rows."""
        while len(rows):
            alike = self._of_first_bucket(rows)
            oldest_ns = least(self.queue[Field.SUBMIT_NS, alike])
            deadline_ns = least(self.queue[Field.DEADLINE_NS, alike])
            reason, until_ns = self._due(number, len(alike), oldest_ns, deadline_ns)
            if reason is not None and self.load[number] < self._room(reason):
                alike = alike[: self._cap(number)]
                self._send(number, alike, len(alike), reason)
                return alike
            self._look_again(number, reason, until_ns)
            if len(alike) == len(rows):
                break
            buckets = self.queue[Field.BUCKET, rows]
            rows = rows[buckets != buckets[0]]
        return None

    def _of_first_bucket(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if not self.limits.bucketed:
            return rows
        buckets = self.queue[Field.BUCKET, rows]
        alike: npt.NDArray[Any] = rows[buckets == buckets[0]]
        return alike

    def _least_loaded(self) -> int:
        if len(self.load) == 1:
            return next(iter(self.load))
        return min(self.load, key=lambda number: (self.load[number], self.free_ns[number], number))

    def _room(self, reason: Reason) -> int:
        return self.limits.depth if reason is Reason.FULL else 1

    def _send(self, number: int, rows: slice | npt.NDArray[Any], n: int, reason: Reason) -> None:
        self.dispatch.append(Dispatch(number, rows, reason))
        self.load[number] += 1
        time = self.workers[number].time
        if time is not None:
            self.free_ns[number] = max(self.free_ns[number], self.now_ns) + int(time.mean_ns(n))

    def _look_again(self, number: int, reason: Reason | None, until_ns: int) -> None:
        """Rows wait for company: until then. Rows that wait for a worker: it will ring."""
        if reason is None and self.load[number] == 0:
            self.wake_at_ns = min(self.wake_at_ns, until_ns)

    def _cap(self, number: int) -> int:
        return cap_of(self.workers[number].time, self.limits)

    def _due(
        self, number: int, n: int, oldest_ns: int, deadline_ns: int
    ) -> tuple[Reason | None, int]:
        """Why a batch of the n rows at the front may leave now; else None and until when it
        waits for company."""
        limits, time = self.limits, self.workers[number].time
        if n >= self._cap(number):
            return Reason.FULL, self.now_ns
        if limits.draining:
            return Reason.DRAIN, self.now_ns
        reason, until_ns = self._company(number, n, oldest_ns)
        if time is not None and time.known:
            latest_ns = deadline_ns - int(time.high_ns(limits.padded(n)))
            if latest_ns < until_ns:
                reason, until_ns = Reason.DEADLINE, latest_ns
        return (reason if self.now_ns >= until_ns else None), until_ns

    def _company(self, number: int, n: int, oldest_ns: int) -> tuple[Reason, int]:
        """Until when the policy lets n rows wait for others, and why they leave then."""
        limits, traffic, time = self.limits, self.traffic, self.workers[number].time
        if not limits.adaptive:
            reason = Reason.WAIT if limits.max_wait_ns else Reason.IDLE
            return reason, oldest_ns + limits.max_wait_ns
        if traffic is None or time is None or not time.known:
            return Reason.IDLE, oldest_ns
        worth_ns = traffic.worth_until_ns(n, time, len(self.workers))
        if worth_ns <= self.now_ns:
            return Reason.IDLE, oldest_ns
        most_ns = float(limits.max_wait_ns)
        if self._is_flood(time, traffic):
            most_ns = max(most_ns, limits.max_wait_peak_ns)
        if limits.target_ns:
            most_ns = max(0.0, min(most_ns, limits.within_ns - time.high_ns(n + int(traffic.rows))))
        wait_ns = oldest_ns + int(most_ns)
        return (Reason.WAIT, wait_ns) if wait_ns <= worth_ns else (Reason.IDLE, worth_ns)

    def _is_flood(self, time: BatchTime, traffic: Traffic) -> bool:
        most = self.limits.max_batch
        capacity_per_s = len(self.workers) * most / max(1e-9, time.mean_ns(most) / 1e9)
        return traffic.rows_per_s > _FLOOD * capacity_per_s


def cap_of(time: BatchTime | None, limits: Limits) -> int:
    """The most rows of a batch for a worker of these times: two of them, one after the other,
    must keep the target."""
    most = limits.max_batch
    if not limits.target_ns or time is None or not time.known:
        return most
    half_ns = limits.within_ns / 2
    if time.high_ns(most) <= half_ns:
        return most
    if limits.sizes:
        fit = [size for size in limits.sizes if time.high_ns(size) <= half_ns]
        return fit[-1] if fit else limits.sizes[0]
    if time.row_ns == 0:
        return most  # smaller ones would not be faster
    return max(1, min(most, int((half_ns / time.spread - time.base_ns) / time.row_ns)))


def _too_late(
    now_ns: int,
    queue: I64,
    live: npt.NDArray[np.bool_] | None,
    workers: Sequence[Worker],
    limits: Limits,
) -> npt.NDArray[Any]:
    """Positions of the live rows that would be answered after the target or their deadline.

    First those for which even the next batch is too late; of the others those behind so many
    that their own batch will be. Where not even two batches in a row keep the target, the time
    of two is what counts: an idle pool refuses nobody for the target.
    """
    lines = _Lines(now_ns, workers, limits)
    rows = np.arange(queue.shape[1]) if live is None else np.flatnonzero(live)
    if not lines.free or len(rows) == 0:
        return _NONE
    within_ns = int(max(limits.within_ns, 2 * lines.high[0]))
    due_ns = np.minimum(queue[Field.SUBMIT_NS, rows] + within_ns, queue[Field.DEADLINE_NS, rows])
    hopeless = due_ns < lines.soonest_ns
    rest = np.flatnonzero(~hopeless)
    behind = lines.answered_ns(len(rest)) > due_ns[rest]
    return np.sort(np.concatenate([rows[hopeless], rows[rest[behind]]]))


class _Lines:
    """The workers whose times are known as lines to stand in, the one that is free first first."""

    def __init__(self, now_ns: int, workers: Sequence[Worker], limits: Limits) -> None:
        known = [(max(now_ns, w.free_at_ns), w.time) for w in workers if w.time and w.time.known]
        known.sort(key=lambda line: line[0])
        self.size = cap_of(known[0][1], limits) if known else 0  # rows of a full batch
        self.free = [float(free_ns) for free_ns, _ in known]
        self.mean = [time.mean_ns(self.size) for _, time in known]
        self.high = [time.high_ns(self.size) for _, time in known]
        one = limits.padded(1)
        self.soonest_ns = min((free + time.mean_ns(one) for free, time in known), default=NEVER_NS)

    def answered_ns(self, n: int) -> npt.NDArray[np.float64]:
        """When the first n rows will be answered at the latest, in full batches, the workers by
        turns: those before on average, their own with its spread."""
        batch = np.arange(n) // self.size
        line, before = batch % len(self.free), batch // len(self.free)
        free, mean, high = np.array(self.free), np.array(self.mean), np.array(self.high)
        at_ns: npt.NDArray[np.float64] = free[line] + before * mean[line] + high[line]
        return at_ns
