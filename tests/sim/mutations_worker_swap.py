"""The choice of active workers with one rule removed at a time; see mutations_batcher.py."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from batchpool.batcher.batcher import Batcher
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.batcher.worker_table import WorkerTable
from tests.sim.mutations import Patch


def deactivation_is_ignored(patch: Patch) -> None:
    """A deactivated worker gets more batches: a reload would mix old and new answers."""
    set_active = WorkerTable.set_active

    def ignoring(self: WorkerTable, on: Iterable[int], off: Iterable[int], change: int) -> None:
        off = list(off)
        set_active(self, on, off, change)
        for number in off:
            if number in self.by_number:
                self.by_number[number].active = True

    patch.setattr(WorkerTable, "set_active", ignoring)


def takeover_forgets_inactive_workers(patch: Patch) -> None:
    add_worker = Batcher.add_worker

    def forgetful(self: Batcher, worker: WorkerProxy, change: int = 0) -> None:
        add_worker(self, worker, change)
        worker.active = True

    patch.setattr(Batcher, "add_worker", forgetful)


def idle_with_rows_in_flight(patch: Patch) -> None:
    """Ending a worker with batches in flight makes their rows suspects, or costs an attempt."""

    def hasty(self: WorkerTable) -> list[tuple[int, int]]:
        idle = list(self._deactivated.items())
        self._deactivated.clear()
        return idle

    patch.setattr(WorkerTable, "take_idle", hasty)


def suspects_on_inactive_workers_do_not_count(patch: Patch) -> None:
    """The next group is dispatched while one still runs on an inactive worker."""
    dispatch_apart = Batcher._dispatch_apart

    def hasty(
        self: Batcher, index: int, model: Any, workers: list[WorkerProxy], now_ns: int
    ) -> None:
        table = self.workers
        everyone, table.by_number = table.by_number, {proxy.number: proxy for proxy in workers}
        dispatch_apart(self, index, model, workers, now_ns)
        table.by_number = everyone

    patch.setattr(Batcher, "_dispatch_apart", hasty)
