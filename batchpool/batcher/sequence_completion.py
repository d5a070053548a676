"""The end of a generator's rows: their sequences ended, failed, were lost, or were given back.

Sequences run together in one worker and end one by one. When a step of the generator fails, or its
worker dies, all sequences that it had launched are one failed batch: each row has been in one more,
and the rows are split as those of any failed batch. Sequences that fail at once are published by
one store of the worker's ring, so that they are seen together here.

While a group of suspects is on probation (batcher/probation.py) only that group is held to be the
cause. The other sequences of the worker had run well beside each other; they go back to the front
of the queue as rows that were never launched do, without a failure. Since one of them may have been
the cause after all, a row that fails alone beside others gets the error one failure later.

In every case a row keeps the tokens that it has, and the next worker goes on behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from batchpool.batcher.completion import Completion
from batchpool.batcher.dispatched_batch import DispatchedBatch
from batchpool.batcher.metrics import END_OF, End, Retry
from batchpool.batcher.model_queue import ModelQueue
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.core.errors import Status
from batchpool.core.layout.states import BatchOutcome
from batchpool.core.scheduler.batch_sizes import smaller_size
from batchpool.core.scheduler.queue import QueueColumn
from batchpool.shm.stats.flight_recorder import LOST

_OK, _RETURNED = int(BatchOutcome.OK), int(BatchOutcome.RETURNED)
_NO_MEMORY, _INVALID_INPUT = int(BatchOutcome.NO_MEMORY), int(BatchOutcome.INVALID_INPUT)
_RETURN_BITS = 20  # of the place of a row that comes back, below the number of its batch


class SequenceCompletion(Completion):
    """Completes rows of generators, or puts them back into their queue."""

    def finish(self, worker: WorkerProxy, done: Sequence[DispatchedBatch], beside: int = 0) -> None:
        """Complete the sequences that a worker has finished, all that it published at once.

        beside: so many more were lost with them.
        """
        together: dict[int, list[DispatchedBatch]] = {}
        for batch in done:
            assert batch.end is not None
            outcome = batch.end[0]
            if outcome == _OK:
                self._end(worker, batch)
            else:
                together.setdefault(outcome, []).append(batch)
        for outcome, batches in together.items():
            if outcome == _RETURNED:
                self._go_back(worker, batches, outcome, Retry.RETURNED)
            else:
                self._fail(worker, batches, outcome, len(batches) + beside)

    def lose(self, worker: WorkerProxy, cause: str = "") -> None:
        """Take back the sequences of a worker that was reaped. cause: how it ended."""
        done, lost, waiting = (
            list[DispatchedBatch](),
            list[DispatchedBatch](),
            list[DispatchedBatch](),
        )
        for batch in worker.batches.values():
            if worker.has_finished(batch, self.now_ns):
                done.append(batch)
            else:
                (lost if worker.has_launched(batch) else waiting).append(batch)
        failed = sum(b.end is not None and b.end[0] not in (_OK, _RETURNED) for b in done)
        self.finish(worker, done, len(lost))
        if lost:
            self._fail(worker, lost, LOST, len(lost) + failed, cause)
        if waiting:
            self._go_back(worker, waiting, LOST, Retry.NOT_STARTED)

    def _end(self, worker: WorkerProxy, batch: DispatchedBatch) -> None:
        """Complete a sequence that ended with the status that its worker wrote. A local client may
        overwrite that word: it changes the end of its own row only."""
        model = self._models[worker.model]
        self._count(worker, model, batch, _OK)
        self._complete(batch.rows, ran=True)
        worker.free(batch)

    def _count_others(self, worker: WorkerProxy, model: ModelQueue, batch: DispatchedBatch) -> int:
        others = 0
        for lane, part in self._lanes.by_lane(batch.rows):
            for status in lane.lane.status[part[QueueColumn.SLOT]].tolist():
                if status == Status.OK:
                    continue
                end = END_OF.get(status, End.MODEL_ERROR)
                if end is End.CANCELLED and lane.closing and not lane.evicted:
                    end = End.CLIENT_GONE  # its worker was told to leave the lane
                model.metrics.end(end, 1)
                others += 1
        return others

    def _fail(
        self,
        worker: WorkerProxy,
        batches: Sequence[DispatchedBatch],
        outcome: int,
        size: int,
        cause: str = "",
    ) -> None:
        """Suspect the rows of sequences that failed together, or complete them with an error.

        size: how many failed at once, with those that are not here any more.
        """
        model = self._models[worker.model]
        if outcome == _NO_MEMORY and model.idempotent and smaller_size(model.limits.sizes, size):
            self._run_fewer(worker, batches, size)
            return
        blamed = [batch for batch in batches if batch.apart] or batches
        beside = [batch for batch in batches if not any(batch is each for each in blamed)]
        size -= len(beside)
        if beside and blamed[0].attempt < model.attempts_after(outcome == LOST):
            size += 1  # it is not quite sure yet that the row alone is the cause
        group = _joined(blamed, size)
        if self.now_ns:
            group.rows[QueueColumn.SINCE_NS] = self.now_ns
        self._count_group(worker, model, group, len(blamed), outcome)
        if outcome == LOST:
            self._lose_rows(worker, model, group, cause)
        elif outcome == _INVALID_INPUT and model.idempotent and group.size > 1:
            self._run_in_parts(model, group)
        else:
            self._fail_rows(worker, model, group)
        self._stop_running(group.rows)
        self._free_all(worker, blamed)
        if beside:
            why = Retry.WORKER_LOST if outcome == LOST else Retry.MODEL_ERROR
            self._go_back(worker, beside, outcome, why)

    def _run_fewer(
        self, worker: WorkerProxy, batches: Sequence[DispatchedBatch], size: int
    ) -> None:
        """Lower the number of sequences of the model's workers, since so many were too many for the
        device's memory; their rows are no suspects."""
        model = self._models[worker.model]
        cap = smaller_size(model.limits.sizes, size)
        if cap < model.limits.max_batch:
            model.limits = replace(model.limits, max_batch=cap)
            model.metrics.limit(cap)
        self._go_back(worker, batches, _NO_MEMORY, Retry.NO_MEMORY)

    def _go_back(
        self,
        worker: WorkerProxy,
        batches: Sequence[DispatchedBatch],
        outcome: int,
        why: Retry,
    ) -> None:
        """Queue rows again at the front, in the order in which they left; those that were on
        probation are the next group of suspects."""
        model = self._models[worker.model]
        for apart in (True, False):
            some = [batch for batch in batches if batch.apart is apart]
            if not some:
                continue
            group = _joined(some, len(some))
            rows = group.rows
            self._count_group(worker, model, group, len(some), outcome)
            again = self._without_closing_lanes(model, rows).copy()
            again[QueueColumn.SINCE_NS] = self.now_ns or again[QueueColumn.SUBMIT_NS]
            self._requeue(again)
            model.metrics.retry(why, again.shape[1])
            if apart:
                model.suspects.add_first(again)
            else:
                first = min(batch.number for batch in some)
                model.queue.prepend(again, first)
            self._stop_running(rows)
        self._free_all(worker, batches)

    def _count_group(
        self, worker: WorkerProxy, model: ModelQueue, group: DispatchedBatch, n: int, outcome: int
    ) -> None:
        """Count each of n sequences that came to an end at once as a batch, and record all of them
        as one."""
        for _ in range(0 if group.counted else n - 1):
            if outcome == LOST:
                model.metrics.lose()
            else:
                model.metrics.finish(outcome, 0, 0)
        self._count(worker, model, group, outcome)

    def _free_all(self, worker: WorkerProxy, batches: Sequence[DispatchedBatch]) -> None:
        """Free the records of sequences that failed together when all their rows are queued or
        complete, the oldest last: a takeover in between counts them as one batch, once."""
        for batch in sorted(batches, key=lambda each: -each.token):
            worker.free(batch)


def _joined(batches: Sequence[DispatchedBatch], size: int) -> DispatchedBatch:
    """Sequences that failed together as one batch, with the names of the oldest. Its rows are in
    the order of lanes, and have their place among rows that come back."""
    first = min(batches, key=lambda batch: batch.token)
    parts = []
    for batch in batches:
        rows = batch.rows.copy()
        known = rows[QueueColumn.RETURN]
        rows[QueueColumn.RETURN] = np.where(known, known, batch.number << _RETURN_BITS)
        parts.append(rows)
    rows = np.concatenate(parts, axis=1)
    rows = rows[:, np.lexsort((rows[QueueColumn.SLOT], rows[QueueColumn.LANE]))]
    return replace(first, rows=rows, size=size, tokens=0)
