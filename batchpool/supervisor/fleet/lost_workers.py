"""Dead workers whose rows the batcher has not taken back yet."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from batchpool.control.edges import ToBatcher
from batchpool.control.process_messages import AddWorker, WorkerLost
from batchpool.shm.doorbell import Doorbell
from batchpool.supervisor.children.child import Child
from batchpool.supervisor.children.worker_slot import WorkerSlot

TellBatcher = Callable[[ToBatcher, Sequence[int]], None]


@dataclass(frozen=True)
class _Lost:
    """One dead worker as the batcher must know it, and the descriptors kept for it."""

    number: int
    place: int
    pid: int
    entry: int
    max_batch: int
    row: int
    stage: int
    fd: int
    bell: Doorbell


class LostWorkers:
    """Keeps the segment and the bell of each dead worker until the batcher needs them no more."""

    def __init__(self) -> None:
        self._lost: dict[int, _Lost] = {}

    def add(self, worker_slot: WorkerSlot, child: Child) -> None:
        """Take over the segment and the bell of a worker that has ended."""
        assert worker_slot.bell is not None
        self._lost[worker_slot.number] = _Lost(
            worker_slot.number, worker_slot.plan.index, child.pid,
            worker_slot.entry, worker_slot.max_batch, worker_slot.row, worker_slot.plan.stage,
            worker_slot.fd, worker_slot.bell,
        )  # fmt: skip
        worker_slot.worker_segment = None
        worker_slot.bell = None

    def handled(self, number: int) -> None:
        """The batcher has taken every row of this worker: its segment may go."""
        lost = self._lost.pop(number)
        os.close(lost.fd)
        lost.bell.close()

    def introduce(self, tell: TellBatcher) -> None:
        """Tell a new batcher these workers, whose rows it may find under way."""
        for lost in self._lost.values():
            message = AddWorker(
                worker=lost.number,
                place=lost.place,
                pid=lost.pid,
                model=lost.entry,
                max_batch=lost.max_batch,
                row=lost.row,
                on_duty=False,
                duty=0,
                stage=lost.stage,
            )
            tell(message, [lost.fd, lost.bell.fd])

    def report(self, tell: TellBatcher) -> None:
        """Tell a new batcher that has taken over that these workers are dead."""
        for number in self._lost:
            tell(WorkerLost(number, "died"), [])

    def entries(self) -> set[int]:
        """The models of these workers, by their numbers."""
        return {lost.entry for lost in self._lost.values()}
