"""Takeover by a new batcher: it rebuilds its state from the lanes and the workers' records.

The former batcher may have died after any single store. Its order of stores makes each case
decidable:

    record not published   token stored, no ring entry    -> its rows are queued again
    record running         token stored, in the ring      -> wait for the worker
    record finished        worker stored `finished`       -> complete the rows still RUNNING
    row QUEUED             in no record                   -> into the queue of the stage that its
                           slot says; a suspect, which was in a failed batch, runs apart, alone
    row SUBMITTED          its ring entry is still pending, `admit` finds it
    row DONE               perhaps without a completion entry: raising the lane's generation
                           makes the client check its own slots
"""

from __future__ import annotations

import numpy as np

from batchpool.batcher.batcher import Batcher
from batchpool.batcher.dispatched_batch import DispatchedBatch
from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.model_queue import ModelQueue
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.core.layout.states import DispatchReason, SlotState
from batchpool.core.scheduler.queue import I64, QUEUE_COLUMNS, QueueColumn
from batchpool.core.tensors.stages import Stage
from batchpool.shm.batch_record import DamagedSegment, read_record
from batchpool.shm.ring import DamagedRing


def take_over(batcher: Batcher) -> None:
    """Take over the rows and batches in the added lanes and workers, before the first step."""
    lanes, workers = batcher.lanes.by_number.values(), batcher.workers.by_number.values()
    for worker in workers:
        if batcher.models[worker.model].generates:
            if not worker.damage:
                _take_over_sequences(batcher, worker)
            continue
        if worker.damage:
            continue  # its rows go back when it has been reaped; batcher/orphaned_rows.py
        published = _published(worker)
        for record in range(worker.worker_segment.layout.slots):
            _take_over_record(batcher, worker, record, published)
    firsts = {lane.model for lane in lanes}
    for number in firsts:
        for model in batcher.models[number].onward():
            queued = [_queue_rows(model, lane) for lane in lanes if lane.model == number]
            rows = np.concatenate(queued, axis=1)
            model.queue.append(rows[:, np.argsort(rows[QueueColumn.SUBMIT_NS], kind="stable")])
    for lane in lanes:
        lane.lane.generation.raise_by(1)
        lane.ring_client()
    for worker in workers:
        worker.ring()  # the former batcher may have died between a record's ring entry and the bell


def _queue_rows(model: ModelQueue, lane: AdmittedLane) -> I64:
    """The rows of a lane that are QUEUED for one stage of its model.

    Rows of failed batches become suspects instead, each alone, because the groups in which the
    former batcher isolated them are not stored. Rows that a record put back just now are left out:
    they wait already, among the suspects or in the queue.
    """
    rows = lane.queued_rows(model.stage)
    waiting = model.queue.view()
    known = (
        model.suspects.of_lane(lane.number)[QueueColumn.SLOT],
        waiting[QueueColumn.SLOT, waiting[QueueColumn.LANE] == lane.number],
    )
    rows = rows[:, ~np.isin(rows[QueueColumn.SLOT], np.concatenate(known))]
    suspect = rows[QueueColumn.ATTEMPT] > 0
    for i in np.flatnonzero(suspect):
        model.suspects.add_group(rows[:, i : i + 1])
    return rows[:, ~suspect]


def _published(worker: WorkerProxy) -> set[int]:
    """The pending entries of the worker's ring, whose batches it has not finished."""
    try:
        pending = worker.worker_segment.sq_consumer().peek().tolist()
    except DamagedRing as exc:
        worker.mark_broken(str(exc))
        return set()
    return {int(entry) for entry in pending}


def _take_over_record(
    batcher: Batcher, worker: WorkerProxy, record: int, published: set[int]
) -> None:
    batch = _batch_in(worker, record)
    if batch is None:
        return
    token, rows = batch.token, batch.rows
    batch.rows = rows = _running(batcher, worker, rows)
    finished = worker.has_finished(batch)
    if finished or record | (token & 0xFFFFFFFF) << 32 in published:
        batcher.dispatched = max(batcher.dispatched, token)
        batch.counted = batcher.flight_recorder.has(worker.number, token)
        worker.adopt(batch)
        for lane, part in batcher.lanes.by_lane(rows):
            lane.running += part.shape[1]
        if finished:
            worker.handled.add(batch.entry)
            batcher.completion.finish_batch(worker, batch)
    elif _is_unsent(worker, batch):
        for lane, part in batcher.lanes.by_lane(rows):
            lane.lane.state[part[QueueColumn.SLOT]] = SlotState.QUEUED
        worker.worker_segment.freed[record] = token


def _take_over_sequences(batcher: Batcher, worker: WorkerProxy) -> None:
    """Take over the records of a generator's worker, each of which is a running sequence.

    Finished ones are completed when their ring entries, which are pending, are taken, or when the
    worker is lost: so those that failed at once are still one failed batch. Suspects that run are
    on probation still, unless they have made enough tokens.
    """
    recorded = {(batch.process, batch.token) for batch in batcher.flight_recorder.last()}
    for record in range(worker.worker_segment.layout.slots):
        batch = _batch_in(worker, record)
        if batch is None:
            continue
        batch.rows = rows = _running(batcher, worker, batch.rows)
        batch.counted = (worker.number, batch.token) in recorded
        if not worker.has_published(batch):
            if _is_unsent(worker, batch):
                for lane, part in batcher.lanes.by_lane(rows):
                    lane.lane.state[part[QueueColumn.SLOT]] = SlotState.QUEUED
                worker.worker_segment.freed[record] = batch.token
            continue
        rows[QueueColumn.BUCKET] = batch.tokens
        batcher.dispatched = max(batcher.dispatched, batch.token)
        worker.adopt(batch)
        for lane, part in batcher.lanes.by_lane(rows):
            lane.running += part.shape[1]


def _batch_in(worker: WorkerProxy, record: int) -> DispatchedBatch | None:
    """The batch in a record, with all its rows, of which nothing is known but their tickets; None
    where there is none, or the worker is broken."""
    segment = worker.worker_segment
    if worker.damage or segment.token_of[record] == segment.freed_of[record]:
        return None
    try:
        found = read_record(segment, record)
    except DamagedSegment as exc:
        worker.mark_broken(str(exc))
        return None
    rows = np.zeros((QUEUE_COLUMNS, found.n), dtype=np.int64)
    rows[: QueueColumn.SEQUENCE + 1] = found.tickets
    return DispatchedBatch(
        record, found.token, rows, 0, found.n, found.token,
        found.reason == DispatchReason.APART, found.reason, found.attempt,
        tokens=found.tokens, bucket=0 if found.tokens else found.detail,
    )  # fmt: skip


def _is_unsent(worker: WorkerProxy, batch: DispatchedBatch) -> bool:
    """True if a batch that is not in the ring was never there; else the worker is broken, since
    its rows must not run again beside it."""
    if not worker.damage and worker.has_launched(batch):
        worker.mark_broken(f"batch {batch.token} was launched, and is not in the ring")
    return not worker.damage


def _running(batcher: Batcher, worker: WorkerProxy, rows: I64) -> I64:
    """The rows of a record that are RUNNING, in the same use of their slot."""
    stage = batcher.models[worker.model].stage
    return _rows_in_state(batcher, rows, SlotState.RUNNING, stage)


def _rows_in_state(batcher: Batcher, rows: I64, state: SlotState, stage: Stage) -> I64:
    """The rows of a record whose slot is in this state and in the same use, with their headers.

    stage: of the record's worker.
    """
    kept = [rows[:, :0]]
    for number in np.unique(rows[QueueColumn.LANE]).tolist():
        lane = batcher.lanes.by_number.get(number)
        if lane is None:
            continue
        own = rows[:, rows[QueueColumn.LANE] == number]
        own = own[:, own[QueueColumn.SLOT] < lane.lane.slots]
        slots, sequences = own[QueueColumn.SLOT], own[QueueColumn.SEQUENCE]
        same = (lane.lane.sequence[slots] == sequences) & (lane.lane.state[slots] == int(state))
        kept.append(lane.rows_in(slots[same], sequences[same], stage))
    return np.concatenate(kept, axis=1)
