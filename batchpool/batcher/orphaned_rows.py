"""Rows that a broken worker may have had and that no record tells of any more.

A batcher knows the batches that it has dispatched itself. After a takeover it knows them from the
records; where a worker has overwritten those, its rows are RUNNING in their lanes and in no batch.
They are found when the last broken worker of their stage has been reaped: until then it may still
store into their slots.
"""

from __future__ import annotations

import numpy as np

from batchpool.batcher.mapped_lanes import MappedLanes
from batchpool.batcher.model_queue import ModelQueue
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.batcher.worker_table import WorkerTable
from batchpool.core.scheduler.queue import I64, QUEUE_COLUMNS, QueueColumn


def orphaned_rows(
    lost: WorkerProxy, models: dict[int, ModelQueue], lanes: MappedLanes, workers: WorkerTable
) -> list[I64]:
    """The rows [QUEUE_COLUMNS, n] of a broken worker's stage that are RUNNING and in no batch, in
    parts of at most max_batch; none while another broken worker of the stage is there."""
    others = workers.of_model(lost.model)
    if any(worker.damage for worker in others):
        return []
    stage = models[lost.model]
    found = [np.empty((QUEUE_COLUMNS, 0), dtype=np.int64)]
    for lane in lanes.by_number.values():
        if lane.closing or not any(each is stage for each in models[lane.model].onward()):
            continue
        rows = lane.running_rows(stage.stage)
        for worker in others:
            for batch in worker.batches.values():
                own = batch.rows[QueueColumn.SLOT, batch.rows[QueueColumn.LANE] == lane.number]
                rows = rows[:, ~np.isin(rows[QueueColumn.SLOT], own)]
        found.append(rows)
    rows = np.concatenate(found, axis=1)
    most = stage.limits.max_batch
    return [rows[:, at : at + most] for at in range(0, rows.shape[1], most)]
