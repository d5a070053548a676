"""Any input of the batching decision, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from batchpool.core.few_rows import LISTED_ROWS
from batchpool.core.scheduler.decide import Decision, Dispatch, Limits, WorkerView, decide
from batchpool.core.scheduler.depth import QUEUED_BEFORE_END_NS
from batchpool.core.scheduler.element_budget import BucketRows, InputShape, RowElements
from batchpool.core.scheduler.estimators import ArrivalEstimator, ServiceTime
from batchpool.core.scheduler.latency_target import cap_of
from batchpool.core.scheduler.queue import I64, QueueColumn
from batchpool.core.scheduler.size_buckets import joined_bucket
from tests.unit.core.scheduler.queued import MS, rows_of

NOW = 1_000 * MS
FAR = NOW + 60_000 * MS
LANES = 3
LONGEST = 64
ROW_ELEMENTS = RowElements((InputShape(1, (0,)),), (LONGEST,))
Choice = TypeVar("Choice")


def time_of(
    base_ns: float, row_ns: float, spread: float = 1.25, sizes: tuple[int, ...] = ()
) -> ServiceTime:
    """Well-known times."""
    time = ServiceTime(sizes)
    time.base_ns, time.row_ns, time.batches = base_ns, row_ns, 20
    time.spread = time.tail = spread
    return time


@cache
def traffic_of(
    gap_ns: int,
    rows: int = 1,
    came_ns: int = NOW,
    echo_ns: int | None = None,
    done_ns: int | None = None,
) -> ArrivalEstimator:
    """Arrivals that have long been alike, the last of them at came_ns; if a batch was answered
    since, at done_ns. Not to be changed."""
    traffic = ArrivalEstimator()
    for back in range(99, -1, -1):
        if echo_ns is not None:
            traffic.finished(came_ns - back * gap_ns - echo_ns)
        traffic.arrived(rows, came_ns - back * gap_ns)
    if done_ns is not None:
        traffic.finished(done_ns)
    return traffic


def worth_until_ns(
    traffic: ArrivalEstimator, n: int, time: ServiceTime, workers: int = 1, most: int = 64
) -> int:
    """The tests' one way to the rule."""
    return traffic.worth_until_ns(n, time, workers, most)


def mask(*lanes: int) -> npt.NDArray[np.bool_]:
    return np.isin(np.arange(LANES), lanes)


def waiting(
    submit: Sequence[int], deadline: Sequence[int] | int = FAR, **words: Sequence[int] | int
) -> I64:
    """Rows by their times, in this order."""
    return rows_of(len(submit), submit=submit, deadline=deadline, **words)


def places(dispatch: Dispatch, n: int) -> list[int]:
    everywhere: list[int] = np.arange(n)[dispatch.rows].tolist()
    return everywhere


@dataclass(frozen=True)
class Case:
    queue: I64
    workers: list[WorkerView]
    limits: Limits
    traffic: ArrivalEstimator | None = None
    now: int = NOW
    listed_most: int = LISTED_ROWS

    def decide(self, *, beside: bool = False) -> Decision:
        return decide(
            self.now, self.queue, self.workers, self.limits, self.traffic,
            beside=beside, listed_most=self.listed_most,
        )  # fmt: skip


_DEADLINES_NS = [60_000 * MS, 60_000 * MS, -3 * MS, 0, 1, 2 * MS, 5 * MS, 20 * MS, 40 * MS, 70 * MS]
_NUDGES_NS = [0, 0, -1, 1]  # around the whole milliseconds on which limits end
_CHOICES = 64  # bytes; more than a case takes


class _Choices:
    """Choices made by bytes: one draw for a whole case, much faster than one for each."""

    def __init__(self, raw: bytes) -> None:
        self._raw = iter(raw)

    def of(self, options: Sequence[Choice]) -> Choice:
        """All zero bytes choose what is first everywhere, the plainest case."""
        return options[next(self._raw) % len(options)]


def _rows(raw: bytes, near: bool, longest_ms: int) -> I64:
    age, deadline, lane, bucket = (
        np.frombuffer(raw, dtype=np.uint8).reshape(-1, 4).T.astype(np.int64)
    )
    waited_ns = (age % longest_ms) * MS + np.array(_NUDGES_NS)[age // 64]
    left_ns = np.array(_DEADLINES_NS)[deadline % len(_DEADLINES_NS) if near else deadline * 0]
    return rows_of(
        len(age),
        submit=NOW - np.where(age % 64 > 60, -MS, waited_ns),
        deadline=NOW + left_ns,
        lane=lane % LANES,
        bucket=bucket % 3,
    )


def _time(choices: _Choices, sizes: tuple[int, ...]) -> ServiceTime | None:
    known = choices.of([True, True, True, False])
    if not known:
        return choices.of([None, ServiceTime()])
    base_ms = choices.of([5, 20, 0, 1])
    row_ms = choices.of([0.1, 0, 1]) if base_ms else 1
    return time_of(base_ms * MS, row_ms * MS, choices.of([1.02, 1.25, 2.0]), sizes)


def _elements_time(choices: _Choices, *, known: bool) -> ServiceTime:
    """The times by padded elements of a worker whose times are known, or not."""
    if not known:
        return ServiceTime()
    return time_of(choices.of([5, 0, 20]) * MS, choices.of([0.01, 0, 1]) * MS)


def _traffic(choices: _Choices) -> ArrivalEstimator | None:
    if choices.of([False] * 5 + [True]):
        return None
    gap_ns = choices.of([MS // 10, 1, MS, 3 * MS, 10**9])
    came_ns = NOW - choices.of([0, 0, 1, 9]) * MS
    echo_ns, done_ns = choices.of([(None, None), (MS // 5, came_ns), (MS // 5, NOW)])
    return traffic_of(gap_ns, choices.of([1, 3, 8]), came_ns, echo_ns, done_ns)


def _workers(choices: _Choices, limits: Limits, *, alike: bool) -> list[WorkerView]:
    masked = choices.of([False, True])
    one_time, workers = _time(choices, limits.sizes), []
    numbers = choices.of([[0], [0, 1], [], [3, 1], [0, 1, 2], [9, 4, 7]])
    for number in numbers:
        time = one_time if alike else _time(choices, limits.sizes)
        in_flight = choices.of([0, 0, 0, 1, 1, 2, 3])
        free_at = NOW + choices.of([0, 1, 7, 30, 90]) * MS if in_flight else NOW
        lanes = choices.of([None, None, (0,), (1, 2), (0, 1), (2,), (0, 1, 2), ()])
        may = None if lanes is None or not masked else mask(*lanes)
        since = NOW - choices.of([5, 200]) * MS
        closed, since = choices.of([(False, 0)] * 6 + [(True, 0), (True, since)])
        view = WorkerView(number, in_flight, may, time, free_at, closed, since)
        if limits.row_elements is not None and time is not None:
            view = replace(view, elements_time=_elements_time(choices, known=time.known))
            view = replace(view, last_bucket=choices.of([-1, 0, 1, 2]))
        workers.append(view)
    return workers


def _limits(choices: _Choices, *, target: bool | None) -> Limits:
    max_batch = choices.of([4, 1, 2, 3, 8, 16, 30])
    sizes = choices.of([(), (), (1,), (2, 3), (1, 4), (12,)])
    sizes = (*(size for size in sizes if size < max_batch), max_batch) if sizes else ()
    wants_target = choices.of([False, True]) if target is None else target
    bucketed, max_elements = choices.of([False, True]), choices.of([0, 0, LONGEST, 7, 3 * LONGEST])
    max_wait_ns, adaptive = choices.of([10, 0, 3, 40]) * MS, choices.of([False, True])
    spreads = choices.of([False, True]) and not (max_wait_ns or adaptive)
    joins = choices.of([False, True]) and bucketed and not spreads
    return Limits(
        max_batch,
        max_wait_ns,
        depth=choices.of([2, 1, 3]),
        draining=choices.of([False] * 7 + [True]),
        adaptive=adaptive,
        max_wait_peak_ns=choices.of([60, 0, 20]) * MS,
        target_ns=choices.of([40, 10, 100]) * MS if wants_target else 0,
        sizes=sizes,
        bucketed=bucketed,
        bucket_rows=bucket_rows_of(max_elements if bucketed else 0, max_batch, sizes),
        spreads=spreads,
        row_elements=ROW_ELEMENTS if joins else None,
    )


def bucket_rows_of(
    max_elements: int, max_batch: int, sizes: tuple[int, ...] = ()
) -> BucketRows | None:
    """Of rows with one dynamic dimension of at most `LONGEST`: bucket b has rows of up to 2**b, and
    bucket 0 those of any size."""
    if not max_elements:
        return None
    return BucketRows(max_elements, max_batch, sizes, ROW_ELEMENTS)


def case_of(raw: bytes, *, target: bool | None = None, alike: bool = True) -> Case:
    """The case that these bytes are."""
    choices = _Choices(raw[:_CHOICES])
    queue = _rows(
        raw[_CHOICES:], near=choices.of([False, True]), longest_ms=choices.of([64, 12, 3])
    )
    limits = _limits(choices, target=target)
    workers = _workers(choices, limits, alike=alike)
    return Case(queue, workers, limits, _traffic(choices))


def cases(*, target: bool | None = None, alike: bool = True) -> st.SearchStrategy[Case]:
    """alike: the workers have the same times. target: whether there is one; None: either."""
    sizes = st.integers(0, 20).map(lambda n: _CHOICES + 4 * n)
    raws = sizes.flatmap(lambda size: st.binary(min_size=size, max_size=size))
    return raws.map(lambda raw: case_of(raw, target=target, alike=alike))


class Outcome:
    """A decision, and what is left when it was carried out."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.limits = case.limits
        self.n = case.queue.shape[1]
        self.decision = case.decide()
        self.batches = [(d, places(d, self.n)) for d in self.decision.dispatch]
        self.sent = [p for _, rows in self.batches for p in rows]
        self.expired: list[int] = self.decision.expire.tolist()
        self.refused: list[int] = self.decision.refuse.tolist()
        gone = {*self.sent, *self.expired, *self.refused}
        self.left = [p for p in range(self.n) if p not in gone]
        self.workers = {w.number: w for w in case.workers}
        self.load = {w.number: w.in_flight for w in case.workers}
        for dispatch, _ in self.batches:
            self.load[dispatch.worker] += 1
        self.open = [w for w in case.workers if not w.closed]
        self.idle = [w for w in self.open if self.load[w.number] == 0]

    def word(self, field: int, p: int) -> int:
        return int(self.case.queue[field, p])

    def buckets(self, rows: Sequence[int]) -> list[int]:
        return [self.word(QueueColumn.BUCKET, p) for p in rows]

    def may_run(self, worker: WorkerView, among: Sequence[int]) -> list[int]:
        if worker.lanes is None:
            return list(among)
        return [p for p in among if worker.lanes[self.word(QueueColumn.LANE, p)]]

    def groups(self, worker: WorkerView, among: Sequence[int]) -> list[list[int]]:
        """The rows that may ride together on a worker, by bucket."""
        found: dict[int, list[int]] = {}
        for p in self.may_run(worker, among):
            bucket = self.word(QueueColumn.BUCKET, p) if self.limits.bucketed else 0
            found.setdefault(bucket, []).append(p)
        return list(found.values())

    def most(self, rows: Sequence[int]) -> int:
        """The most rows of a batch of the bucket of these rows."""
        budget = self.limits.bucket_rows
        if budget is None:
            return self.limits.max_batch
        alone = max(LONGEST if bucket == 0 else 1 << bucket for bucket in self.buckets(rows))
        fit = min(self.limits.max_batch, max(1, budget.max_elements // alone))
        sizes = self.limits.sizes
        return max((n for n in sizes if n <= fit), default=sizes[0]) if sizes else fit

    def cap(self, worker: WorkerView, rows: Sequence[int]) -> int:
        return min(self.most(rows), cap_of(worker.time, self.limits))

    def known(self, worker: WorkerView) -> ServiceTime | None:
        return worker.time if worker.time is not None and worker.time.known else None

    def room(self, worker: WorkerView) -> int:
        """The number of full batches that it may at least have in flight."""
        return 1 if worker.time is not None and not worker.time.known else self.limits.depth

    def most_room(self, worker: WorkerView) -> int:
        """The number of full batches that it may at most have in flight: two more where they are
        over within 6 ms, one more where one of them is."""
        room = self.room(worker)
        if worker.time is None or not worker.time.known:
            return room
        mean_ns = worker.time.mean_ns(self.limits.max_batch)
        return room + sum(more * mean_ns <= 6_000_000 for more in (1, 2))

    def has_room(self, worker: WorkerView) -> bool:
        """True if it may have another full batch: what is in front of that ends soon enough."""
        if not self.load[worker.number]:
            return True
        ends_soon = self.free_at()[worker.number] - self.case.now <= QUEUED_BEFORE_END_NS
        return ends_soon and self.load[worker.number] < self.room(worker)

    def free_at(self) -> dict[int, int]:
        """The expected time at which each worker has run its batches, the new ones among them."""
        found = {w.number: max(self.case.now, w.free_at_ns) for w in self.case.workers}
        for dispatch, rows in self.batches:
            time = self.known(self.workers[dispatch.worker])
            if time is not None:
                found[dispatch.worker] += int(time.mean_ns(self.limits.padded(len(rows))))
        return found

    def told(self) -> tuple[Any, ...]:
        """The whole decision in plain values."""
        batches = [(d.worker, d.reason, rows) for d, rows in self.batches]
        return batches, self.expired, self.refused, self.decision.wake_at_ns

    def rest(self) -> Case:
        """The next decision's case once this one was carried out, at the same moment."""
        free_at = self.free_at()
        last = {w.number: w.last_bucket for w in self.case.workers}
        for dispatch, rows in self.batches:
            last[dispatch.worker] = joined_bucket(self.buckets(rows))
        workers = [
            replace(
                w,
                in_flight=self.load[w.number],
                free_at_ns=free_at[w.number],
                last_bucket=last[w.number],
            )
            for w in self.case.workers
        ]
        return replace(self.case, queue=self.case.queue[:, self.left], workers=workers)


def outcomes(*, target: bool | None = None, alike: bool = True) -> st.SearchStrategy[Outcome]:
    return cases(target=target, alike=alike).map(Outcome)
