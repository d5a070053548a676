"""Requests that wait in one process, under the rules of core/scheduler/decide.py."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from batchpool.core.scheduler.decide import NEVER_NS, Decision, Limits, WorkerView, decide
from batchpool.core.scheduler.queue import I64, QUEUE_COLUMNS, Queue, QueueColumn

Owner = TypeVar("Owner")


@dataclass(frozen=True)
class TakenRequests(Generic[Owner]):
    """Requests (input, owner) that left the queue, and their rows [QUEUE_COLUMNS, n] in it."""

    rows: I64
    requests: list[tuple[Any, Owner]]

    def inputs(self) -> list[Any]:
        return [given for given, _ in self.requests]


class RequestQueue(Generic[Owner]):
    """Requests in the order they came, each an input and its owner. Takes no lock."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._queue = Queue()
        self._numbers = itertools.count()
        self._requests: dict[int, tuple[Any, Owner]] = {}  # by QueueColumn.SEQUENCE

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, now_ns: int, given: Any, owner: Owner) -> int:
        """Put a request at the end; returns its number."""
        number = next(self._numbers)
        row = np.zeros((QUEUE_COLUMNS, 1), dtype=np.int64)
        row[QueueColumn.SEQUENCE] = number
        row[QueueColumn.SUBMIT_NS] = now_ns
        row[QueueColumn.DEADLINE_NS] = NEVER_NS
        self._queue.append(row)
        self._requests[number] = given, owner
        return number

    def decide(self, now_ns: int, *, in_flight: int, draining: bool = False) -> Decision:
        """May a batch leave? in_flight: batches that run. draining: nobody waits for company."""
        limits = replace(self._limits, draining=draining)
        return decide(now_ns, self._queue.view(), [WorkerView(0, in_flight)], limits)

    def take(self, rows: slice | npt.NDArray[Any]) -> TakenRequests[Owner]:
        """Take requests out by position, to run them."""
        taken = self._queue.take(rows)
        return TakenRequests(
            taken, [self._requests.pop(n) for n in taken[QueueColumn.SEQUENCE].tolist()]
        )

    def put_back(self, taken: TakenRequests[Owner]) -> None:
        """After a failure: into the places they had, whichever batch comes back first."""
        numbers = taken.rows[QueueColumn.SEQUENCE].tolist()
        self._requests.update(zip(numbers, taken.requests, strict=True))
        taken.rows[QueueColumn.ATTEMPT] += 1
        waiting = self._queue.take(slice(0, len(self._queue)))
        both = np.concatenate([taken.rows, waiting], axis=1)
        self._queue.append(both[:, np.argsort(both[QueueColumn.SEQUENCE])])

    def take_failed(self) -> TakenRequests[Owner]:
        """Take out the requests that were in a failed batch."""
        return self.take(np.flatnonzero(self._queue.view()[QueueColumn.ATTEMPT]))

    def discard(self, numbers: Collection[int]) -> None:
        """Take out those of these requests that still wait."""
        self.take(np.flatnonzero(np.isin(self._queue.view()[QueueColumn.SEQUENCE], list(numbers))))
