"""Counting with one rule removed at a time; as tests/sim/mutations_batcher.py."""

from __future__ import annotations

from batchpool.batcher.completion import Completion
from batchpool.batcher.dispatched_batch import DispatchedBatch
from batchpool.batcher.metrics import BatcherMetrics, End
from batchpool.batcher.model_queue import ModelQueue
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.shm.stats.flight_recorder import FlightRecorder
from tests.sim.mutations import Patch


def takeover_counts_again(patch: Patch) -> None:
    """The old batcher may have counted a batch and died before all of it was published."""
    patch.setattr(FlightRecorder, "has", lambda self, process, token: False)


def counted_after_publication(patch: Patch) -> None:
    """A batcher that dies in between has answered rows that nobody counts."""
    account = Completion._count
    late: list[tuple[Completion, WorkerProxy, ModelQueue, DispatchedBatch, int]] = []

    def later(
        self: Completion,
        proxy: WorkerProxy,
        model: ModelQueue,
        batch: DispatchedBatch,
        outcome: int,
    ) -> None:
        late.append((self, proxy, model, batch, outcome))

    hand_back = Completion._complete

    def then(self: Completion, *rows: object, **more: object) -> None:
        hand_back(self, *rows, **more)  # type: ignore[arg-type]
        while late:
            account(*late.pop())

    patch.setattr(Completion, "_count", later)
    patch.setattr(Completion, "_complete", then)


def rows_of_the_gone_are_forgotten(patch: Patch) -> None:
    end = BatcherMetrics.end

    def forgetful(self: BatcherMetrics, how: int, n: int) -> None:
        if how != End.CLIENT_GONE:
            end(self, how, n)

    patch.setattr(BatcherMetrics, "end", forgetful)
