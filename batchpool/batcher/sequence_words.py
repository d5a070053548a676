"""The words of a generator's worker that the batcher decides by, checked as they are read."""

from __future__ import annotations

from batchpool.batcher.dispatched_batch import DispatchedBatch
from batchpool.batcher.segment_checks import LARGEST
from batchpool.batcher.worker_proxy import WorkerProxy


def tokens_made(worker: WorkerProxy, batch: DispatchedBatch) -> int:
    """The tokens that the worker has made for a sequence since it joined; 0 before."""
    # What an earlier use of the record left is gone before `launched` names this one.
    made = worker.worker_segment.made_of[batch.record] if worker.has_launched(batch) else 0
    if made > batch.tokens:
        worker.mark_broken(f"{made} tokens were made of {batch.tokens}")
    return 0 if worker.damage else made


def sequence_limits(worker: WorkerProxy) -> tuple[int, int]:
    """The sequences and tokens that the worker holds, 0 for any number; it says so before it is
    ready, and says nothing else afterwards."""
    found = worker.worker_segment.sequences.get(), worker.worker_segment.kv_tokens.get()
    worker.sequence_limits = worker.sequence_limits or found
    if found != worker.sequence_limits or max(found) >= LARGEST:
        worker.mark_broken(f"its limits of sequences and tokens became {found}")
    return (0, 0) if worker.damage else worker.sequence_limits
