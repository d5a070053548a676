"""The pool's batching in virtual time: the real `Batcher`, pretended lane and workers.

Every turn is `Batcher.step`; time only passes between the turns. What is not the pool's own:

    a turn      takes STEP_NS, so that arrivals meanwhile are admitted together
    a worker    runs its batches one after the other; each takes t(n) of its profile, times
                noise, and WAY_NS to get there and as much to be seen here, beside the next one
    the lane    refuses above `watermark` claimed rows, and then until they are 8/9 of that
    a client    of a closed loop sends again about THINK_NS after its answer
"""

from __future__ import annotations

import heapq
import os
from bisect import bisect_right
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from batchpool.batcher.batcher import Batcher
from batchpool.batcher.dispatched_batch import DispatchedBatch
from batchpool.batcher.model_queue import ModelQueue
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.core.errors import Status
from batchpool.core.layout.segments import RECORDS, worker_layout
from batchpool.core.layout.states import BatchOutcome, DispatchReason, LaneGate
from batchpool.core.priority import DEFAULT
from batchpool.core.scheduler.decide import NEVER_NS, Limits
from batchpool.core.scheduler.queue import QUEUE_COLUMNS, QueueColumn
from batchpool.shm.segment import create, map_checked
from batchpool.shm.worker_segment import WorkerSegment
from bench.policy.loads import I64, PROFILES, Profile

STEP_NS = 30_000
WAY_NS = 60_000
THINK_NS = 100_000
WATERMARK = 3686
TIMEOUT_NS = 30 * 10**9
SIGMA = 0.05
TAIL_TIMES = 2.0
_NO_ROWS = np.empty((QUEUE_COLUMNS, 0), dtype=np.int64)


@dataclass(frozen=True)
class Noise:
    """Factors on a batch's time: a lognormal one, and TAIL_TIMES for a share of the batches."""

    sigma: float = SIGMA
    tail_share: float = 0.0


@dataclass
class Outcome:
    """The outcomes of the rows. took_ns, at_ns, flow: of the answered ones, in answering order.

    refused: by the target's policy; turned_away: by the lane; missed: late or never run.
    """

    took_ns: I64
    at_ns: I64
    flow: I64
    refused: int
    turned_away: int
    missed: int
    batches: list[int]
    reasons: dict[str, int]
    start_ns: int

    def percentile_ms(self, share: float, flow: int | None = None) -> float:
        """Of the answered rows, without the first twentieth; NaN if there is none."""
        skip = len(self.took_ns) // 20
        took = self.took_ns[skip:]
        if flow is not None:
            took = took[self.flow[skip:] == flow]
        return float(np.quantile(took, share)) / 1e6 if len(took) else float("nan")

    @property
    def rate_per_s(self) -> float:
        """Answered rows over the time from the first send until 99 of 100 are answered: what is
        left at the end may wait long for a company that never comes."""
        n = len(self.at_ns) * 99 // 100
        return n / (int(self.at_ns[n - 1]) - self.start_ns) * 1e9 if n else 0.0

    @property
    def mean_batch(self) -> float:
        return float(np.mean(self.batches)) if self.batches else 0.0


class _Lane:
    """The one lane: rows are told by their slot. A refused client does not come again."""

    number, serial, model = 0, 1, 0
    cancels_heard = 0
    closing = broken = False

    def __init__(self, rows: int, watermark: int) -> None:
        self.lane = SimpleNamespace(
            state=np.zeros(rows, dtype=np.uint8),
            write_status=self._write_status,
            gate=SimpleNamespace(get=lambda: LaneGate.CLOSED),
        )
        self.running = 0
        self.came = _NO_ROWS
        self.turned_away = 0
        self.ended: list[tuple[npt.NDArray[Any], Status]] = []
        self._watermark = watermark
        self._claimed = 0
        self._closed = False
        self._status = Status.OK

    def claim(self, n: int) -> int:
        """Claims slots for up to n rows; returns their number."""
        taken = max(0, min(n, self._watermark - self._claimed))
        if self._closed and self._claimed > self._watermark * 8 // 9:
            taken = 0
        self._closed = taken < n
        self._claimed += taken
        self.turned_away += n - taken
        return taken

    def admit(self) -> I64:
        came, self.came = self.came, _NO_ROWS
        return came

    def start_running(self, slots: npt.NDArray[Any]) -> None:
        self.running += len(slots)

    def complete(self, slots: npt.NDArray[Any], sequences: npt.NDArray[Any]) -> None:
        self._claimed -= len(slots)
        self.ended.append((slots, self._status))
        self._status = Status.OK

    def _write_status(
        self, slots: npt.NDArray[Any], status: Status, text: str, origin: object = None
    ) -> None:
        self._status = status

    def is_quiet(self) -> bool:
        return False

    def has_new_cancels(self) -> bool:
        return False

    def set_gate(self, gate: object) -> None:
        pass

    def bound_times(self, rows: I64, now_ns: int) -> None:
        pass

    def ring_client(self) -> None:
        pass


def _worker_segment() -> WorkerSegment:
    """A segment that a worker shares with the batcher; all its batches succeed."""
    layout = worker_layout(max(profile.max_batch for profile in PROFILES.values()), 1)
    fd = create(layout, sealed=True)
    worker_segment = WorkerSegment(map_checked(fd, layout), layout)
    os.close(fd)
    worker_segment.outcome[:] = int(BatchOutcome.OK)
    return worker_segment


class _Worker(WorkerProxy):
    """The batcher's side of a worker, and the worker. What it measures is the pool's own."""

    def __init__(self, number: int, simulation: Simulation) -> None:
        super().__init__(number, 0, _worker_segment(), lambda: None)
        self.done: list[tuple[float, DispatchedBatch]] = []  # when seen, in order
        self._busy_until_ns = 0.0
        self._simulation = simulation

    def is_ready(self) -> bool:
        return True

    def _read_acknowledgements(self, serials: I64) -> bool:
        return True

    def prepare(
        self,
        rows: I64,
        reason: DispatchReason,
        now_ns: int,
        number: int,
        cancels: int = 0,
        tokens: int = 0,
    ) -> DispatchedBatch:
        record = next(i for i in range(RECORDS) if i not in self.batches)
        self.token += 1
        batch = DispatchedBatch(record, self.token, rows, now_ns, rows.shape[1], number)
        self.batches[record] = batch
        return batch

    def publish(self, batch: DispatchedBatch) -> None:
        simulation = self._simulation
        simulation.batches.append(batch.size)
        start_ns = max(batch.sent_ns + simulation.way_ns, self._busy_until_ns)
        self._busy_until_ns = start_ns + simulation.time_ns(batch.size)
        self.done.append((self._busy_until_ns + simulation.way_ns, batch))

    def is_quiet(self) -> bool:
        return not self.done or self.done[0][0] > self._simulation.now_ns

    def finished(self, now_ns: int = 0) -> list[DispatchedBatch]:
        seen = [batch for at_ns, batch in self.done if at_ns <= self._simulation.now_ns]
        del self.done[: len(seen)]
        return seen

    def advance(self) -> None:
        pass


class Simulation:
    """One model under one load; `run` it once."""

    def __init__(
        self,
        profile: Profile,
        limits: Limits,
        workers: int = 1,
        *,
        noise: Noise | None = Noise(),
        seed: int = 0,
        watermark: int = WATERMARK,
        step_ns: int = STEP_NS,
        way_ns: int = WAY_NS,
        shortcuts: bool = True,
    ) -> None:
        self.now_ns = 0
        self.way_ns = way_ns
        self.batches: list[int] = []
        self.model = ModelQueue("simulated", limits)
        self._profile = profile
        self._noise = noise
        self._random = np.random.default_rng(seed)
        self._watermark = watermark
        self._step_ns = step_ns
        self._shortcuts = shortcuts
        self._batcher = Batcher([self.model], 1)
        self.workers = [_Worker(i, self) for i in range(workers)]
        for worker in self.workers:
            self._batcher.add_worker(worker)
        self._answers: list[tuple[I64, int]] = []

    def time_ns(self, n: int) -> float:
        """The service time of the next batch, of n rows."""
        time_ns = self._profile.time_ns(n)
        if self._noise is not None:
            time_ns *= self._random.lognormal(0.0, self._noise.sigma)
            if self._random.random() < self._noise.tail_share:
                time_ns *= TAIL_TIMES
        return time_ns

    def run(
        self,
        send_ns: I64,
        flow: npt.NDArray[Any] | int = 0,
        again: npt.NDArray[np.bool_] | None = None,
        until_ns: float = NEVER_NS,
    ) -> Outcome:
        """Rows sent at these rising times, the first at 1 ns or later. again: which of them come
        again when they were answered or refused, as in a closed loop; until_ns must end it."""
        rows = np.zeros((QUEUE_COLUMNS, len(send_ns)), dtype=np.int64)
        rows[QueueColumn.SLOT] = np.arange(len(send_ns))
        rows[QueueColumn.SUBMIT_NS] = send_ns
        rows[QueueColumn.DEADLINE_NS] = send_ns + TIMEOUT_NS
        rows[QueueColumn.PRIORITY] = DEFAULT
        rows[QueueColumn.FLOW] = flow
        self._lane = _Lane(len(send_ns), self._watermark)
        self._batcher.add_lane(self._lane)  # type: ignore[arg-type]  # what a batcher asks of one
        self._took: list[tuple[I64, int, I64]] = []
        missed = refused = 0
        back: list[tuple[int, int]] = []  # a heap: when which row comes again
        at, wake_at_ns, ready_ns = 0, NEVER_NS, 0
        while True:
            send_at_ns = int(send_ns[at]) if at < len(send_ns) else NEVER_NS
            next_ns = min(send_at_ns, self._done_ns(), back[0][0] if back else NEVER_NS, wake_at_ns)
            if next_ns >= until_ns:
                break
            if again is None and next_ns == send_at_ns:
                stop, ready_ns = self._admit_while_busy(rows, at, ready_ns)
                if stop > at:
                    at = stop
                    continue
            self.now_ns = now_ns = max(int(np.ceil(next_ns)), ready_ns)
            stop = at + int(np.searchsorted(send_ns[at:], now_ns, side="right"))
            came = rows[:, at : at + self._lane.claim(stop - at)]
            at = stop
            if back and back[0][0] <= now_ns:
                came = np.concatenate([came, self._come_again(rows, back)], axis=1)
            self._lane.came = came.copy()
            wake_at_ns = self._batcher.step(now_ns)
            ready_ns = now_ns + self._step_ns
            for slots, status in self._lane.ended:
                took_ns = now_ns - rows[QueueColumn.SUBMIT_NS, slots]
                if status == Status.OK:
                    self._took.append((took_ns, now_ns, rows[QueueColumn.FLOW, slots]))
                    missed += int((took_ns > TIMEOUT_NS).sum())
                elif status == Status.OVERLOADED:
                    refused += len(slots)
                else:
                    missed += len(slots)
                if again is not None:
                    for row in slots[again[slots]].tolist():
                        think_ns = THINK_NS * (0.5 + self._random.exponential(0.5))
                        heapq.heappush(back, (now_ns + int(think_ns), row))
            self._lane.ended.clear()
        return self._outcome(int(send_ns[0]), refused, missed)

    def _done_ns(self) -> float:
        """When the next batch is seen to be finished."""
        return min((worker.done[0][0] for worker in self.workers if worker.done), default=NEVER_NS)

    def _come_again(self, rows: I64, back: list[tuple[int, int]]) -> I64:
        due = []
        while back and back[0][0] <= self.now_ns:
            due.append(heapq.heappop(back))
        slots = np.array([row for _, row in due])
        rows[QueueColumn.SUBMIT_NS, slots] = [when for when, _ in due]
        rows[QueueColumn.DEADLINE_NS, slots] = rows[QueueColumn.SUBMIT_NS, slots] + TIMEOUT_NS
        # Refused ones are forgotten: the loops stay far below the watermark.
        return rows[:, slots[: self._lane.claim(len(slots))]]

    def _admit_while_busy(self, rows: I64, at: int, ready_ns: int) -> tuple[int, int]:
        """The turns that decide nothing, left out: of what comes in while every worker is busy and
        no full batch waits for one, or none may have another. Returns where to go on and when."""
        in_flight = [worker.in_flight for worker in self.workers]
        limits, queue, send_ns = self.model.limits, self.model.queue, rows[QueueColumn.SUBMIT_NS]
        room = limits.max_batch - len(queue)
        if min(in_flight) == limits.depth:
            room = len(send_ns)
        if not self._shortcuts or limits.target_ns or min(in_flight) == 0 or room <= 1:
            return at, ready_ns
        done_ns = self._done_ns()
        stop = min(at + room, int(np.searchsorted(send_ns, done_ns)) + 1)
        times = send_ns[at:stop].tolist()
        taken: list[npt.NDArray[Any]] = []
        i = 0
        while i < len(times):
            now_ns = max(times[i], ready_ns)
            j = bisect_right(times, now_ns, i)
            if now_ns >= done_ns or j >= room:
                break
            n = self._lane.claim(j - i)
            if n:
                self.model.traffic.arrived(n, now_ns)
                taken.append(np.arange(at + i, at + i + n))
            ready_ns = now_ns + self._step_ns
            i = j
        if taken:
            queue.append(rows[:, np.concatenate(taken)])
        return at + i, ready_ns

    def _outcome(self, start_ns: int, refused: int, missed: int) -> Outcome:
        counts = [len(took) for took, _, _ in self._took]
        at_ns = np.repeat(np.array([at for _, at, _ in self._took], dtype=np.int64), counts)
        empty = np.empty(0, dtype=np.int64)
        return Outcome(
            np.concatenate([took for took, _, _ in self._took] or [empty]),
            at_ns,
            np.concatenate([flow for _, _, flow in self._took] or [empty]),
            refused,
            self._lane.turned_away,
            missed,
            self.batches,
            dict(self.model.metrics.reasons),
            start_ns,
        )
