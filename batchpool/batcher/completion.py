"""The end of rows: their batch finished, failed or was lost, or they were never dispatched.

A finished batch of a stage that is not the model's last ends only the rows that failed there or
were over; the others are queued for the next stage.

A batch fails when its model raises or its worker dies. Its rows become suspects
(core/scheduler/suspect_rows.py) and run again apart, unless the model is not idempotent; a row gets
the error when it failed alone for the last time. The same parts, without counting a failure, find
the row that a model refused as invalid input and did not name; the worker ends that row when it
is alone. A batch that its worker never launched is no failure: its rows go back to where they
waited, which is the front of the queue, in the order of service, or the front of the suspects. So
do those of a batch that was too large for the device's memory; the next smaller batch size is the
model's limit from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from batchpool.batcher.dispatched_batch import DispatchedBatch
from batchpool.batcher.mapped_lanes import LaneParts, MappedLanes
from batchpool.batcher.metrics import END_OF, End, Retry
from batchpool.batcher.model_queue import ModelQueue
from batchpool.batcher.row_order import in_order_of_service, positions_by_service
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.core.errors import Status
from batchpool.core.layout.stage_numbers import entry_of
from batchpool.core.layout.states import BatchOutcome, SlotState
from batchpool.core.scheduler.batch_sizes import smaller_size
from batchpool.core.scheduler.queue import I64, QueueColumn
from batchpool.core.tensors.dtypes import Array
from batchpool.shm.lane import Origin
from batchpool.shm.stats.flight_recorder import LOST, FlightRecorder

_OK, _NO_MEMORY = int(BatchOutcome.OK), int(BatchOutcome.NO_MEMORY)
_INVALID_INPUT = int(BatchOutcome.INVALID_INPUT)
_QUEUED = int(SlotState.QUEUED)
_STATUS_OK = int(Status.OK)


# methods: one for each end of a batch and of rows, which share the tables of models and lanes
class Completion:
    """Completes rows of these models and lanes, or puts them back into their queue.

    now_ns: when the batcher's current step began; 0 before the first, during a takeover.
    """

    def __init__(
        self, models: Mapping[int, ModelQueue], lanes: MappedLanes, flight_recorder: FlightRecorder
    ) -> None:
        self._models = models
        self._lanes = lanes
        self._flight_recorder = flight_recorder
        self.now_ns = 0

    def finish_batch(self, worker: WorkerProxy, batch: DispatchedBatch) -> None:
        """Complete the rows of a batch whose outputs or errors are in the slots, and whose end is
        known."""
        model = self._models[worker.model]
        assert batch.end is not None
        outcome = batch.end[0]
        self._count(worker, model, batch, outcome)
        if outcome == _OK:
            if batch.parts is None:
                batch.parts = self._lanes.by_lane(batch.rows)
            if model.following is None:
                self._complete(batch.rows, ran=True, parts=batch.parts)
            else:
                self._advance(worker, batch, model.following)
                for lane, part in batch.parts:
                    self._lanes.stop_running(lane, part.shape[1])
        else:
            if outcome == _NO_MEMORY and self._can_shrink(model, batch):
                self._retry_smaller(model, batch)
            elif outcome == _INVALID_INPUT and model.idempotent:
                self._run_in_parts(model, batch)
            else:
                self._fail_rows(worker, model, batch)
            self._stop_running(batch.rows)
        worker.free(batch)

    def lose_batch(self, worker: WorkerProxy, batch: DispatchedBatch, cause: str = "") -> None:
        """Run the rows of a batch again whose worker died with it, or complete them with an error.

        cause: how the worker ended, for the error message ("was killed by SIGKILL").
        """
        model = self._models[worker.model]
        self._count(worker, model, batch, LOST)
        if not worker.has_launched(batch):
            again = self._without_closing_lanes(model, batch.rows)
            self._requeue(again)
            model.metrics.retry(Retry.NOT_STARTED, again.shape[1])
            if batch.apart:
                model.suspects.add_first(again)
            else:
                self._put_back(model, batch, again)
        else:
            self._lose_rows(worker, model, batch, cause)
        self._stop_running(batch.rows)
        worker.free(batch)

    def lose_rows(self, worker: WorkerProxy, rows: I64, cause: str) -> None:
        """Run rows again, or complete them with an error, that a broken worker may have had: they
        are RUNNING, and no record has them any more. At most a batch of them."""
        model = self._models[worker.model]
        model.metrics.lose()
        self._lose_rows(worker, model, DispatchedBatch(-1, 0, rows, 0, rows.shape[1], 0), cause)

    def _fail_rows(self, worker: WorkerProxy, model: ModelQueue, batch: DispatchedBatch) -> None:
        """Suspect the rows of a batch that the model failed, or complete them with that error."""
        spent = batch.rows
        if model.idempotent:
            spent = self._suspect(model, batch, Retry.MODEL_ERROR)
        others = self._count_others(worker, model, batch) if spent is batch.rows else 0
        model.metrics.end(End.MODEL_ERROR, spent.shape[1] - others)
        self._note_error(worker, spent)
        self._complete(spent)  # with the status and text that the worker wrote

    def _lose_rows(
        self, worker: WorkerProxy, model: ModelQueue, batch: DispatchedBatch, cause: str
    ) -> None:
        """Suspect the rows of a batch that died with its worker, or complete them with an error."""
        spent = batch.rows
        if model.idempotent:
            spent = self._suspect(model, batch, Retry.WORKER_LOST)
        spent = self._without_lost_clients(model, spent)
        text = f"the worker was lost with this row on every attempt; at last it {cause}"
        origin = batch.token, *worker.identity
        if spent.shape[1]:
            self._flight_recorder.recent_errors.note(
                entry_of(worker.model), worker.row, Status.WORKER_LOST, text, self.now_ns
            )
        self.end(model, spent, Status.WORKER_LOST, text if cause else "", origin)

    def end(
        self,
        model: ModelQueue,
        rows: I64,
        status: Status,
        text: str = "",
        origin: Origin | None = None,
    ) -> None:
        """Complete rows with an error; they will not run (again).

        text: the error message. origin: the batch in which they failed.
        """
        if rows.shape[1] == 0:
            return
        model.metrics.end(END_OF[status], rows.shape[1])
        rows = rows[:, np.argsort(rows[QueueColumn.LANE], kind="stable")]
        for lane, part in self._lanes.by_lane(rows):
            lane.lane.write_status(part[QueueColumn.SLOT], status, text, origin)
        self._complete(rows)

    def _count(
        self, worker: WorkerProxy, model: ModelQueue, batch: DispatchedBatch, outcome: int
    ) -> None:
        """Count a batch, then record it, before any of its rows is published.

        Whenever the batcher dies, a batch in the flight recorder has been counted.
        """
        if batch.counted:
            return
        start_ns, end_ns, extents = 0, 0, 0
        if batch.end is not None and outcome != LOST:
            *_, extents, start_ns, end_ns = batch.end
        elif not worker.damage and worker.has_launched(batch):
            start_ns = max(0, worker.worker_segment.start_ns_of[batch.record])
        done_ns = max(self.now_ns, end_ns)
        metrics, rows = model.metrics, batch.rows.shape[1]
        if outcome == LOST:
            metrics.lose()
        else:
            took_ns = done_ns - batch.sent_ns if batch.sent_ns else 0
            metrics.finish(outcome, extents, took_ns, done_ns)
        if outcome == _OK and model.following is None:
            metrics.end(End.OK, rows - self._count_others(worker, model, batch))
        self._flight_recorder.write(
            model=entry_of(worker.model),
            worker_slot=worker.row,
            process=worker.number,
            token=batch.token,
            rows=rows,
            size=model.limits.padded(rows),
            reason=batch.reason,
            attempt=batch.attempt,
            outcome=outcome,
            extents=extents,
            queued_ns=batch.queued_ns,
            dispatched_ns=batch.sent_ns,
            launched_ns=start_ns,
            finished_ns=end_ns,
            completed_ns=done_ns,
        )

    def _count_others(self, worker: WorkerProxy, model: ModelQueue, batch: DispatchedBatch) -> int:
        """Count the rows that the worker ended without an output; returns how many these are."""
        if batch.end is None:
            return 0
        _, refused, expired, cancelled, _, _, _ = batch.end
        if not (refused or expired or cancelled):
            return 0
        rows: int = batch.rows.shape[1]  # fewer than the worker counted, after a takeover
        left = rows
        for end, counted in (
            (End.INVALID_INPUT, refused),
            (End.DEADLINE, expired),
            (End.CANCELLED, cancelled),
        ):
            if counted:
                model.metrics.end(end, min(counted, left))
                left -= min(counted, left)
        return rows - left

    def _advance(self, worker: WorkerProxy, batch: DispatchedBatch, following: ModelQueue) -> None:
        """Queue the rows of a good batch for the next stage, but for those that ended in this one.

        The worker has written which ones did into the slots' statuses. These are words that a local
        client may overwrite: it changes the end of its own rows only.
        """
        model, onward, parts = self._models[worker.model], batch.rows, batch.parts
        if not parts:  # after a takeover: the former batcher had done all but the record
            return
        ended = statuses = None
        for lane, part in parts:
            if not lane.are_good(part[QueueColumn.SLOT]):
                onward, ended, statuses = _by_status(batch.rows, parts)
                break
        going = parts
        if any(lane.closing for lane, _ in parts):
            onward = self._without_closing_lanes(model, onward).copy()
        if onward is not batch.rows:
            going = self._lanes.by_lane(onward)
        for lane, part in going:
            lane.enter_stage(part, following.stage)
        if n := onward.shape[1]:
            following.queue.append(in_order_of_service(onward), self.now_ns)
            if self.now_ns:
                following.traffic.arrived(n, self.now_ns)
            if batch.cancels_since([lane.lane for lane, _ in parts]):
                for lane, _ in parts:
                    lane.recheck_cancels()
        if ended is not None and statuses is not None:
            for status in statuses.tolist():
                model.metrics.end(END_OF.get(status, End.MODEL_ERROR), 1)
            self._complete(ended)

    def _note_error(self, worker: WorkerProxy, spent: I64) -> None:
        """Record the error of the first of these rows among the recent errors."""
        if spent.shape[1]:
            lane = self._lanes.by_number[spent.item(QueueColumn.LANE, 0)].lane
            slot = spent.item(QueueColumn.SLOT, 0)
            status, text = int(lane.status[slot]), lane.read_message(slot)
            self._flight_recorder.recent_errors.note(
                entry_of(worker.model), worker.row, status, text, self.now_ns
            )

    def _can_shrink(self, model: ModelQueue, batch: DispatchedBatch) -> bool:
        """True if the rows of a batch that was too large can run in smaller ones."""
        return model.idempotent and smaller_size(model.limits.sizes, batch.size) > 0

    def _retry_smaller(self, model: ModelQueue, batch: DispatchedBatch) -> None:
        """Lower the model's max_batch, since the device's memory was too small for a batch, and
        queue its rows again; they are no suspects."""
        cap = smaller_size(model.limits.sizes, batch.size)
        if cap < model.limits.max_batch:
            model.limits = replace(model.limits, max_batch=cap)
            model.metrics.limit(cap)
        rows = self._without_closing_lanes(model, batch.rows)
        self._requeue(rows)
        model.metrics.retry(Retry.NO_MEMORY, rows.shape[1])
        if batch.apart:
            for part in np.array_split(rows, -(-rows.shape[1] // cap) or 1, axis=1):
                model.suspects.add_group(part)
        else:
            self._put_back(model, batch, rows)

    def _put_back(self, model: ModelQueue, batch: DispatchedBatch, rows: I64) -> None:
        """Put rows of a batch, which are sorted by slot, back into the order of service."""
        model.queue.prepend(rows[:, positions_by_service(rows)], batch.number)

    def _run_in_parts(self, model: ModelQueue, batch: DispatchedBatch) -> None:
        """Queue the rows of a batch again in which the model refused one without naming it."""
        rows = self._without_closing_lanes(model, batch.rows)
        self._requeue(rows)
        model.metrics.retry(Retry.INVALID_INPUT, rows.shape[1])
        model.suspects.add_parts(rows)

    def _suspect(self, model: ModelQueue, batch: DispatchedBatch, why: Retry) -> I64:
        """Count one failed batch for its rows and make them suspects.

        Returns the rows that failed alone for the last time, which are not queued again.
        """
        rows = self._without_closing_lanes(model, batch.rows).copy()
        rows[QueueColumn.ATTEMPT] += 1
        attempts = model.attempts_after(why is Retry.WORKER_LOST)
        spent = model.suspects.add_failed(rows, attempts, batch.size)
        if spent.shape[1] == 0:
            self._requeue(rows)
            model.metrics.retry(why, rows.shape[1])
        return spent

    def _requeue(self, rows: I64) -> None:
        for lane, part in self._lanes.by_lane(rows):
            # In this order: a takeover in between counts one failed batch too few, never too many.
            lane.lane.state[part[QueueColumn.SLOT]] = _QUEUED
            lane.lane.attempt[part[QueueColumn.SLOT]] = part[QueueColumn.ATTEMPT]
            lane.recheck_cancels()

    def _without_lost_clients(self, model: ModelQueue, rows: I64) -> I64:
        """The rows without those in lanes whose client is gone, which are counted as ended."""
        gone = [
            lane.number
            for lane, _ in self._lanes.by_lane(rows)
            if lane.closing and not lane.evicted
        ]
        if not gone:
            return rows
        kept = rows[:, ~np.isin(rows[QueueColumn.LANE], gone)]
        model.metrics.end(End.CLIENT_GONE, rows.shape[1] - kept.shape[1])
        return kept

    def _without_closing_lanes(self, model: ModelQueue, rows: I64) -> I64:
        """The rows that may run again. Rows in lanes of lost clients are dropped; rows in evicted
        lanes, whose time is over, are completed with NOT_READY."""
        rows = self._without_lost_clients(model, rows)
        evicted = [lane.number for lane, _ in self._lanes.by_lane(rows) if lane.evicted]
        if not evicted:
            return rows
        late = np.isin(rows[QueueColumn.LANE], evicted)
        self.end(model, rows[:, late], Status.NOT_READY)
        return rows[:, ~late]

    def _stop_running(self, rows: I64) -> None:
        for lane, part in self._lanes.by_lane(rows):
            self._lanes.stop_running(lane, part.shape[1])

    def _complete(self, rows: I64, *, ran: bool = False, parts: LaneParts | None = None) -> None:
        """Publish the completion of rows to their clients. ran: the rows stop RUNNING with it.
        parts: the rows by lane, where these are known."""
        for lane, part in self._lanes.by_lane(rows) if parts is None else parts:
            lane.complete(part[QueueColumn.SLOT], part[QueueColumn.SEQUENCE])
            if ran:
                self._lanes.stop_running(lane, part.shape[1])


def _by_status(rows: I64, parts: LaneParts) -> tuple[I64, I64, Array]:
    """The rows that go on, those that ended in this stage, and the statuses of these."""
    statuses = np.concatenate([lane.lane.status[part[QueueColumn.SLOT]] for lane, part in parts])
    good = statuses == _STATUS_OK
    return rows[:, good], rows[:, ~good], statuses[~good]
