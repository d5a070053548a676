"""The batcher's process as the supervisor keeps it: its start, its messages, its replacement."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from batchpool.control.edges import ToBatcher
from batchpool.control.process_messages import (
    AddBatcherLane,
    AddModel,
    BatcherModel,
    Begin,
    CloseLane,
    DrainBatcher,
    SetLimits,
    StageLimits,
    StartBatcher,
)
from batchpool.core.config.schema import ModelConfig
from batchpool.core.errors import StartError
from batchpool.core.scheduler.limits import Limits
from batchpool.core.tensors.stages import Stage
from batchpool.shm.heartbeat import beat_interval_ns
from batchpool.supervisor.children.child import Child, ProcessSlot, log_flags, start_child
from batchpool.supervisor.children.roles import BATCHER
from batchpool.supervisor.fleet.workers import WorkerFleet
from batchpool.supervisor.plan.plan import ModelPlan, Plan
from batchpool.supervisor.resources.lane_table import LaneEntry
from batchpool.supervisor.resources.resources import PoolResources

_LOG = logging.getLogger("batchpool.supervisor")


class BatcherChild:
    """The batcher: `child` is its process, None between two of them.

    A new batcher is told the whole state: models, lanes, workers, and what an earlier one did not
    finish. models: by their number, also those that come or leave in a reload; the caller keeps
    the map up to date. other_plan: in a reload, until its commit, the plan that may come. drain:
    the number of the drain that lasts, 0 for none.
    """

    def __init__(
        self,
        resources: PoolResources,
        models: Mapping[int, ModelPlan],
        watch: Callable[[Child], None],
        clock_ns: Callable[[], int],
    ) -> None:
        self._resources = resources
        self._models = models
        self._watch = watch
        self._clock_ns = clock_ns
        self._start_at_ns: int | None = None
        self.slot = ProcessSlot(BATCHER.name)
        self.child: Child | None = None
        self.other_plan: Plan | None = None
        self.drain = 0
        self.drain_is_last = False

    def send(self, message: ToBatcher, fds: Sequence[int] = ()) -> None:
        """Send a message, if there is a batcher; a later one is told the state anyway."""
        if self.child is not None:
            self.child.send(message, fds)

    def start(self, workers: WorkerFleet, *, takeover: bool) -> None:
        """Start a batcher and tell it the whole state. Raises StartError as `start_child`.

        takeover: it takes over what an earlier batcher left in shared memory.
        """
        resources, plan = self._resources, self._resources.plan
        child = start_child(
            BATCHER, self.slot, started_ns=self._clock_ns(), flags=log_flags(plan.server)
        )
        self.child = child
        self._start_at_ns = None
        start = StartBatcher(
            models=self._batcher_models(),
            draining=self.drain,
            last=self.drain_is_last,
            max_lanes=resources.max_lanes,
            processes=plan.heartbeats,
            tasks=plan.server.tasks,
            beat_ns=beat_interval_ns(plan.server.stall_timeout_s),
        )
        fds = [resources.batcher_bell.fd, resources.heartbeats_fd]
        child.send(start, [*fds, resources.counters_fd, resources.flight_recorder_fd])
        for entry in resources.lanes:
            self.add_lane(entry)
        workers.introduce_all(child.send)
        evicted = tuple(entry.number for entry in resources.lanes if entry.evicted)
        child.send(Begin(takeover, evicted))
        for entry in resources.lanes:
            if entry.closing and not entry.evicted:
                child.send(CloseLane(entry.number))
        workers.report_lost(child.send)
        self._watch(child)

    def ended(self, useful: bool) -> None:
        """Its process has ended. useful: it ran, so that the next one starts at once."""
        child = self.child
        assert child is not None
        self.child = None
        log_end(child)
        self._start_at_ns = self._clock_ns() + int(self.slot.backoff_s(useful) * 1e9)

    def start_if_due(self, workers: WorkerFleet, now_ns: int) -> int | None:
        """Start the next batcher when its time has come; returns the time of the next attempt
        (CLOCK_MONOTONIC ns), or None."""
        if self._start_at_ns is not None and self._start_at_ns <= now_ns:
            try:
                self.start(workers, takeover=True)
            except StartError as exc:
                self._start_at_ns = now_ns + int(self.slot.start_failed_s(exc) * 1e9)
        return self._start_at_ns

    def set_drain(self, number: int, *, last: bool = False) -> None:
        """Take no new rows, in this batcher and each one after it; 0: take them again. last: see
        `DrainBatcher`."""
        self.drain, self.drain_is_last = number, last
        self.send(DrainBatcher(number, last))

    def add_model(self, model: ModelPlan) -> None:
        """Tell it another model."""
        self.send(AddModel(_batcher_model(model, model.config)))

    def set_limits(self) -> None:
        """Tell it the limits of all models, and its own settings."""
        server = self._resources.plan.server
        beat_ns = beat_interval_ns(server.stall_timeout_s)
        self.send(SetLimits(self._batcher_models(), beat_ns, server.log_level))

    def add_lane(self, entry: LaneEntry) -> None:
        """Tell it a lane, with the lane's segment and its client's bells."""
        message = AddBatcherLane(
            lane=entry.number,
            serial=entry.serial,
            model=entry.model,
            slots=entry.layout.slots,
            arena_bytes=entry.layout.arena_bytes,
            client=entry.client,
            moved=entry.moved,
        )
        bells = [entry.bells.to_client]
        if entry.client:
            bells.append(entry.bells.from_client)
        self.send(message, [entry.fd, *bells])

    def _batcher_models(self) -> tuple[BatcherModel, ...]:
        """Every model with the limits of its batches. Where workers of two plans may serve, the
        limits of the plan with the smaller batches are right for both."""
        other = {} if self.other_plan is None else self.other_plan.entries
        found = []
        for entry, model in self._models.items():
            configs = (model.config, other.get(entry, model).config)
            found.append(_batcher_model(model, min(configs, key=lambda c: c.max_batch)))
        return tuple(found)


def log_end(child: Child) -> None:
    """Log the unexpected end of a process and keep its reason."""
    child.slot.last_error = child.reason()
    _LOG.warning("%s (pid %d) %s", child.slot.name, child.pid, child.exit_text())


def _batcher_model(model: ModelPlan, config: ModelConfig) -> BatcherModel:
    """A model as the batcher sees it. config: the one that sets the limits of its batches."""
    return BatcherModel(
        model=model.entry,
        spec=model.spec.to_wire(),
        limits=Limits.of(config),
        attempts=model.config.attempts,
        idempotent=model.config.idempotent,
        cpu_stages=tuple(
            StageLimits(int(stage), Limits.of(config, stage))
            for stage in model.stages
            if stage is not Stage.INFER
        ),
    )
