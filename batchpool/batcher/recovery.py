"""A new batcher takes over: what the lanes and records say is all it has, and enough.

The old batcher may have died after any single store. Its order of stores makes each case
decidable:

    record not published   token stands, no ring entry  -> its rows are queued again
    record running         token stands, in the ring    -> wait for the worker
    record finished        worker stored `finished`     -> complete the rows still RUNNING
    row QUEUED             in no record                 -> into the queue; a suspect, which
                           was in a failed batch, runs apart, alone
    row SUBMITTED          its ring entry is still pending, admit finds it
    row DONE               perhaps without a completion entry: raising the lane's generation
                           makes the client look at its own slots
"""

from __future__ import annotations

import numpy as np

from batchpool.batcher.batcher import Batcher
from batchpool.batcher.completion import ModelQueue
from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.worker import DispatchedBatch, WorkerProxy
from batchpool.core.layout.segments import RECORDS
from batchpool.core.layout.states import DispatchReason, SlotState
from batchpool.core.scheduler.queue import I64, QUEUE_COLUMNS, QueueColumn


def take_over(batcher: Batcher) -> None:
    """Adopt what stands in the lanes and workers that were added; then step as usual."""
    for member in batcher.crew.values():
        published = _published(member)
        for record in range(RECORDS):
            _adopt_record(batcher, member, record, published)
    for index, model in batcher.models.items():
        queued = [
            _unfinished(model, lane) for lane in batcher.lanes.values() if lane.model == index
        ]
        if queued:
            rows = np.concatenate(queued, axis=1)
            model.queue.append(rows[:, np.argsort(rows[QueueColumn.SUBMIT_NS], kind="stable")])
    for lane in batcher.lanes.values():
        lane.lane.generation.set(lane.lane.generation.get() + 1)
        lane.ring_client()
    for member in batcher.crew.values():
        member.ring()  # the old batcher may have died between publishing a record and its bell


def _unfinished(model: ModelQueue, lane: AdmittedLane) -> I64:
    """The QUEUED rows of a lane; those that were in a failed batch become suspects, alone, since
    their groups are not known."""
    rows = lane.unfinished()
    suspect = rows[QueueColumn.ATTEMPT] > 0
    known = model.suspects.of_lane(lane.number)[
        QueueColumn.SLOT
    ]  # of a record that failed just now
    for i in np.flatnonzero(suspect & ~np.isin(rows[QueueColumn.SLOT], known)):
        model.suspects.add_group(rows[:, i : i + 1])
    return rows[:, ~suspect]


def _published(member: WorkerProxy) -> set[int]:
    """The ring entries the worker may still act on, or has acted on and not yet passed."""
    pending = member.worker_segment.sq_consumer().peek().tolist()
    return {int(entry) for entry in pending}


def _adopt_record(batcher: Batcher, member: WorkerProxy, record: int, published: set[int]) -> None:
    worker_segment = member.worker_segment
    token = int(worker_segment.token[record])
    if token == int(worker_segment.freed[record]):
        return
    n = min(int(worker_segment.n[record]), worker_segment.row_slot.shape[1])
    rows = np.zeros((QUEUE_COLUMNS, n), dtype=np.int64)
    rows[QueueColumn.LANE] = worker_segment.row_lane[record, :n]
    rows[QueueColumn.SLOT] = worker_segment.row_slot[record, :n]
    rows[QueueColumn.SEQUENCE] = worker_segment.row_sequence[record, :n]
    rows = _still(batcher, rows, SlotState.RUNNING)
    finished = int(worker_segment.finished[record]) == token
    if finished or record | (token & 0xFFFFFFFF) << 32 in published:
        reason, attempt = int(worker_segment.reason[record]), int(worker_segment.attempt[record])
        batch = DispatchedBatch(
            record, token, rows, 0, n, reason == DispatchReason.APART, reason, attempt
        )
        batch.counted = batcher.flight_recorder.has(member.number, token)
        member.batches[record] = batch
        for lane, part in batcher.by_lane(rows):
            lane.running += part.shape[1]
        if finished:
            batcher.complete(member, batch)
    else:
        for lane, part in batcher.by_lane(rows):
            lane.lane.state[part[QueueColumn.SLOT]] = SlotState.QUEUED
        worker_segment.freed[record] = token


def _still(batcher: Batcher, rows: I64, state: SlotState) -> I64:
    """Those of the rows whose slot is in this state and still in the same use, with headers."""
    kept = [rows[:, :0]]
    for number in np.unique(rows[QueueColumn.LANE]).tolist():
        lane = batcher.lanes.get(number)
        if lane is None:
            continue
        theirs = rows[:, rows[QueueColumn.LANE] == number]
        slots, sequences = theirs[QueueColumn.SLOT], theirs[QueueColumn.SEQUENCE]
        same = (lane.lane.sequence[slots] == sequences) & (lane.lane.state[slots] == int(state))
        kept.append(lane.rows_in(slots[same], sequences[same]))
    return np.concatenate(kept, axis=1)
