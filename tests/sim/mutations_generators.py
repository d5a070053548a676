"""Generators with one rule removed at a time; as in mutations_batcher.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from batchpool.batcher import sequence_completion
from batchpool.batcher.completion import Completion
from batchpool.batcher.dispatched_batch import DispatchedBatch
from batchpool.batcher.probation import Probation
from batchpool.batcher.reservation import Reservations
from batchpool.batcher.sequence_completion import SequenceCompletion
from batchpool.batcher.sequence_dispatch import SequenceDispatch
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.core.scheduler.queue import QueueColumn
from tests.sim.mutations import Patch
from tests.unit.generator_worker import FakeGeneratorWorker, RunningSequence, token_of


def lengths_are_not_reset(patch: Patch) -> None:
    patch.setattr(Reservations, "start", lambda self, slots: None)


def length_before_its_tokens(patch: Patch) -> None:
    make = FakeGeneratorWorker.make

    def hasty(self: FakeGeneratorWorker, sequence: RunningSequence, n: int = 1) -> None:
        lane, length = sequence.lane, sequence.length + n
        lane.memory.array(lane.layout.columns["size.out"])[sequence.slot, 0] = length
        make(self, sequence, n)

    patch.setattr(FakeGeneratorWorker, "make", hasty)


def no_fence_before_length(patch: Patch) -> None:
    def hasty(self: FakeGeneratorWorker, sequence: RunningSequence, n: int = 1) -> None:
        lane, start = sequence.lane, sequence.length
        for index in range(start, start + n):
            column = lane.outputs["token"].values
            column[sequence.slot, index] = token_of(sequence.first, index)
        sequence.length = start + n
        lane.memory.array(lane.layout.columns["size.out"])[sequence.slot, 0] = sequence.length

    patch.setattr(FakeGeneratorWorker, "make", hasty)


def only_pending_records_are_published(patch: Patch) -> None:
    """As records of rows are, which stand in the ring until they are finished."""

    def pending(self: WorkerProxy, batch: DispatchedBatch) -> bool:
        entries = self.worker_segment.sq_consumer().peek().tolist()
        return batch.record | (batch.token & 0xFFFFFFFF) << 32 in entries

    patch.setattr(WorkerProxy, "has_published", pending)


def every_record_is_published(patch: Patch) -> None:
    patch.setattr(WorkerProxy, "has_published", lambda self, batch: True)


def reservations_do_not_count(patch: Patch) -> None:
    view = SequenceDispatch._view

    def generous(self: SequenceDispatch, *args: Any) -> Any:
        return replace(view(self, *args), reserved=0)

    patch.setattr(SequenceDispatch, "_view", generous)


def takeover_forgets_reservations(patch: Patch) -> None:
    adopt = WorkerProxy.adopt

    def forgetful(self: WorkerProxy, batch: DispatchedBatch) -> None:
        batch.tokens = 0
        adopt(self, batch)

    patch.setattr(WorkerProxy, "adopt", forgetful)


def others_join_suspects(patch: Patch) -> None:
    view = SequenceDispatch._view

    def open_view(self: SequenceDispatch, *args: Any) -> Any:
        return replace(view(self, *args), closed=False)

    patch.setattr(SequenceDispatch, "_view", open_view)


def suspects_join_others(patch: Patch) -> None:
    patch.setattr(Probation, "_unproven", lambda self, worker: 0)


def takeover_forgets_probation(patch: Patch) -> None:
    adopt = WorkerProxy.adopt

    def forgetful(self: WorkerProxy, batch: DispatchedBatch) -> None:
        batch.apart = False
        adopt(self, batch)

    patch.setattr(WorkerProxy, "adopt", forgetful)


def each_sequence_fails_alone(patch: Patch) -> None:
    fail = SequenceCompletion._fail

    def one_by_one(
        self: SequenceCompletion,
        worker: Any,
        batches: Any,
        outcome: int,
        size: int,
        cause: str = "",
    ) -> None:
        for batch in batches:
            fail(self, worker, [batch], outcome, 1, cause)

    patch.setattr(SequenceCompletion, "_fail", one_by_one)


def unlaunched_sequences_are_suspects(patch: Patch) -> None:
    lose = SequenceCompletion.lose

    def unjust(self: SequenceCompletion, worker: Any, cause: str = "") -> None:
        worker.has_launched = lambda batch: True
        lose(self, worker, cause)

    patch.setattr(SequenceCompletion, "lose", unjust)


def sequences_come_back_by_slot(patch: Patch) -> None:
    joined = sequence_completion._joined

    def by_slot(batches: Any, size: int) -> DispatchedBatch:
        group = joined(batches, size)
        for batch in batches:
            if batch.rows.shape[1]:
                slots = group.rows[QueueColumn.SLOT].tolist()
                place = slots.index(batch.rows.item(QueueColumn.SLOT, 0))
                group.rows[QueueColumn.RETURN, place] = 1 + place
        return group

    patch.setattr(sequence_completion, "_joined", by_slot)


def records_are_freed_before_rows_are_queued(patch: Patch) -> None:
    go_back = SequenceCompletion._go_back

    def hasty(self: SequenceCompletion, worker: WorkerProxy, batches: Any, *args: Any) -> None:
        for batch in batches:
            worker.worker_segment.freed[batch.record] = batch.token
        go_back(self, worker, batches, *args)

    patch.setattr(SequenceCompletion, "_go_back", hasty)


def sequences_given_back_are_done(patch: Patch) -> None:
    def complete(self: SequenceCompletion, worker: WorkerProxy, batches: Any, *args: Any) -> None:
        for batch in batches:
            self._end(worker, batch)

    patch.setattr(SequenceCompletion, "_go_back", complete)


def sequences_of_the_gone_come_back(patch: Patch) -> None:
    patch.setattr(Completion, "_without_closing_lanes", lambda self, model, rows: rows)
