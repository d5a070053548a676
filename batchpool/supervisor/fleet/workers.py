"""The worker processes: their start, their end, and which of them get batches.

A worker that ends is reaped, then its rows run again elsewhere. Another is started at once after
useful work, with exponential back-off when it died before finishing anything. Before the pool was
ready once, a worker that cannot load ends the start instead. Meanwhile the model takes requests for
as long as supervisor/fleet/outages.py says.

While a reload lasts there are workers beside those of the plan: replacements that load, and
standbys of the old plan. The reload acts on their ends, which the observer reports to it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from typing import assert_never

from batchpool.control.edges import FromWorker
from batchpool.control.process_messages import (
    AddWorker,
    SetDuty,
    StartWorker,
    WorkerBroken,
    WorkerFailed,
    WorkerLost,
    WorkerReady,
)
from batchpool.core.errors import StartError
from batchpool.core.layout.segments import MODELS_MOST, worker_layout_of
from batchpool.core.tensors.stages import Stage
from batchpool.shm.doorbell import Doorbell
from batchpool.shm.resource_errors import named
from batchpool.shm.segment import create, map_checked
from batchpool.shm.worker_segment import WorkerSegment
from batchpool.supervisor.children.child import Child, log_flags, start_child
from batchpool.supervisor.children.roles import WORKER
from batchpool.supervisor.children.worker_slot import WorkerSlot, serving_of
from batchpool.supervisor.fleet.lost_workers import LostWorkers, TellBatcher
from batchpool.supervisor.fleet.outages import Outages
from batchpool.supervisor.fleet.worker_lanes import drop_lane, end_sequences, tell_lane
from batchpool.supervisor.fleet.worker_observer import WorkerObserver
from batchpool.supervisor.plan.trial import slow_batch_warning
from batchpool.supervisor.resources.lane_table import LaneEntry
from batchpool.supervisor.resources.resources import PoolResources

_LOG = logging.getLogger("batchpool.supervisor")
_NEVER_NS = 1 << 62


# methods: one for each event in a worker's life; all of them change the same tables of workers.
class WorkerFleet:
    """All workers of a pool.

    worker_slots: one for each worker of the plan. off_plan: replacements that load in a reload,
    and standbys of the old plan. stuck: killed workers that do not end; a reload does not wait for
    them, they get no rows, and their rows run again when they end at last.

    watch: adds a child to the event loop. tell_batcher: sends a message to the batcher, if there is
    one.
    """

    def __init__(
        self,
        resources: PoolResources,
        watch: Callable[[Child], None],
        clock_ns: Callable[[], int],
        tell_batcher: TellBatcher,
    ) -> None:
        self._resources = resources
        self._watch = watch
        self._clock_ns = clock_ns
        self._tell_batcher = tell_batcher
        self._numbers = 0
        self._duties = 0
        self._lost = LostWorkers()
        self._outages = Outages()
        plan = resources.plan
        self.worker_slots = [
            WorkerSlot.of(plan, model.entry, worker)
            for model in plan.models
            for worker in model.all_workers
        ]
        self.off_plan: list[WorkerSlot] = []
        self.stuck: list[WorkerSlot] = []
        self.observer: WorkerObserver | None = None

    def __iter__(self) -> Iterator[WorkerSlot]:
        return iter([*self.worker_slots, *self.off_plan, *self.stuck])

    def of_child(self, child: Child) -> WorkerSlot:
        return next(worker_slot for worker_slot in self if worker_slot.child is child)

    # -- starting -----------------------------------------------------------------------

    def start(self, worker_slot: WorkerSlot) -> None:
        """Start a worker in an empty slot. Raises StartError when there is no memory, descriptor or
        process for it; the slot stays empty then."""
        resources, model = self._resources, worker_slot.model
        layout = worker_layout_of(model.spec, worker_slot.max_batch, resources.max_lanes)
        worker_slot.fd = create(layout, sealed=False, whose=worker_slot.process_slot.name)
        self._numbers += 1
        worker_slot.renew(self._numbers, resources.metrics.row_for(worker_slot, self))
        try:
            with named(f"cannot start {worker_slot.process_slot.name}"):
                worker_slot.bell = Doorbell()
                worker_slot.worker_segment = WorkerSegment(
                    map_checked(worker_slot.fd, layout), layout
                )
            child = start_child(
                WORKER,
                worker_slot.process_slot,
                started_ns=self._clock_ns(),
                flags=log_flags(worker_slot.server),
                settings=worker_slot.plan.settings(os.environ),
            )
        except StartError:
            os.close(worker_slot.fd)
            if worker_slot.bell is not None:
                worker_slot.bell.close()
            worker_slot.bell = worker_slot.worker_segment = None
            raise
        worker_slot.child = child
        start = StartWorker(
            place=worker_slot.plan.index,
            import_name=model.config.import_name,
            options=model.config.options,
            spec=model.declared.to_wire(),
            device=worker_slot.plan.device,
            max_batch=worker_slot.max_batch,
            batch_sizes=model.batch_sizes_of(worker_slot.plan),
            max_lanes=resources.max_lanes,
            frontends=resources.plan.frontends,
            row=worker_slot.row,
            stage=worker_slot.plan.stage,
            max_elements=model.config.max_batch_elements,
            fused_rows=model.fused_rows,
            tracebacks=resources.tracebacks_fd >= 0 and worker_slot.row >= 0,
        )
        own = [worker_slot.fd, worker_slot.bell.fd]
        pools = [resources.batcher_bell.fd, resources.counters_fd, resources.tracebacks_fd]
        child.send(start, [*own, *pools][: start.descriptor_count()])
        for entry in resources.lanes:
            if entry.model == worker_slot.entry:
                tell_lane(worker_slot, entry)
        self._introduce(worker_slot, self._tell_batcher)
        self._watch(child)

    def _introduce(self, worker_slot: WorkerSlot, tell: TellBatcher) -> None:
        assert worker_slot.bell is not None
        assert worker_slot.child is not None
        message = AddWorker(
            worker=worker_slot.number,
            place=worker_slot.plan.index,
            pid=worker_slot.child.pid,
            model=worker_slot.entry,
            max_batch=worker_slot.max_batch,
            row=worker_slot.row,
            on_duty=worker_slot.on_duty,
            duty=worker_slot.duty,
            stage=worker_slot.plan.stage,
        )
        tell(message, [worker_slot.fd, worker_slot.bell.fd])

    def introduce_all(self, tell: TellBatcher) -> None:
        """Tell a new batcher every worker, also dead ones whose rows were not taken back yet."""
        for worker_slot in self:
            if worker_slot.bell is not None:
                self._introduce(worker_slot, tell)
        self._lost.introduce(tell)

    def report_lost(self, tell: TellBatcher) -> None:
        """Tell a new batcher that has taken over which workers are dead."""
        self._lost.report(tell)

    def has_any(self, entry: int) -> bool:
        """True if there is a worker of this model, or a dead one whose rows were not taken back."""
        return entry in {worker_slot.entry for worker_slot in self} | self._lost.entries()

    # -- lanes --------------------------------------------------------------------------

    def has_stuck(self, entry: int) -> bool:
        """True if a killed worker of this model does not end."""
        return any(worker_slot.entry == entry for worker_slot in self.stuck)

    def give_up(self, worker_slot: WorkerSlot) -> None:
        """Count a worker as stuck: nothing waits for its end any more."""
        for worker_slots in (self.worker_slots, self.off_plan):
            if worker_slot in worker_slots:
                worker_slots.remove(worker_slot)
        self.stuck.append(worker_slot)
        worker_slot.swap_role = "stuck process"
        if worker_slot.child is not None:
            worker_slot.child.terminating = True
        if worker_slot.on_duty:
            self.relieve(None, worker_slot)

    def announce_lane(self, entry: LaneEntry) -> None:
        for worker_slot in (*self.worker_slots, *self.off_plan):
            if worker_slot.entry == entry.model and worker_slot.child is not None:
                tell_lane(worker_slot, entry)

    def end_sequences(self, entry: LaneEntry) -> None:
        """The client of a lane is gone or has left it: nothing is generated for it any more."""
        for worker_slot in (*self.worker_slots, *self.off_plan):
            if worker_slot.entry == entry.model:
                end_sequences(worker_slot, entry)

    def drop_lane(self, entry: LaneEntry) -> None:
        for worker_slot in (*self.worker_slots, *self.off_plan):
            if worker_slot.entry == entry.model and worker_slot.child is not None:
                drop_lane(worker_slot, entry)

    # -- new batches --------------------------------------------------------------------

    def relieve(self, on: WorkerSlot | None, off: WorkerSlot | None) -> None:
        """Give new batches to `on` and no more of them to `off`, in one message to the batcher."""
        self._duties += 1
        numbers: list[tuple[int, ...]] = []
        for worker_slot in (on, off):
            if worker_slot is not None:
                worker_slot.on_duty, worker_slot.duty = worker_slot is on, self._duties
            running = worker_slot is not None and worker_slot.bell is not None
            numbers.append((worker_slot.number,) if worker_slot is not None and running else ())
        self._tell_batcher(SetDuty(self._duties, *numbers), [])
        self.count_serving()

    def count_serving(self) -> None:
        """Tell everybody how many warm workers serve each model, and whether it takes requests."""
        state_page, outages, now_ns = self._resources.state_page, self._outages, self._clock_ns()
        for entry in range(MODELS_MOST):
            worker_slots = [s for s in self.worker_slots if s.entry == entry]
            serving = serving_of(worker_slots)
            state_page.serving[entry] = sum(s.plan.stage is Stage.INFER for s in serving)
            if not worker_slots:
                outages.forget(entry)
                state_page.accepting[entry] = 0
                continue
            useful = outages.is_open(entry) and any(s.was_useful() for s in serving)
            state_page.accepting[entry] = outages.accepts(
                entry,
                serving=bool(serving),
                useful=useful,
                timeout_ns=int(worker_slots[0].model.request_timeout_s * 1e9),
                now_ns=now_ns,
            )

    # -- messages and ends -------------------------------------------------------------

    def says(self, child: Child, message: FromWorker) -> None:
        """Act on a message of a worker."""
        match message:
            case WorkerReady():
                self._became_ready(child, message)
            case WorkerFailed():
                child.cause = message.error
                self.of_child(child).limit_end(self._clock_ns())
            case _:
                assert_never(message)

    def _became_ready(self, child: Child, message: WorkerReady) -> None:
        worker_slot = self.of_child(child)
        worker_slot.ready = True
        child.state = "serving"
        took_ns = self._clock_ns() - child.started_ns
        self._outages.started(worker_slot.entry, took_ns)
        self.count_serving()
        _LOG.info(
            "%s is warm on %s after %.1f s",
            worker_slot.name, worker_slot.where(os.environ), took_ns / 1e9,
        )  # fmt: skip
        model = worker_slot.model
        if warning := slow_batch_warning(model, message.rows, message.seconds):
            _LOG.warning("%s: %s", worker_slot.name, warning)
        if self.observer is not None:
            self.observer.warm(worker_slot)

    def idle(self, number: int, duty: int) -> None:
        """The batcher: this one, which is off duty, has nothing in flight any more."""
        for worker_slot in self:
            same = (
                worker_slot.number == number
                and worker_slot.duty == duty
                and not worker_slot.on_duty
            )
            if same and self.observer is not None:
                self.observer.idle(worker_slot)

    def broken(self, message: WorkerBroken) -> None:
        """The batcher: the segment of this worker is not sound. It is killed, and replaced."""
        for worker_slot in self:
            if worker_slot.number == message.worker:
                worker_slot.mark_broken(message.damage, useful=message.useful)

    def handled(self, number: int) -> None:
        """The batcher has taken every row of a lost worker: its segment may go."""
        self._lost.handled(number)

    def gone(self, child: Child, *, was_ready: bool, stopping: bool) -> None:
        """A worker has ended and was reaped. StartError before the pool was ready once."""
        worker_slot = self.of_child(child)
        useful = worker_slot.was_useful()
        worker_slot.child = None
        worker_slot.ready = False
        if useful:
            self._outages.ended(worker_slot.entry, self._clock_ns())
        self.count_serving()
        why = child.reason()
        self._lost.add(worker_slot, child)
        self._tell_batcher(WorkerLost(worker_slot.number, why), [])
        if not was_ready and not stopping:
            worker_slot.process_slot.last_error = why
            raise StartError(
                f"model {worker_slot.model.spec.name!r} cannot be served:"
                f" {worker_slot.process_slot.name} on"
                f" {worker_slot.plan.device} {child.failed_start()}"
            )
        if worker_slot in self.stuck:
            self.stuck.remove(worker_slot)
            _LOG.info("the %s (pid %d) have left at last", worker_slot.name, child.pid)
            return
        if child.died_at_its_end():
            _LOG.warning("%s (pid %d) %s at its end", worker_slot.name, child.pid, why)
        if self.observer is not None and self.observer.lost(worker_slot, child):
            return
        worker_slot.process_slot.last_error = why
        delay_s = worker_slot.process_slot.backoff_s(useful)
        worker_slot.start_at_ns = self._clock_ns() + int(delay_s * 1e9)
        if not stopping:
            _LOG.warning(
                "%s (pid %d) %s; starting another %s",
                worker_slot.process_slot.name, child.pid, why,
                f"in {delay_s:.1f} s" if delay_s else "at once",
            )  # fmt: skip

    def end_all(self, *, answered: bool) -> None:
        """Let every worker end, since the pool ends. answered: every row is; else a worker that has
        a batch is killed, since nobody waits for its rows any more."""
        for worker_slot in self:
            child = worker_slot.child
            if child is None:
                continue
            if not answered and worker_slot.has_batch():
                _LOG.warning(
                    "%s (pid %d) has a batch still: killing it", worker_slot.name, child.pid
                )
                child.kill()
            else:
                worker_slot.end(self._clock_ns())

    def are_to_end(self) -> bool:
        """True while a worker is there that was not killed."""
        children = [worker_slot.child for worker_slot in self]
        return any(child is not None and not child.killed_ns for child in children)

    # -- time ---------------------------------------------------------------------------

    def kill_overdue(self, now_ns: int) -> int:
        """Kill the workers that were to end and did not in time; returns the time of the next one
        (CLOCK_MONOTONIC ns)."""
        due_ns = _NEVER_NS
        for worker_slot in self:
            child = worker_slot.child
            if child is None or child.killed_ns or not child.end_by_ns:
                continue
            if child.end_by_ns > now_ns:
                due_ns = min(due_ns, child.end_by_ns)
                continue
            _LOG.error(
                "%s (pid %d) did not end within unload_timeout_s = %g: killing it",
                worker_slot.name, child.pid, worker_slot.server.unload_timeout_s,
            )  # fmt: skip
            child.kill()
        return due_ns

    def tick(self, now_ns: int) -> int:
        """Start the workers that are due; returns the time of the next one (CLOCK_MONOTONIC ns)."""
        self.count_serving()  # one may have been condemned since
        due_ns = min(self._outages.next_ns(), self.kill_overdue(now_ns))
        for worker_slot in self.worker_slots:
            if worker_slot.start_at_ns is not None:
                if worker_slot.start_at_ns <= now_ns:
                    self._start_again(worker_slot, now_ns)
                due_ns = min(due_ns, worker_slot.start_at_ns or due_ns)
        return due_ns

    def _start_again(self, worker_slot: WorkerSlot, now_ns: int) -> None:
        try:
            self.start(worker_slot)
        except StartError as exc:
            worker_slot.start_at_ns = now_ns + int(
                worker_slot.process_slot.start_failed_s(exc) * 1e9
            )
