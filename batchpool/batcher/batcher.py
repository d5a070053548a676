"""The batcher: admits rows from every lane, decides, dispatches to workers, completes.

`Batcher.step(now_ns) -> wake_at_ns` is the whole of it. A step never waits, reads no clock
and holds no lock; all it shares with others stands in the lanes and the workers' records, so
that a new batcher can take over from what it finds there.

A step: take what workers finished, take what clients submitted, drop what was cancelled or
is late, then let core/scheduler/decide.py decide for each model. How rows end is in batcher/completion.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from batchpool.batcher.completion import Completion, ModelQueue
from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.metrics import End
from batchpool.batcher.worker import DispatchedBatch, WorkerProxy
from batchpool.core.errors import Status
from batchpool.core.layout.states import DispatchReason, LaneGate, SlotState
from batchpool.core.scheduler.decide import NEVER_NS, Decision, Limits, decide
from batchpool.core.scheduler.estimators import ServiceTime
from batchpool.core.scheduler.queue import I64, QUEUE_COLUMNS, Queue, QueueColumn
from batchpool.shm.stats.flight_recorder import FlightRecorder

_RUNNING = int(SlotState.RUNNING)
_NO_ROWS: I64 = np.empty((QUEUE_COLUMNS, 0), dtype=np.int64)

__all__ = ["Batcher", "ModelQueue"]


class Batcher:
    """All models of a pool. `max_lanes`: how many lanes the tables have room for.

    models: of the entries from 0 on; others come and go.
    """

    def __init__(
        self,
        models: Sequence[ModelQueue],
        max_lanes: int,
        *,
        lane_closed: Callable[[int], None] = lambda number: None,
        flight_recorder: FlightRecorder | None = None,
    ) -> None:
        self.models: dict[int, ModelQueue] = {}
        self.lanes: dict[int, AdmittedLane] = {}
        self.crew: dict[int, WorkerProxy] = {}
        self.draining = False
        self.notes: list[str] = []  # for the operator's log; whoever runs the steps empties it
        self._serials: I64 = np.zeros(max_lanes, dtype=np.int64)
        self._lane_closed = lane_closed
        self._all_mapped: dict[int, bool] = {}
        self._leaving: dict[int, int] = {}  # workers off duty that may have rows: since which turn
        self.flight_recorder = FlightRecorder() if flight_recorder is None else flight_recorder
        self._endings = Completion(
            self.models, self.lanes, self._unmap_if_idle, self.flight_recorder
        )
        self.by_lane = self._endings.by_lane
        for entry, model in enumerate(models):
            self.add_model(entry, model)

    # -- who is there -------------------------------------------------------------------

    def add_model(self, entry: int, model: ModelQueue) -> None:
        """Another entry; its lanes and workers come after it."""
        assert entry not in self.models, f"entry {entry} is here already"
        model.tally.limit(model.limits.max_batch)
        model.limits = replace(model.limits, draining=self.draining)
        self.models[entry] = model

    def retire_model(self, entry: int) -> None:
        """No lane or worker of it is left."""
        used = {lane.model for lane in self.lanes.values()}
        used |= {member.model for member in self.crew.values()}
        assert entry not in used, f"entry {entry} is in use"
        del self.models[entry]

    def add_lane(self, lane: AdmittedLane, *, moved: bool = False) -> None:
        """A lane is mapped here: let its client claim, unless it has moved."""
        assert lane.number not in self.lanes, f"lane {lane.number} is here already"
        self.lanes[lane.number] = lane
        self._serials[lane.number] = lane.serial
        self._all_mapped.clear()
        gate = lane.lane.gate.get()
        if gate != LaneGate.GONE and (moved or gate == LaneGate.MOVED):
            lane.shut(LaneGate.MOVED)
        elif gate != LaneGate.GONE:
            lane.open(LaneGate.DRAINING if self.draining else LaneGate.OPEN)
            lane.ring_client()

    def move_lanes(self, numbers: Iterable[int]) -> None:
        """Their models have other lanes now: no more claims here."""
        for number in numbers:
            if number in self.lanes:
                self.lanes[number].shut(LaneGate.MOVED)

    def evict_lane(self, number: int) -> None:
        """A moved lane's client has had its time: its rows end here, but for those that run.

        What it publishes from now on nobody takes. It finds that by itself, at GONE.
        """
        lane = self.lanes.get(number)
        if lane is None:
            self._lane_closed(number)
            return
        lane.closing = lane.evicted = True
        model = self.models[lane.model]
        rows = [self._queued_of(lane), model.suspects.take_lane(number)]
        self._endings.end(model, np.concatenate(rows, axis=1), Status.NOT_READY)
        self._unmap_if_idle(lane)

    def _queued_of(self, lane: AdmittedLane) -> I64:
        """The lane's rows, taken out of the queue."""
        queue = self.models[lane.model].queue
        theirs = np.flatnonzero(queue.view()[QueueColumn.LANE] == lane.number)
        return queue.drop(theirs) if len(theirs) else _NO_ROWS

    def close_lane(self, number: int) -> None:
        """A lane's client is gone: forget its queued rows; unmap once none is RUNNING."""
        lane = self.lanes.get(number)
        if lane is None:
            self._lane_closed(number)
            return
        lane.closing = True
        model = self.models[lane.model]
        gone = self._queued_of(lane).shape[1] + model.suspects.take_lane(number).shape[1]
        model.tally.end(End.CLIENT_GONE, gone)
        self._unmap_if_idle(lane)

    def _unmap_if_idle(self, lane: AdmittedLane) -> None:
        if lane.closing and lane.running == 0:
            if lane.evicted:
                lane.shut(LaneGate.GONE)
            del self.lanes[lane.number]
            self._serials[lane.number] = 0
            self._all_mapped.clear()
            self._lane_closed(lane.number)

    def add_worker(self, member: WorkerProxy, turn: int = 0) -> None:
        """turn: in which it went off duty, if it did."""
        assert member.number not in self.crew, f"worker {member.number} is here already"
        member.time = ServiceTime(self.models[member.model].limits.sizes)
        self.crew[member.number] = member
        if not member.on_duty:
            self._leaving[member.number] = turn

    def relieve(self, on: Iterable[int], off: Iterable[int], turn: int) -> None:
        """From the next step on these workers get new batches, and those none; what the latter
        have in flight they finish. turn: names this change. Who is not here counts for nothing."""
        for number in on:
            self._leaving.pop(number, None)
            if number in self.crew:
                self.crew[number].on_duty = True
        for number in off:
            if number in self.crew:
                self.crew[number].on_duty = False
                self._leaving[number] = turn

    def take_idle(self) -> list[tuple[int, int]]:
        """The workers that are off duty and have nothing in flight any more, each once, with the
        turn in which they went."""
        idle = [(n, turn) for n, turn in self._leaving.items() if not self.crew[n].in_flight]
        for number, _ in idle:
            del self._leaving[number]
        return idle

    def lose_worker(self, number: int, cause: str = "") -> None:
        """A worker was reaped: complete what it finished, run the rest again.

        cause: how it ended, for the callers whose rows are lost with it.

        Never before it is dead and gone: a late write of its could still land in a slot.
        """
        member = self.crew.pop(number, None)
        self._leaving.pop(number, None)
        if member is None:
            return
        self._all_mapped.pop(number, None)
        for batch in sorted(member.batches.values(), key=lambda b: b.token):
            if member.outputs_stand(batch):
                self.complete(member, batch)
            else:
                self._endings.lost(member, batch, cause)
        member.advance()

    def complete(self, member: WorkerProxy, batch: DispatchedBatch) -> None:
        """A worker has finished a batch: hand its rows back, or run them again apart."""
        self._endings.finished(member, batch)

    def drain(self) -> None:
        """Take no new rows; let every accepted one finish, without waiting for company."""
        self.draining = True
        for lane in self.lanes.values():
            if lane.lane.gate.get() == LaneGate.OPEN:
                lane.open(LaneGate.DRAINING)
        for model in self.models.values():
            model.limits = replace(model.limits, draining=True)

    def open_again(self) -> None:
        """The end of a drain: as before it."""
        self.draining = False
        for lane in self.lanes.values():
            if lane.lane.gate.get() == LaneGate.DRAINING:
                lane.open(LaneGate.OPEN)
                lane.ring_client()
        for model in self.models.values():
            model.limits = replace(model.limits, draining=False)

    def set_limits(self, index: int, limits: Limits) -> None:
        """Other limits for a model. A cap that its workers' memory has taught is forgotten: there
        may be others now."""
        model = self.models[index]
        if limits.sizes != model.limits.sizes:
            for member in self.crew.values():
                if member.model == index:
                    member.forget_times(limits.sizes)
        model.limits = replace(limits, draining=self.draining)

    def is_empty(self) -> bool:
        """Whether no accepted row is under way."""
        return not any(len(m.queue) or len(m.suspects) for m in self.models.values()) and not any(
            w.batches for w in self.crew.values()
        )

    # -- the step -----------------------------------------------------------------------

    def step(self, now_ns: int) -> int:
        """Do all there is to do now; return when to be woken at the latest."""
        self._endings.now_ns = now_ns
        for member in self.crew.values():
            for batch in member.finished():
                self.complete(member, batch)
                member.measure(batch, now_ns)
                self.models[member.model].traffic.finished(now_ns)
            member.advance()
        self._admit(now_ns)
        wake_at_ns = NEVER_NS
        for index, model in self.models.items():
            if len(model.queue) or model.suspects:
                wake_at_ns = min(wake_at_ns, self._decide(index, model, now_ns))
                apart = len(model.suspects) if model.suspects else 0
                model.tally.show(len(model.queue) + apart)
            elif model.tally.queued:  # they were cancelled, or their client died
                model.tally.show(0)
        return wake_at_ns

    def _admit(self, now_ns: int) -> None:
        """Take what came in from every lane; drop what was cancelled."""
        came: dict[int, list[I64]] = {}
        with_cancels = []
        for lane in self.lanes.values():
            if lane.is_quiet() or lane.closing or lane.broken:
                continue
            if lane.cancels_came():
                with_cancels.append(lane)
            rows = lane.admit()
            if rows.size:
                came.setdefault(lane.model, []).append(rows)
        for index, parts in came.items():
            model = self.models[index]
            rows = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
            model.queue.append(rows)
            model.traffic.arrived(rows.shape[1], now_ns)
            model.tally.admit(rows.shape[1])
        for lane in with_cancels:
            self._drop_cancelled(self.models[lane.model], lane)

    def _drop_cancelled(self, model: ModelQueue, lane: AdmittedLane) -> None:
        queued = model.queue.view()
        mine = np.flatnonzero(queued[QueueColumn.LANE] == lane.number)
        gone = mine[
            lane.cancelled(queued[QueueColumn.SLOT, mine], queued[QueueColumn.SEQUENCE, mine])
        ]
        dropped = [model.queue.drop(gone)] if len(gone) else []
        apart = model.suspects.of_lane(lane.number)
        if apart.shape[1]:
            mask = lane.cancelled(apart[QueueColumn.SLOT], apart[QueueColumn.SEQUENCE])
            dropped.append(model.suspects.take_tickets(apart[QueueColumn.SLOT, mask], lane.number))
        for rows in dropped:
            self._endings.end(model, rows, Status.CANCELLED)

    def _decide(self, index: int, model: ModelQueue, now_ns: int) -> int:
        crew = [m for m in self.crew.values() if m.model == index and m.on_duty and m.is_ready()]
        wake_at_ns = NEVER_NS
        if model.suspects:
            self._expire(model, model.suspects.take_late(now_ns))
            self._dispatch_apart(model, crew, now_ns)
            wake_at_ns = model.suspects.next_deadline_ns()
        if not len(model.queue):
            return wake_at_ns
        model.queue.age(now_ns)
        timed = len(crew) > 1 or model.limits.target_ns > 0
        workers = [
            m.as_worker(self._lanes_of(m), m.free_at_ns(now_ns), m.overdue_since_ns(now_ns))
            if timed
            else m.as_worker(self._lanes_of(m), 0)
            for m in crew
        ]
        decision = decide(now_ns, model.queue.view(), workers, model.limits, model.traffic)
        groups, late, refused = _take(model.queue, decision)
        for dispatch, rows in zip(decision.dispatch, groups, strict=True):
            self._dispatch(model, self.crew[dispatch.worker], rows, dispatch.reason, now_ns)
        if late.size:
            self._expire(model, late)
        if refused.size:
            self._endings.end(model, refused, Status.OVERLOADED, model.refusal_text())
            if note := model.target_note(workers):
                self.notes.append(note)
        return min(wake_at_ns, decision.wake_at_ns)

    def _expire(self, model: ModelQueue, rows: I64) -> None:
        self._endings.end(model, rows, Status.DEADLINE)

    def _dispatch_apart(self, model: ModelQueue, crew: list[WorkerProxy], now_ns: int) -> None:
        """The next group of suspects to an idle worker, one group at a time in the whole model."""
        if not model.suspects or any(
            m.runs_apart() for m in self.crew.values() if self.models[m.model] is model
        ):
            return
        wanted = model.suspects.peek()[QueueColumn.LANE]
        for member in crew:
            lanes = self._lanes_of(member)
            if member.in_flight == 0 and (lanes is None or bool(lanes[wanted].all())):
                self._dispatch(
                    model, member, model.suspects.take_next(), DispatchReason.APART, now_ns
                )
                return

    def _lanes_of(self, member: WorkerProxy) -> npt.NDArray[np.bool_] | None:
        """Which lanes the worker may run, by number; None: all."""
        all_mapped = self._all_mapped.get(member.number)
        if not all_mapped:
            all_mapped = self._all_mapped[member.number] = member.look_at_lanes(self._serials)
        return None if all_mapped else member.acknowledged

    def _dispatch(
        self, model: ModelQueue, member: WorkerProxy, rows: I64, reason: DispatchReason, now_ns: int
    ) -> DispatchedBatch:
        """Record first, then RUNNING, then the ring entry: a takeover finds one of the three."""
        if rows.shape[1] > 1:  # neighbours side by side: an extent is one copy
            rows = rows.take(np.lexsort((rows[QueueColumn.SLOT], rows[QueueColumn.LANE])), axis=1)
        batch = member.prepare(rows, reason, now_ns)
        for lane, part in self.by_lane(batch.rows):
            lane.lane.state[part[QueueColumn.SLOT]] = _RUNNING
            lane.running += part.shape[1]
        member.publish(batch)
        batch.queued_ns = model.tally.dispatch(rows[QueueColumn.SUBMIT_NS], reason, now_ns)
        return batch


def _take(queue: Queue, decision: Decision) -> tuple[list[I64], I64, I64]:
    """Take what was decided out of the queue: the groups to dispatch, the rows that are late,
    those that are refused. All positions refer to the queue as it was."""
    expire, refuse = decision.expire, decision.refuse
    fronts = [dispatch.rows for dispatch in decision.dispatch if isinstance(dispatch.rows, slice)]
    if fronts or not (decision.dispatch or len(expire) or len(refuse)):
        # The common case: batches are the front of the queue, one after the other, or none.
        return [queue.take_front(rows.stop - rows.start) for rows in fronts], _NO_ROWS, _NO_ROWS
    view = queue.view()
    groups = [view[:, dispatch.rows] for dispatch in decision.dispatch]
    late, refused = view[:, expire], view[:, refuse]
    gone = np.concatenate([expire, refuse])
    if groups:
        sent = np.sort(np.concatenate([dispatch.rows for dispatch in decision.dispatch]))
        queue.take(sent)
        gone -= np.searchsorted(sent, gone)
    if len(gone):
        queue.drop(gone)
    return groups, late, refused
