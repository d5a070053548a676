"""The batcher's workers: adding and removing them, and choosing which ones get new batches."""

from __future__ import annotations

from collections.abc import Iterable

from batchpool.batcher.worker_proxy import WorkerProxy


class WorkerTable:
    """The workers of all models, by number.

    version: rises whenever a worker comes, goes, or becomes active or inactive.

    A worker is active while it gets new batches. An inactive one finishes the batches that it has,
    and is then reported by `take_idle`.
    """

    def __init__(self) -> None:
        self.by_number: dict[int, WorkerProxy] = {}
        self.version = 0
        self._active: dict[int, list[WorkerProxy]] = {}  # of this version, by stage
        self._deactivated: dict[int, int] = {}  # inactive worker, not reported yet -> change

    def add(self, worker: WorkerProxy, change: int = 0) -> None:
        """Add a worker. change: of `set_active`, by which an inactive worker became so."""
        assert worker.number not in self.by_number, f"worker {worker.number} is here already"
        self.by_number[worker.number] = worker
        self._changed()
        if not worker.active:
            self._deactivated[worker.number] = change

    def remove(self, number: int) -> WorkerProxy | None:
        """Remove a worker; None if it is not here."""
        self._deactivated.pop(number, None)
        self._changed()
        return self.by_number.pop(number, None)

    def of_model(self, index: int) -> list[WorkerProxy]:
        """The workers of one stage of a model, active or not."""
        return [worker for worker in self.by_number.values() if worker.model == index]

    def active_of(self, index: int) -> list[WorkerProxy]:
        """The active workers of one stage of a model; the caller does not change the list."""
        found = self._active.get(index)
        if found is None:
            found = [worker for worker in self.of_model(index) if worker.active]
            self._active[index] = found
        return found

    def _changed(self) -> None:
        self.version += 1
        self._active.clear()

    def set_active(self, on: Iterable[int], off: Iterable[int], change: int) -> None:
        """Give new batches to the workers `on` and to none of `off`, from the next step on.

        Numbers of workers that are not here are ignored. change: the number of this change, which
        `take_idle` returns with each of the workers `off`.
        """
        self._changed()
        for number in on:
            self._deactivated.pop(number, None)
            if number in self.by_number:
                self.by_number[number].active = True
        for number in off:
            if number in self.by_number:
                self.by_number[number].active = False
                self._deactivated[number] = change

    def take_idle(self) -> list[tuple[int, int]]:
        """The inactive workers without batches in flight, each once: (number, change)."""
        idle = [
            (number, change)
            for number, change in self._deactivated.items()
            if not self.by_number[number].in_flight
        ]
        for number, _ in idle:
            del self._deactivated[number]
        return idle
