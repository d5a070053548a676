"""How rows end: their batch finished, failed or was lost, or they never ran.

A batch fails when its model raises or its worker dies. Its rows become suspects
(core/suspects.py) and run again apart, unless the model is not idempotent; a row gets the
error when it failed alone for the last time. A batch that its worker never launched is not
suspect: its rows go back to the front of the queue. So do those of a batch that was too large
for the device's memory; half its size is the model's limit from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from batchpool.core.adaptive import Traffic
from batchpool.core.batching import Limits
from batchpool.core.errors import Status
from batchpool.core.lifecycle import Outcome, Reason, State
from batchpool.core.queue import I64, Field, Queue
from batchpool.core.suspects import Suspects
from batchpool.pool.admission import AdmittedLane
from batchpool.pool.crew import Batch, CrewMember

_OK, _NO_MEMORY = int(Outcome.OK), int(Outcome.NO_MEMORY)
_QUEUED = int(State.QUEUED)
_REASON_NAMES = {int(reason): reason.name for reason in Reason}


@dataclass
class Tally:
    """What the batcher has done for one model, for status and metrics."""

    admitted: int = 0
    completed: int = 0
    batches: int = 0
    rows: int = 0
    expired: int = 0
    refused: int = 0
    cancelled: int = 0
    failed: int = 0
    lost: int = 0
    no_memory: int = 0
    extents: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    def dispatched(self, rows: int, reason: Reason) -> None:
        self.batches += 1
        self.rows += rows
        name = _REASON_NAMES[reason]
        self.reasons[name] = self.reasons.get(name, 0) + 1


@dataclass
class ModelQueue:
    """One model: its limits, its admitted rows, its suspects, its counts."""

    name: str
    limits: Limits
    attempts: int = 3
    idempotent: bool = True
    queue: Queue = field(default_factory=Queue)
    suspects: Suspects = field(default_factory=Suspects)
    traffic: Traffic = field(default_factory=Traffic)
    tally: Tally = field(default_factory=Tally)

    def refusal_text(self) -> str:
        """Why rows were refused although the lane had room."""
        target_ms = self.limits.target_ns / 1e6
        return (
            f"model {self.name!r} is overloaded: this request would not be answered in time"
            f" (target_p99_ms = {target_ms:g})"
        )


class Endings:
    """Ends rows of these lanes. unmap_if_idle: asked when rows of a lane stopped RUNNING."""

    def __init__(
        self,
        models: list[ModelQueue],
        lanes: dict[int, AdmittedLane],
        unmap_if_idle: Callable[[AdmittedLane], None],
    ) -> None:
        self._models = models
        self._lanes = lanes
        self._unmap_if_idle = unmap_if_idle

    def by_lane(self, rows: I64) -> Iterator[tuple[AdmittedLane, I64]]:
        """Rows sorted by lane, split into (lane, its rows)."""
        n = rows.shape[1]
        if n == 0:
            return
        first = rows.item(Field.LANE, 0)
        if first == rows.item(Field.LANE, n - 1):
            yield self._lanes[first], rows
            return
        lanes = rows[Field.LANE]
        changes = (lanes[1:] != lanes[:-1]).nonzero()[0] + 1
        cuts = [0, *changes.tolist(), n]
        for start, stop in pairwise(cuts):
            yield self._lanes[lanes.item(start)], rows[:, start:stop]

    def finished(self, member: CrewMember, batch: Batch) -> None:
        """The worker's outputs or errors stand in the slots."""
        model = self._models[member.model]
        model.tally.extents += int(member.records.extents[batch.record])
        outcome = int(member.records.outcome[batch.record])
        if outcome == _OK:
            self._hand_back(model, batch.rows, ran=True)
        else:
            if outcome == _NO_MEMORY and self._can_shrink(model, batch):
                self._run_smaller(model, batch)
            else:
                model.tally.failed += 1
                spent = self._split(model, batch) if model.idempotent else batch.rows
                self._hand_back(model, spent)  # its status says what the model raised
            self._stop_running(batch.rows)
        member.free(batch)

    def lost(self, member: CrewMember, batch: Batch, cause: str = "") -> None:
        """The worker died with this batch."""
        model = self._models[member.model]
        if not member.was_launched(batch):
            again = self._open_lanes_only(batch.rows)
            self._requeue(again)
            model.queue.prepend(again)
        else:
            spent = self._split(model, batch) if model.idempotent else batch.rows
            spent = self._open_lanes_only(spent)
            model.tally.lost += spent.shape[1]
            text = f"the worker was lost with this row on every attempt; at last it {cause}"
            self.end(model, spent, Status.WORKER_LOST, text if cause else "")
        self._stop_running(batch.rows)
        member.free(batch)

    def _can_shrink(self, model: ModelQueue, batch: Batch) -> bool:
        """Whether the rows of a batch that was too large can run in smaller ones."""
        return model.idempotent and _smaller(model.limits, batch.size) > 0

    def _run_smaller(self, model: ModelQueue, batch: Batch) -> None:
        """The device's memory was too small: learn the cap; the rows are no suspects."""
        model.tally.no_memory += 1
        cap = _smaller(model.limits, batch.size)
        if cap < model.limits.max_batch:
            model.limits = replace(model.limits, max_batch=cap)
        rows = self._open_lanes_only(batch.rows)
        self._requeue(rows)
        if batch.apart:
            for part in np.array_split(rows, -(-rows.shape[1] // cap) or 1, axis=1):
                model.suspects.add_group(part)
        else:
            model.queue.prepend(rows)

    def _split(self, model: ModelQueue, batch: Batch) -> I64:
        """Count one failed batch for its rows and make them suspects; returns the spent ones."""
        rows = self._open_lanes_only(batch.rows).copy()
        rows[Field.ATTEMPT] += 1
        spent = model.suspects.add_failed(rows, model.attempts, batch.size)
        if spent.shape[1] == 0:
            self._requeue(rows)
        return spent

    def _requeue(self, rows: I64) -> None:
        for lane, part in self.by_lane(rows):
            # In this order, so that a takeover may count one death too few but never too many.
            lane.lane.state[part[Field.SLOT]] = _QUEUED
            lane.lane.attempt[part[Field.SLOT]] = part[Field.ATTEMPT]
            lane.recheck_cancels()

    def _open_lanes_only(self, rows: I64) -> I64:
        """Without the rows whose client is gone."""
        gone = [lane.number for lane, _ in self.by_lane(rows) if lane.closing]
        return rows[:, ~np.isin(rows[Field.LANE], gone)] if gone else rows

    def _stop_running(self, rows: I64) -> None:
        for lane, part in self.by_lane(rows):
            self._leave(lane, part.shape[1])

    def _leave(self, lane: AdmittedLane, n: int) -> None:
        lane.running -= n
        if lane.closing:
            self._unmap_if_idle(lane)

    def _hand_back(self, model: ModelQueue, rows: I64, *, ran: bool = False) -> None:
        """Complete rows. ran: they are all the rows of a batch that stop RUNNING with it."""
        model.tally.completed += rows.shape[1]
        for lane, part in self.by_lane(rows):
            lane.complete(part[Field.SLOT], part[Field.SEQUENCE])
            if ran:
                self._leave(lane, part.shape[1])

    def end(self, model: ModelQueue, rows: I64, status: Status, text: str = "") -> None:
        """Rows that will not run (again): say why and hand them back."""
        if rows.shape[1] == 0:
            return
        rows = rows[:, np.argsort(rows[Field.LANE], kind="stable")]
        for lane, part in self.by_lane(rows):
            lane.lane.write_status(part[Field.SLOT], status, text)
        self._hand_back(model, rows)


def _smaller(limits: Limits, n: int) -> int:
    """The largest batch that takes less than one of n rows does; 0 if none can."""
    if not limits.sizes:
        return n // 2
    padded = limits.padded(n)
    return max((size for size in limits.sizes if size < padded), default=0)
