"""The batcher: admits rows from every lane, decides, dispatches batches to workers, completes rows.

`Batcher.step(now_ns) -> wake_at_ns` does all of it. A step never waits, reads no clock and holds no
lock. All state that others depend on is in the lanes and the workers' records, so that a new
batcher can take over from them (batcher/recovery.py).

A model has a queue and workers for each of its stages, which are all alike to the decision: rows
whose batch of one stage was good are queued for the next one, and are done after the last.

The rows of a generator join workers one by one (batcher/sequence_dispatch.py) and end one by one
(batcher/sequence_completion.py).

A step: complete the batches that workers finished, admit the rows that clients submitted, drop
cancelled and late rows, then let core/scheduler/decide.py decide for each model. The end of rows is
in batcher/completion.py, the lanes in batcher/mapped_lanes.py, the workers in
batcher/worker_table.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from batchpool.batcher.completion import Completion
from batchpool.batcher.decided_rows import take
from batchpool.batcher.dispatched_batch import DispatchedBatch
from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.mapped_lanes import MappedLanes
from batchpool.batcher.metrics import End
from batchpool.batcher.model_queue import ModelQueue
from batchpool.batcher.orphaned_rows import orphaned_rows
from batchpool.batcher.probation import Probation
from batchpool.batcher.row_order import in_order_of_slots
from batchpool.batcher.sequence_completion import SequenceCompletion
from batchpool.batcher.sequence_dispatch import SequenceDispatch
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.batcher.worker_table import WorkerTable
from batchpool.core.errors import Status
from batchpool.core.layout.states import DispatchReason
from batchpool.core.scheduler.decide import NEVER_NS, Limits, decide
from batchpool.core.scheduler.depth import runs_long
from batchpool.core.scheduler.estimators import ServiceTime
from batchpool.core.scheduler.queue import I64, QueueColumn
from batchpool.shm.stats.flight_recorder import FlightRecorder


class Batcher:
    """The batcher of all models of a pool, without the process around it.

    models: the models with index 0 and up, of one stage each; stages of other numbers
    (`stage_number`) are added and removed. max_lanes: the size of the lane tables. lane_closed:
    called with the number of a lane that was unmapped. warnings: texts for the log, which the
    caller of `step` takes out.
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
        self.lanes = MappedLanes(max_lanes, lane_closed)
        self.workers = WorkerTable()
        self.draining = False
        self._admits = True
        self.dispatched = 0  # the number of the last batch
        self.warnings: list[str] = []
        self.flight_recorder = FlightRecorder() if flight_recorder is None else flight_recorder
        ends = self.models, self.lanes, self.flight_recorder
        self.completion, self.sequence_ends = Completion(*ends), SequenceCompletion(*ends)
        self.probation = Probation()
        self.sequences = SequenceDispatch(
            self.lanes, self.sequence_ends, self.probation, self._next_number
        )
        for index, model in enumerate(models):
            self.add_model(index, model)

    # -- models, lanes and workers --------------------------------------------------------

    def add_model(self, index: int, model: ModelQueue) -> None:
        """Add a stage of a model, before the model's lanes and the stage's workers."""
        assert index not in self.models, f"model {index} is here already"
        model.metrics.limit(model.limits.max_batch)
        model.limits = replace(model.limits, draining=self.draining)
        self.models[index] = model

    def retire_model(self, index: int) -> None:
        """Remove a stage of a model that has no lane and no worker left."""
        used = {lane.model for lane in self.lanes.by_number.values()}
        used |= {worker.model for worker in self.workers.by_number.values()}
        assert index not in used, f"model {index} is in use"
        del self.models[index]

    def add_lane(self, lane: AdmittedLane, *, moved: bool = False) -> None:
        """Add a mapped lane. moved: its client has been given another one."""
        self.lanes.add(lane, draining=self.draining, moved=moved)

    def evict_lane(self, number: int) -> None:
        """Close a moved lane whose client did not leave in time.

        Its rows are completed with NOT_READY, but for those that are RUNNING, and rows that it
        submits from now on are not admitted. Its client finds the gate at GONE.
        """
        lane = self.lanes.start_closing(number, evict=True)
        if lane is not None:
            for model in self.models[lane.model].onward():
                self.completion.end(model, model.take_lane(lane.number), Status.NOT_READY)
            self.lanes.unmap_if_idle(lane)

    def close_lane(self, number: int) -> None:
        """Close a lane whose client is gone: drop its queued rows, and unmap it as soon as none is
        RUNNING."""
        lane = self.lanes.start_closing(number, evict=False)
        if lane is not None:
            for model in self.models[lane.model].onward():
                model.metrics.end(End.CLIENT_GONE, model.take_lane(lane.number).shape[1])
            self.lanes.unmap_if_idle(lane)

    def add_worker(self, worker: WorkerProxy, change: int = 0) -> None:
        """Add a worker. change: see `WorkerTable.add`."""
        limits = self.models[worker.model].limits
        worker.service_time = ServiceTime(limits.sizes)
        worker.measure_elements(limits.row_elements)
        self.workers.add(worker, change)

    def lose_worker(self, number: int, cause: str = "") -> None:
        """Remove a worker that was reaped: complete the batches it finished, run the others again.

        Must not be called before the process is reaped: a late store of it could reach a slot.
        cause: how it ended, for the error messages of rows that are lost with it.
        """
        worker = self.workers.remove(number)
        if worker is None:
            return
        worker.check()
        if self.models[worker.model].generates:
            self.sequence_ends.lose(worker, cause)
        for batch in list(worker.batches.values()):
            if worker.has_finished(batch, self.completion.now_ns):
                self.completion.finish_batch(worker, batch)
            else:
                self.completion.lose_batch(worker, batch, cause)
        worker.advance()
        if worker.damage:
            for rows in orphaned_rows(worker, self.models, self.lanes, self.workers):
                self.completion.lose_rows(worker, rows, cause)

    def set_draining(self, draining: bool, *, last: bool = False) -> None:
        """Start or end a drain: no new claims, and accepted rows are dispatched without waiting
        for fuller batches. last: rows of earlier claims are not admitted any more either, so that
        they stay SUBMITTED, by which their clients know that they did not run."""
        self.draining = draining
        self._admits = not last
        self.lanes.set_draining(draining)
        for model in self.models.values():
            model.limits = replace(model.limits, draining=draining)

    def set_limits(self, index: int, limits: Limits) -> None:
        """Set other limits for a model.

        A lower max_batch, learnt from a worker's memory, is forgotten: the workers may be others.
        """
        model = self.models[index]
        if limits.sizes != model.limits.sizes:
            for worker in self.workers.by_number.values():
                if worker.model == index:
                    worker.reset_service_time(limits.sizes)
        model.limits = replace(limits, draining=self.draining)

    def is_empty(self) -> bool:
        """True if no accepted row is queued or running."""
        return not any(len(m.queue) or len(m.suspects) for m in self.models.values()) and not any(
            worker.batches or worker.damage for worker in self.workers.by_number.values()
        )

    # -- the step -----------------------------------------------------------------------

    def step(self, now_ns: int) -> int:
        """Complete, admit, decide and dispatch; return the time of the next step at the latest."""
        self.completion.now_ns = self.sequence_ends.now_ns = now_ns
        for worker in self.workers.by_number.values():
            if worker.is_quiet():
                continue
            done = worker.finished(now_ns)
            if done and self.models[worker.model].generates:
                self.sequence_ends.finish(worker, done)
                done = []
            for batch in done:
                self.completion.finish_batch(worker, batch)
                worker.measure(batch, now_ns)
                self.models[worker.model].traffic.finished(now_ns)
            worker.advance()
        if self._admits:
            self._admit(now_ns)
        wake_at_ns = NEVER_NS
        for index, model in self.models.items():
            if len(model.queue) or model.suspects:
                wake_at_ns = min(wake_at_ns, self._decide(index, model, now_ns))
                apart = len(model.suspects) if model.suspects else 0
                model.metrics.show(len(model.queue) + apart)
            elif model.metrics.queued:  # the rows were cancelled, or their client died
                model.metrics.show(0)
        return wake_at_ns

    def _admit(self, now_ns: int) -> None:
        """Admit submitted rows from every lane, and drop cancelled ones."""
        admitted: dict[int, list[I64]] = {}
        with_cancels = []
        for lane in self.lanes.by_number.values():
            if lane.is_quiet() or lane.closing or lane.broken:
                continue
            if lane.has_new_cancels():
                with_cancels.append(lane)
            rows = lane.admit()
            if rows.size:
                lane.bound_times(rows, now_ns)
                admitted.setdefault(lane.model, []).append(rows)
        for index, parts in admitted.items():
            model = self.models[index]
            rows = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
            model.queue.append(rows)
            model.traffic.arrived(rows.shape[1], now_ns)
            model.metrics.admit(rows.shape[1])
        for lane in with_cancels:
            for model in self.models[lane.model].onward():
                self._drop_cancelled(model, lane, now_ns)

    def _drop_cancelled(self, model: ModelQueue, lane: AdmittedLane, now_ns: int) -> None:
        """End the queued rows of a lane that are cancelled. One that is late too ends as late:
        clients cancel what they no longer wait for."""
        queued = model.queue.view()
        found = np.flatnonzero(queued[QueueColumn.LANE] == lane.number)
        gone = found[
            lane.cancelled(queued[QueueColumn.SLOT, found], queued[QueueColumn.SEQUENCE, found])
        ]
        dropped = [model.queue.drop(gone)] if len(gone) else []
        apart = model.suspects.of_lane(lane.number)
        if apart.shape[1]:
            mask = lane.cancelled(apart[QueueColumn.SLOT], apart[QueueColumn.SEQUENCE])
            dropped.append(model.suspects.take_tickets(apart[QueueColumn.SLOT, mask], lane.number))
        for rows in dropped:
            late = rows[QueueColumn.DEADLINE_NS] <= now_ns
            self.completion.end(model, rows[:, late], Status.DEADLINE)
            self.completion.end(model, rows[:, ~late], Status.CANCELLED)

    def _decide(self, index: int, model: ModelQueue, now_ns: int) -> int:
        """Dispatch, expire and refuse rows of one model; return when to decide again."""
        if model.generates:
            return self.sequences.decide(model, self.workers.of_model(index), now_ns)
        workers, sent, in_flight = [], 0, 0
        for worker in self.workers.active_of(index):
            if worker.is_ready():
                workers.append(worker)
                sent += worker.token
                in_flight += len(worker.batches)
        wake_at_ns = NEVER_NS
        if model.suspects:
            self.completion.end(model, model.suspects.take_late(now_ns), Status.DEADLINE)
            self._dispatch_apart(index, model, workers, now_ns)
            wake_at_ns = model.suspects.next_deadline_ns()
        if not len(model.queue):
            return wake_at_ns
        beside = model.background.is_beside(model.queue, now_ns)
        facts = [
            model.queue.changes, self.lanes.version, self.workers.version, int(beside),
            len(workers), sent, in_flight,
        ]  # fmt: skip
        if until_ns := model.keeps_waiting(facts, now_ns):
            return min(wake_at_ns, until_ns)
        model.queue.age(now_ns)
        timed = len(workers) > 1 or model.limits.target_ns > 0
        timed = timed or model.limits.row_elements is not None
        timed = timed or (len(workers) == 1 and runs_long(workers[0].service_time, model.limits))
        views = [
            worker.view(
                self._runnable(worker), worker.free_at_ns(now_ns), worker.overdue_since_ns(now_ns)
            )
            if timed and worker.batches
            else worker.view(self._runnable(worker), 0)
            for worker in workers
        ]
        limits = model.limits
        if model.following is not None and (limits.max_wait_ns or limits.target_ns):
            limits = limits.before(self._later_ns(model.following))
        decision = decide(now_ns, model.queue.view(), views, limits, model.traffic, beside=beside)
        # With a target it depends on more; so it does where lanes are being mapped.
        lasts = limits is model.limits and not limits.target_ns and decision.is_wait()
        if lasts and all(view.lanes is None for view in views):
            model.keep_waiting(facts, decision.wake_at_ns)
        groups, late, refused = take(model.queue, decision)
        for dispatch, rows in zip(decision.dispatch, groups, strict=True):
            worker = self.workers.by_number[dispatch.worker]
            self._dispatch(model, worker, rows, dispatch.reason, now_ns)
        if late.size:
            self.completion.end(model, late, Status.DEADLINE)
        if refused.size:
            self.completion.end(model, refused, Status.OVERLOADED, model.refusal_text())
            if warning := model.target_warning(views):
                self.warnings.append(warning)
        return min(wake_at_ns, decision.wake_at_ns)

    def _later_ns(self, following: ModelQueue) -> int:
        """The expected time from the end of a stage to that of the last one: a full batch of each
        stage that follows, behind the rows that wait there."""
        later_ns = 0.0
        for stage in following.onward():
            most, workers = stage.limits.max_batch, self.workers.by_number.values()
            own = [each for each in workers if each.active and self.models[each.model] is stage]
            times_ns = [w.service_time.mean_ns(most) for w in own if w.service_time.known]
            if times_ns:
                batches = 1 + len(stage.queue) / (most * len(times_ns))
                later_ns += batches * max(times_ns)
        return int(later_ns)

    def _runnable(self, worker: WorkerProxy) -> npt.NDArray[np.bool_] | None:
        return worker.runnable_lanes(self.lanes.serials, self.lanes.version)

    def _dispatch_apart(
        self, index: int, model: ModelQueue, workers: list[WorkerProxy], now_ns: int
    ) -> None:
        """Dispatch the next group of suspects to an idle worker, unless another group is running.

        workers: the active ones of the model; a group may also run on an inactive one.
        """
        if not model.suspects or any(
            worker.runs_apart()
            for worker in self.workers.by_number.values()
            if worker.model == index
        ):
            return
        needed = model.suspects.peek()[QueueColumn.LANE]
        for worker in workers:
            lanes = self._runnable(worker)
            if worker.in_flight == 0 and (lanes is None or bool(lanes[needed].all())):
                self._dispatch(
                    model, worker, model.suspects.take_next(), DispatchReason.APART, now_ns
                )
                return

    def _next_number(self) -> int:
        self.dispatched += 1
        return self.dispatched

    def _dispatch(
        self, model: ModelQueue, worker: WorkerProxy, rows: I64, reason: DispatchReason, now_ns: int
    ) -> DispatchedBatch:
        """Send rows to a worker as one batch.

        The record is written first, then the rows are RUNNING, then the ring entry is pushed: a
        takeover can tell from these how far the dispatch went.
        """
        # Neighbouring slots side by side: an extent is one copy.
        if rows.shape[1] > 1:
            rows = in_order_of_slots(rows)
        parts = self.lanes.by_lane(rows)
        cancels = sum([lane.cancels_heard for lane, _ in parts])
        batch = worker.prepare(rows, reason, now_ns, self._next_number(), cancels)
        batch.parts = parts
        for lane, part in parts:
            lane.start_running(part[QueueColumn.SLOT])
        worker.publish(batch)
        batch.queued_ns = model.metrics.dispatch(rows[model.waits_since], reason, now_ns)
        return batch
