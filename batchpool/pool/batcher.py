"""The batcher: admits rows from every lane, decides, dispatches to workers, completes.

`Batcher.step(now_ns) -> wake_at_ns` is the whole of it. A step never waits, reads no clock
and holds no lock; all it shares with others stands in the lanes and the workers' records, so
that a new batcher can take over from what it finds there.

A step: take what workers finished, take what clients submitted, drop what was cancelled or
is late, then let core/batching.py decide for each model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from batchpool.core.batching import NEVER_NS, Limits, Worker, decide
from batchpool.core.errors import Status
from batchpool.core.lifecycle import Gate, Outcome, Reason, State
from batchpool.core.queue import I64, Field, Queue
from batchpool.pool.admission import AdmittedLane
from batchpool.pool.crew import Batch, CrewMember


@dataclass
class Tally:
    """What the batcher has done for one model, for status and metrics."""

    admitted: int = 0
    completed: int = 0
    batches: int = 0
    rows: int = 0
    expired: int = 0
    cancelled: int = 0
    failed: int = 0
    lost: int = 0
    extents: int = 0
    reasons: dict[str, int] = field(default_factory=dict)


@dataclass
class ModelQueue:
    """One model: its limits, its admitted rows, its counts."""

    name: str
    limits: Limits
    attempts: int = 3
    idempotent: bool = True
    queue: Queue = field(default_factory=Queue)
    tally: Tally = field(default_factory=Tally)


class Batcher:
    """All models of a pool. `max_lanes`: how many lanes the tables have room for."""

    def __init__(
        self,
        models: list[ModelQueue],
        max_lanes: int,
        *,
        lane_closed: Callable[[int], None] = lambda number: None,
    ) -> None:
        self.models = models
        self.lanes: dict[int, AdmittedLane] = {}
        self.crew: dict[int, CrewMember] = {}
        self.draining = False
        self._serials: I64 = np.zeros(max_lanes, dtype=np.int64)
        self._lane_closed = lane_closed
        self._all_mapped: dict[int, bool] = {}

    # -- who is there -------------------------------------------------------------------

    def add_lane(self, lane: AdmittedLane) -> None:
        """A lane is mapped here: let its client claim."""
        self.lanes[lane.number] = lane
        self._serials[lane.number] = lane.serial
        self._all_mapped.clear()
        lane.open(Gate.DRAINING if self.draining else Gate.OPEN)
        lane.ring_client()

    def close_lane(self, number: int) -> None:
        """A lane's client is gone: forget its queued rows; unmap once none is RUNNING."""
        lane = self.lanes.get(number)
        if lane is None:
            self._lane_closed(number)
            return
        lane.closing = True
        queue = self.models[lane.model].queue
        theirs = np.flatnonzero(queue.view()[Field.LANE] == number)
        if len(theirs):
            queue.take(theirs)
        self._unmap_if_idle(lane)

    def _unmap_if_idle(self, lane: AdmittedLane) -> None:
        if lane.closing and lane.running == 0:
            del self.lanes[lane.number]
            self._serials[lane.number] = 0
            self._all_mapped.clear()
            self._lane_closed(lane.number)

    def add_worker(self, member: CrewMember) -> None:
        self.crew[member.number] = member

    def lose_worker(self, number: int) -> None:
        """A worker was reaped: complete what it finished, queue the rest to run again.

        Never before it is dead and gone: a late write of its could still land in a slot.
        """
        member = self.crew.pop(number, None)
        if member is None:
            return
        self._all_mapped.pop(number, None)
        for batch in sorted(member.batches.values(), key=lambda b: b.token):
            if member.outputs_stand(batch):
                self._complete(member, batch)
            else:
                self._run_again(member, batch)
        member.advance()

    def drain(self) -> None:
        """Take no new rows; let every accepted one finish, without waiting for company."""
        self.draining = True
        for lane in self.lanes.values():
            if lane.lane.gate.get() == Gate.OPEN:
                lane.open(Gate.DRAINING)
        for model in self.models:
            limits = model.limits
            model.limits = Limits(limits.max_batch, limits.max_wait_ns, limits.depth, True)

    def is_empty(self) -> bool:
        """Whether no accepted row is under way."""
        return not any(len(m.queue) for m in self.models) and not any(
            w.batches for w in self.crew.values()
        )

    # -- the step -----------------------------------------------------------------------

    def step(self, now_ns: int) -> int:
        """Do all there is to do now; return when to be woken at the latest."""
        for member in self.crew.values():
            self._collect(member)
        for lane in list(self.lanes.values()):
            if not (lane.closing or lane.broken):
                self._admit(lane)
        wake_at_ns = NEVER_NS
        for index in range(len(self.models)):
            wake_at_ns = min(wake_at_ns, self._decide(index, now_ns))
        return wake_at_ns

    def _admit(self, lane: AdmittedLane) -> None:
        model = self.models[lane.model]
        cancels_came = lane.cancels_came()
        rows = lane.admit()
        if rows.shape[1]:
            model.queue.append(rows)
            model.tally.admitted += rows.shape[1]
        if cancels_came:
            queued = model.queue.view()
            mine = np.flatnonzero(queued[Field.LANE] == lane.number)
            slots = queued[Field.SLOT, mine]
            gone = mine[lane.cancelled(slots, queued[Field.SEQUENCE, mine])]
            if len(gone):
                model.tally.cancelled += len(gone)
                self._end(model, model.queue.take(gone), Status.CANCELLED)

    def _decide(self, index: int, now_ns: int) -> int:
        model = self.models[index]
        if not len(model.queue):
            return NEVER_NS
        workers = [self._as_worker(m) for m in self.crew.values() if m.model == index]
        ready = [w for w in workers if w is not None]
        decision = decide(now_ns, model.queue.view(), ready, model.limits)
        taken = self._take(model, decision.dispatch and [d.rows for d in decision.dispatch])
        for dispatch, rows in zip(decision.dispatch, taken):
            self._dispatch(model, self.crew[dispatch.worker], rows, dispatch.reason, now_ns)
        if len(decision.expire):
            late = self._late(model, now_ns)
            model.tally.expired += late.shape[1]
            self._end(model, late, Status.DEADLINE)
        return decision.wake_at_ns

    def _take(self, model: ModelQueue, groups: object) -> list[I64]:
        """Take the groups of one decision, whose positions all refer to the same queue."""
        if not groups:
            return []
        assert isinstance(groups, list)
        view = model.queue.view()
        taken = [view[:, rows].copy() for rows in groups]
        if all(isinstance(rows, slice) for rows in groups):
            model.queue.take(slice(0, groups[-1].stop))
        else:
            model.queue.take(np.concatenate(groups))
        return taken

    def _late(self, model: ModelQueue, now_ns: int) -> I64:
        return model.queue.take(np.flatnonzero(model.queue.view()[Field.DEADLINE_NS] <= now_ns))

    def _as_worker(self, member: CrewMember) -> Worker | None:
        if not member.is_ready():
            return None
        if not self._all_mapped.get(member.number):
            self._all_mapped[member.number] = member.look_at_lanes(self._serials)
        lanes = None if self._all_mapped[member.number] else member.acknowledged
        return Worker(member.number, member.in_flight, lanes)

    # -- dispatch and completion --------------------------------------------------------

    def _dispatch(
        self, model: ModelQueue, member: CrewMember, rows: I64, reason: Reason, now_ns: int
    ) -> None:
        """Record first, then RUNNING, then the ring entry: a takeover finds one of the three."""
        order = np.lexsort((rows[Field.SLOT], rows[Field.LANE]))
        batch = member.prepare(rows[:, order], reason, now_ns)
        for lane, part in self.by_lane(batch.rows):
            lane.lane.state[part[Field.SLOT]] = State.RUNNING
            lane.running += part.shape[1]
        member.publish(batch)
        tally = model.tally
        tally.batches += 1
        tally.rows += rows.shape[1]
        tally.reasons[reason.name] = tally.reasons.get(reason.name, 0) + 1

    def by_lane(self, rows: I64) -> Iterator[tuple[AdmittedLane, I64]]:
        """Rows sorted by lane, split into (lane, its rows)."""
        lanes = rows[Field.LANE]
        if len(lanes) == 0:
            return
        if lanes[0] == lanes[-1]:
            yield self.lanes[int(lanes[0])], rows
            return
        cuts = [0, *(np.flatnonzero(lanes[1:] != lanes[:-1]) + 1).tolist(), len(lanes)]
        for start, stop in zip(cuts, cuts[1:]):
            yield self.lanes[int(lanes[start])], rows[:, start:stop]

    def _collect(self, member: CrewMember) -> None:
        for batch in member.finished():
            self._complete(member, batch)
        member.advance()

    def _complete(self, member: CrewMember, batch: Batch) -> None:
        model = self.models[member.model]
        if member.records.outcome[batch.record] == Outcome.FAILED:
            model.tally.failed += batch.rows.shape[1]
        model.tally.extents += int(member.records.extents[batch.record])
        model.tally.completed += batch.rows.shape[1]
        for lane, part in self.by_lane(batch.rows):
            lane.complete(part[Field.SLOT], part[Field.SEQUENCE])
            lane.running -= part.shape[1]
            self._unmap_if_idle(lane)
        member.free(batch)

    def _end(self, model: ModelQueue, rows: I64, status: Status, text: str = "") -> None:
        """Rows that will not run (again): say why and hand them back."""
        if rows.shape[1] == 0:
            return
        order = np.argsort(rows[Field.LANE], kind="stable")
        for lane, part in self.by_lane(rows[:, order]):
            lane.lane.write_status(part[Field.SLOT], status, text)
            lane.complete(part[Field.SLOT], part[Field.SEQUENCE])
        model.tally.completed += rows.shape[1]

    def _run_again(self, member: CrewMember, batch: Batch) -> None:
        """The worker died with this batch: count it, then queue again or give up."""
        model = self.models[member.model]
        rows = batch.rows.copy()
        rows[Field.ATTEMPT] += 1
        again: list[I64] = []
        for lane, part in self.by_lane(rows):
            lane.running -= part.shape[1]
            spent = part[Field.ATTEMPT] >= (model.attempts if model.idempotent else 1)
            if lane.closing:
                self._unmap_if_idle(lane)
                continue
            queued = part[:, ~spent]
            # In this order, so that a takeover may count one death too few but never too many.
            lane.lane.state[queued[Field.SLOT]] = State.QUEUED
            lane.lane.attempt[queued[Field.SLOT]] = queued[Field.ATTEMPT]
            lane.recheck_cancels()
            again.append(queued)
            if spent.any():
                model.tally.lost += int(spent.sum())
                self._end(model, part[:, spent], Status.WORKER_LOST)
        if again:
            model.queue.prepend(np.concatenate(again, axis=1))
        member.free(batch)
