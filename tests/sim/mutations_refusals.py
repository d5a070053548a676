"""Refused and failed rows with one rule removed at a time; as tests/sim/mutations_batcher.py."""

from __future__ import annotations

import numpy as np

from batchpool.batcher import model_queue, recovery
from batchpool.batcher.completion import Completion
from batchpool.batcher.dispatched_batch import DispatchedBatch
from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.metrics import Retry
from batchpool.batcher.model_queue import ModelQueue
from batchpool.core.scheduler.queue import I64, QueueColumn
from batchpool.worker.outputs import CheckedOutputs
from batchpool.worker.worker import LaunchedBatch, Worker
from tests.sim.mutations import Patch


def takeover_queues_again_what_a_record_put_back(patch: Patch) -> None:
    """A batch that is split while there is no batcher leaves its rows QUEUED without an attempt."""

    def queue_rows(model: ModelQueue, lane: AdmittedLane) -> I64:
        rows = lane.queued_rows(model.stage)
        suspect = rows[QueueColumn.ATTEMPT] > 0
        known = model.suspects.of_lane(lane.number)[QueueColumn.SLOT]
        for i in np.flatnonzero(suspect & ~np.isin(rows[QueueColumn.SLOT], known)):
            model.suspects.add_group(rows[:, i : i + 1])
        return rows[:, ~suspect]

    patch.setattr(recovery, "_queue_rows", queue_rows)


def refused_rows_share_one_text(patch: Patch) -> None:
    write = Worker._write_statuses

    def shared(self: Worker, batch: LaunchedBatch, checked: CheckedOutputs) -> None:
        first = next(iter(checked.refused.values()), None)
        if first is not None:
            checked.refused = dict.fromkeys(checked.refused, first)
        write(self, batch, checked)

    patch.setattr(Worker, "_write_statuses", shared)


def refusals_count_as_failures(patch: Patch) -> None:
    def run_in_parts(self: Completion, model: ModelQueue, batch: DispatchedBatch) -> None:
        self._suspect(model, batch, Retry.MODEL_ERROR)

    patch.setattr(Completion, "_run_in_parts", run_in_parts)


def failed_rows_are_not_confirmed(patch: Patch) -> None:
    patch.setattr(model_queue, "_MODEL_ATTEMPTS", 1)
