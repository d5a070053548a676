"""The interface between the fleet of workers and a reload that replaces some of them."""

from __future__ import annotations

from typing import Protocol

from batchpool.supervisor.children.child import Child
from batchpool.supervisor.children.worker_slot import WorkerSlot


class WorkerObserver(Protocol):
    """The part of a reload that workers' events are reported to; `WorkerSwapExecutor` is one."""

    def warm(self, worker_slot: WorkerSlot) -> None:
        """A worker is warm."""

    def idle(self, worker_slot: WorkerSlot) -> None:
        """A worker off duty has nothing in flight."""

    def lost(self, worker_slot: WorkerSlot, child: Child) -> bool:
        """A worker has ended. True if the reload acts on it: its slot is not filled again."""
