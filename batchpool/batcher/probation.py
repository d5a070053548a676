"""Probation: where the suspects of a generator run, and until when no other row joins them.

Rows of a failed batch run again in groups (core/scheduler/suspect_rows.py), one group at a time. A
row that makes its worker die mostly does so at the step at which the worker died before, which is
the first one after its tokens so far. So a sequence is proven once it has made PROVEN_AFTER tokens
more than it had when it joined, and a group is on probation until each of its rows is proven or has
ended. Until then nothing else joins its worker.

A group joins a worker only when all sequences there are proven: then a death is the group's doing,
and the others need not be suspected. While a group waits for that, no other row joins the worker
that it will go to, which takes a moment only, since the next tokens come soon.

The batcher is not told of single tokens, so it looks again after LOOK_AGAIN_NS. It looks at the
count in the worker's record: the length in the lane is a word that a local client may hold low, and
with it all suspects of the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from batchpool.batcher.dispatched_batch import DispatchedBatch
from batchpool.batcher.sequence_words import tokens_made
from batchpool.batcher.worker_proxy import WorkerProxy

PROVEN_AFTER = 16  # tokens
LOOK_AGAIN_NS = 5_000_000


class Probation:
    """Decides about the suspects of generators by the tokens that running rows have got."""

    def clear(self, workers: Iterable[WorkerProxy]) -> bool:
        """End the probation of the sequences that are proven; False while there are others."""
        over = True
        for worker in workers:
            for batch in worker.batches.values():
                if batch.apart:
                    batch.apart = not _is_proven(worker, batch)
                    over = over and not batch.apart
        return over

    def worker_for(self, workers: Sequence[WorkerProxy]) -> tuple[WorkerProxy | None, bool]:
        """The worker that a group will join, None without any, and whether it may join it now."""
        counts = [(self._unproven(worker), worker.in_flight, worker.number) for worker in workers]
        if not counts:
            return None, False
        least = min(counts)
        return workers[counts.index(least)], least[0] == 0

    def _unproven(self, worker: WorkerProxy) -> int:
        return sum(not _is_proven(worker, batch) for batch in worker.batches.values())


def _is_proven(worker: WorkerProxy, batch: DispatchedBatch) -> bool:
    is_over = batch.rows.shape[1] == 0  # as a takeover may find
    return is_over or tokens_made(worker, batch) >= PROVEN_AFTER
