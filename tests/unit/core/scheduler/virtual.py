"""One model's queue, workers and what is learnt of them, in virtual time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from batchpool.core.layout.states import DispatchReason
from batchpool.core.scheduler.background import BackgroundWatch
from batchpool.core.scheduler.decide import NEVER_NS, Decision, Limits, WorkerView, decide
from batchpool.core.scheduler.estimators import ArrivalEstimator, ServiceTime
from batchpool.core.scheduler.queue import I64, Queue, QueueColumn
from batchpool.core.scheduler.size_buckets import joined_bucket
from tests.unit.core.scheduler.decisions import ROW_ELEMENTS
from tests.unit.core.scheduler.queued import MS, names, rows_of


@dataclass(frozen=True)
class Run:
    """A batch that ran: when it was sent, began and was done."""

    rows: I64
    reason: DispatchReason
    sent_ns: int
    began_ns: int
    done_ns: int


@dataclass
class VirtualWorker:
    """batches: under way, the oldest first."""

    number: int
    time: ServiceTime = field(default_factory=ServiceTime)
    elements_time: ServiceTime = field(default_factory=ServiceTime)
    free_at_ns: int = 0
    last_bucket: int = -1
    batches: list[Run] = field(default_factory=list)


class VirtualPool:
    """batch_ns: how long n rows take a worker. answered: told of the rows of every batch done.
    element_ns: how much longer each padded element makes a batch."""

    def __init__(
        self,
        limits: Limits,
        batch_ns: Callable[[int], int],
        workers: int = 1,
        answered: Callable[[VirtualPool, I64], None] = lambda pool, rows: None,
        element_ns: int = 0,
    ) -> None:
        self.element_ns = element_ns
        self.limits = limits
        self.batch_ns = batch_ns
        self.answered = answered
        self.now_ns = 10**15
        self.queue = Queue()
        self.traffic = ArrivalEstimator()
        self.background = BackgroundWatch()
        self.workers = [VirtualWorker(number) for number in range(workers)]
        self.runs: list[Run] = []
        self.expired: list[int] = []
        self.refused: list[int] = []
        self.done_ns: dict[int, int] = {}  # name -> when it was answered
        self.submit_ns: dict[int, int] = {}
        self._coming: list[tuple[int, int, I64]] = []
        self._order = itertools.count()
        self._names = itertools.count()

    def send(
        self, after_ns: int, n: int = 1, timeout_ns: int = 60_000 * MS, **words: int
    ) -> list[int]:
        """n rows will come together so long from now; returns their names."""
        at_ns = self.now_ns + after_ns
        called = list(itertools.islice(self._names, n))
        rows = rows_of(n, name=called, submit=at_ns, deadline=at_ns + timeout_ns, **words)
        heapq.heappush(self._coming, (at_ns, next(self._order), rows))
        self.submit_ns.update(dict.fromkeys(called, at_ns))
        return called

    def run(self, for_ns: int) -> None:
        """Let so much time go by."""
        until_ns = self.now_ns + for_ns
        while True:
            wake_ns = self._step()
            dones = [worker.batches[0].done_ns for worker in self.workers if worker.batches]
            comes_ns = self._coming[0][0] if self._coming else NEVER_NS
            next_ns = min([wake_ns, comes_ns, *dones])
            assert next_ns > self.now_ns, "time stands still"
            if next_ns > until_ns:
                self.now_ns = until_ns
                return
            self.now_ns = next_ns

    def waited_ms(self, called: list[int]) -> list[float]:
        """From submission to answer."""
        return [(self.done_ns[name] - self.submit_ns[name]) / MS for name in called]

    def _step(self) -> int:
        for worker in self.workers:
            while worker.batches and worker.batches[0].done_ns <= self.now_ns:
                run = worker.batches.pop(0)
                worker.time.took(run.rows.shape[1], run.done_ns - run.began_ns)
                worker.elements_time.took(self._elements(run.rows), run.done_ns - run.began_ns)
                self.traffic.finished(self.now_ns)
                self.answered(self, run.rows)
        came = []
        while self._coming and self._coming[0][0] <= self.now_ns:
            came.append(heapq.heappop(self._coming)[2])
        if came:
            rows = np.concatenate(came, axis=1)
            self.queue.append(rows)
            self.traffic.arrived(rows.shape[1], self.now_ns)
        self.queue.age(self.now_ns)
        seen = [
            WorkerView(
                w.number,
                len(w.batches),
                None,
                w.time,
                max(self.now_ns, w.free_at_ns),
                elements_time=w.elements_time,
                last_bucket=w.last_bucket,
            )
            for w in self.workers
        ]
        beside = bool(len(self.queue)) and self.background.is_beside(self.queue, self.now_ns)
        decision = decide(
            self.now_ns, self.queue.view(), seen, self.limits, self.traffic, beside=beside
        )
        self._carry_out(decision)
        return decision.wake_at_ns

    def _elements(self, rows: I64) -> int:
        """The padded elements of a batch of rows with one dynamic dimension."""
        n: int = rows.shape[1]
        elements = ROW_ELEMENTS.of(joined_bucket({*rows[QueueColumn.BUCKET].tolist()}))
        return n * elements

    def _carry_out(self, decision: Decision) -> None:
        view = self.queue.view().copy()
        everywhere = np.arange(view.shape[1])
        gone = np.concatenate([decision.expire, decision.refuse]).astype(np.int64)
        self.expired += names(view[:, decision.expire])
        self.refused += names(view[:, decision.refuse])
        sent = [everywhere[dispatch.rows] for dispatch in decision.dispatch]
        for dispatch, at in zip(decision.dispatch, sent, strict=True):
            worker = self.workers[dispatch.worker]
            began_ns = max(self.now_ns, worker.free_at_ns)
            rows = view[:, at]
            padding_ns = self.element_ns * self._elements(rows)
            worker.free_at_ns = began_ns + self.batch_ns(len(at)) + padding_ns
            worker.last_bucket = joined_bucket({*rows[QueueColumn.BUCKET].tolist()})
            run = Run(rows, dispatch.reason, self.now_ns, began_ns, worker.free_at_ns)
            worker.batches.append(run)
            self.runs.append(run)
            self.done_ns.update(dict.fromkeys(names(rows), worker.free_at_ns))
        taken = np.concatenate([*sent, everywhere[:0]])
        left = np.searchsorted(np.sort(taken), gone)
        self.queue.take(np.sort(taken))
        self.queue.drop(gone - left)
