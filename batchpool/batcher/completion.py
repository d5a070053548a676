"""How rows end: their batch finished, failed or was lost, or they never ran.

A batch fails when its model raises or its worker dies. Its rows become suspects
(core/scheduler/bisection.py) and run again apart, unless the model is not idempotent; a row gets the
error when it failed alone for the last time. A batch that its worker never launched is not
suspect: its rows go back to the front of the queue. So do those of a batch that was too large
for the device's memory; half its size is the model's limit from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.metrics import END_OF, BatcherMetrics, End, Retry
from batchpool.batcher.worker import DispatchedBatch, WorkerProxy
from batchpool.core.errors import Status
from batchpool.core.layout.states import BatchOutcome, SlotState
from batchpool.core.scheduler.bisection import Bisection
from batchpool.core.scheduler.decide import Limits, WorkerView
from batchpool.core.scheduler.estimators import ArrivalEstimator
from batchpool.core.scheduler.latency_target import why_out_of_reach
from batchpool.core.scheduler.queue import I64, Queue, QueueColumn
from batchpool.shm.lane import Origin
from batchpool.shm.stats.flight_recorder import LOST, FlightRecorder

_OK, _NO_MEMORY = int(BatchOutcome.OK), int(BatchOutcome.NO_MEMORY)
_QUEUED = int(SlotState.QUEUED)


@dataclass
class ModelQueue:
    """One model: its limits, its admitted rows, its suspects, its counts."""

    name: str
    limits: Limits
    attempts: int = 3
    idempotent: bool = True
    queue: Queue = field(default_factory=Queue)
    suspects: Bisection = field(default_factory=Bisection)
    traffic: ArrivalEstimator = field(default_factory=ArrivalEstimator)
    tally: BatcherMetrics = field(default_factory=BatcherMetrics)
    _told_target_ns: int = 0

    def refusal_text(self) -> str:
        """Why rows were refused although the lane had room."""
        return (
            f"model {self.name!r} is overloaded: this request would not be answered in time"
            f" (target_p99_ms = {self._target_ms:g})"
        )

    def target_note(self, workers: Sequence[WorkerView]) -> str:
        """That the target is out of reach, for the operator; "" if it is not, or was told."""
        if self._told_target_ns == self.limits.target_ns:
            return ""
        why = why_out_of_reach(workers, self.limits)
        if not why:
            return ""
        self._told_target_ns = self.limits.target_ns
        return f"model {self.name!r} cannot keep target_p99_ms = {self._target_ms:g}: {why}"

    @property
    def _target_ms(self) -> float:
        return self.limits.target_ns / 1e6


class Completion:
    """Ends rows of these lanes. unmap_if_idle: asked when rows of a lane stopped RUNNING.

    now_ns: when the batcher's present step began, or its last one.
    """

    def __init__(
        self,
        models: Mapping[int, ModelQueue],
        lanes: dict[int, AdmittedLane],
        unmap_if_idle: Callable[[AdmittedLane], None],
        flight_recorder: FlightRecorder,
    ) -> None:
        self._models = models
        self._lanes = lanes
        self._unmap_if_idle = unmap_if_idle
        self._flight_recorder = flight_recorder
        self.now_ns = 0

    def by_lane(self, rows: I64) -> Iterator[tuple[AdmittedLane, I64]]:
        """Rows sorted by lane, split into (lane, its rows)."""
        n = rows.shape[1]
        if n == 0:
            return
        first = rows.item(QueueColumn.LANE, 0)
        if first == rows.item(QueueColumn.LANE, n - 1):
            yield self._lanes[first], rows
            return
        lanes = rows[QueueColumn.LANE]
        changes = (lanes[1:] != lanes[:-1]).nonzero()[0] + 1
        cuts = [0, *changes.tolist(), n]
        for start, stop in pairwise(cuts):
            yield self._lanes[lanes.item(start)], rows[:, start:stop]

    def finished(self, member: WorkerProxy, batch: DispatchedBatch) -> None:
        """The worker's outputs or errors stand in the slots."""
        model = self._models[member.model]
        outcome = member.worker_segment.outcome_at[batch.record]
        self._account(member, model, batch, outcome)
        if outcome == _OK:
            self._hand_back(model, batch.rows, ran=True)
        else:
            if outcome == _NO_MEMORY and self._can_shrink(model, batch):
                self._run_smaller(model, batch)
            else:
                spent = batch.rows
                if model.idempotent:
                    spent = self._split(model, batch, Retry.MODEL_ERROR)
                model.tally.end(End.MODEL_ERROR, spent.shape[1])
                self._note(member, spent)
                self._hand_back(model, spent)  # its status says what the model raised
            self._stop_running(batch.rows)
        member.free(batch)

    def lost(self, member: WorkerProxy, batch: DispatchedBatch, cause: str = "") -> None:
        """The worker died with this batch."""
        model = self._models[member.model]
        self._account(member, model, batch, LOST)
        if not member.was_launched(batch):
            again = self._to_run_again(model, batch.rows)
            self._requeue(again)
            model.tally.retry(Retry.NOT_STARTED, again.shape[1])
            model.queue.prepend(again)
        else:
            spent = batch.rows
            if model.idempotent:
                spent = self._split(model, batch, Retry.WORKER_LOST)
            spent = self._open_lanes_only(model, spent)
            text = f"the worker was lost with this row on every attempt; at last it {cause}"
            origin = batch.token, *member.who
            if spent.shape[1]:
                self._flight_recorder.recent_errors.note(
                    member.model, member.row, Status.WORKER_LOST, text, self.now_ns
                )
            self.end(model, spent, Status.WORKER_LOST, text if cause else "", origin)
        self._stop_running(batch.rows)
        member.free(batch)

    def _account(
        self, member: WorkerProxy, model: ModelQueue, batch: DispatchedBatch, outcome: int
    ) -> None:
        """Count a batch that is over, then record it, before any of its rows is published: what
        stands in the recorder is counted, whenever the batcher dies."""
        if batch.counted:
            return
        worker_segment, record = member.worker_segment, batch.record
        start_ns, end_ns, extents = 0, 0, 0
        if outcome != LOST:
            end_ns, extents = worker_segment.end_ns_at[record], worker_segment.extents_at[record]
        if outcome != LOST or member.was_launched(batch):
            start_ns = worker_segment.start_ns_at[record]
        done_ns = max(self.now_ns, end_ns)
        tally, rows = model.tally, batch.rows.shape[1]
        if outcome == LOST:
            tally.lose()
        else:
            tally.finish(outcome, extents, done_ns - batch.sent_ns if batch.sent_ns else 0)
        if outcome == _OK:
            tally.end(End.OK, rows)
        self._flight_recorder.write(
            member.model, member.row, member.number, batch.token, rows, model.limits.padded(rows),
            batch.reason, batch.attempt, outcome, extents,
            batch.queued_ns, batch.sent_ns, start_ns, end_ns, done_ns,
        )  # fmt: skip

    def _note(self, member: WorkerProxy, spent: I64) -> None:
        """Record what the worker wrote to a row that its model failed for good."""
        if spent.shape[1]:
            lane = self._lanes[spent.item(QueueColumn.LANE, 0)].lane
            slot = spent.item(QueueColumn.SLOT, 0)
            status, text = int(lane.status[slot]), lane.read_message(slot)
            self._flight_recorder.recent_errors.note(
                member.model, member.row, status, text, self.now_ns
            )

    def _can_shrink(self, model: ModelQueue, batch: DispatchedBatch) -> bool:
        """Whether the rows of a batch that was too large can run in smaller ones."""
        return model.idempotent and _smaller(model.limits, batch.size) > 0

    def _run_smaller(self, model: ModelQueue, batch: DispatchedBatch) -> None:
        """The device's memory was too small: learn the cap; the rows are no suspects."""
        cap = _smaller(model.limits, batch.size)
        if cap < model.limits.max_batch:
            model.limits = replace(model.limits, max_batch=cap)
            model.tally.limit(cap)
        rows = self._to_run_again(model, batch.rows)
        self._requeue(rows)
        model.tally.retry(Retry.NO_MEMORY, rows.shape[1])
        if batch.apart:
            for part in np.array_split(rows, -(-rows.shape[1] // cap) or 1, axis=1):
                model.suspects.add_group(part)
        else:
            model.queue.prepend(rows)

    def _split(self, model: ModelQueue, batch: DispatchedBatch, why: Retry) -> I64:
        """Count one failed batch for its rows and make them suspects; returns the spent ones."""
        rows = self._to_run_again(model, batch.rows).copy()
        rows[QueueColumn.ATTEMPT] += 1
        spent = model.suspects.add_failed(rows, model.attempts, batch.size)
        if spent.shape[1] == 0:
            self._requeue(rows)
            model.tally.retry(why, rows.shape[1])
        return spent

    def _requeue(self, rows: I64) -> None:
        for lane, part in self.by_lane(rows):
            # In this order, so that a takeover may count one death too few but never too many.
            lane.lane.state[part[QueueColumn.SLOT]] = _QUEUED
            lane.lane.attempt[part[QueueColumn.SLOT]] = part[QueueColumn.ATTEMPT]
            lane.recheck_cancels()

    def _open_lanes_only(self, model: ModelQueue, rows: I64) -> I64:
        """Without the rows whose client is gone."""
        gone = [lane.number for lane, _ in self.by_lane(rows) if lane.closing and not lane.evicted]
        if not gone:
            return rows
        open_only = rows[:, ~np.isin(rows[QueueColumn.LANE], gone)]
        model.tally.end(End.CLIENT_GONE, rows.shape[1] - open_only.shape[1])
        return open_only

    def _to_run_again(self, model: ModelQueue, rows: I64) -> I64:
        """The same, and those in evicted lanes are answered: there is no more time for them."""
        rows = self._open_lanes_only(model, rows)
        evicted = [lane.number for lane, _ in self.by_lane(rows) if lane.evicted]
        if not evicted:
            return rows
        owed = np.isin(rows[QueueColumn.LANE], evicted)
        self.end(model, rows[:, owed], Status.NOT_READY)
        return rows[:, ~owed]

    def _stop_running(self, rows: I64) -> None:
        for lane, part in self.by_lane(rows):
            self._leave(lane, part.shape[1])

    def _leave(self, lane: AdmittedLane, n: int) -> None:
        lane.running -= n
        if lane.closing:
            self._unmap_if_idle(lane)

    def _hand_back(self, model: ModelQueue, rows: I64, *, ran: bool = False) -> None:
        """Complete rows. ran: they are all the rows of a batch that stop RUNNING with it."""
        for lane, part in self.by_lane(rows):
            lane.complete(part[QueueColumn.SLOT], part[QueueColumn.SEQUENCE])
            if ran:
                self._leave(lane, part.shape[1])

    def end(
        self,
        model: ModelQueue,
        rows: I64,
        status: Status,
        text: str = "",
        origin: Origin | None = None,
    ) -> None:
        """Rows that will not run (again): say why, and where they failed, and hand them back."""
        if rows.shape[1] == 0:
            return
        model.tally.end(END_OF[status], rows.shape[1])
        rows = rows[:, np.argsort(rows[QueueColumn.LANE], kind="stable")]
        for lane, part in self.by_lane(rows):
            lane.lane.write_status(part[QueueColumn.SLOT], status, text, origin)
        self._hand_back(model, rows)


def _smaller(limits: Limits, n: int) -> int:
    """The largest batch that takes less than one of n rows does; 0 if none can."""
    if not limits.sizes:
        return n // 2
    padded = limits.padded(n)
    return max((size for size in limits.sizes if size < padded), default=0)
