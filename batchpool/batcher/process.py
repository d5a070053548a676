"""The batcher process: `Batcher.step` in a loop around its bell and its control channel.

It takes the messages `ToBatcher` and sends `FromBatcher`; see `batchpool/control/edges.py`. It
stamps its heartbeat in every iteration of the loop, at least every beat_ns.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Sequence
from typing import assert_never

from batchpool.batcher.batcher import Batcher
from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.local_bells import LocalBells
from batchpool.batcher.metrics import BatcherMetrics
from batchpool.batcher.model_queue import ModelQueue
from batchpool.batcher.recovery import take_over
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.control.channel import Channel, Closed, close_all
from batchpool.control.edges import TO_BATCHER, FromBatcher, InvalidMessage, ToBatcher
from batchpool.control.process_messages import (
    AddBatcherLane,
    AddModel,
    AddWorker,
    BatcherModel,
    BatcherRunning,
    Begin,
    CloseLane,
    DrainBatcher,
    Drained,
    EvictLane,
    LaneBroken,
    LaneClosed,
    MoveLanes,
    RemoveModel,
    SetDuty,
    SetLimits,
    StartBatcher,
    WorkerBroken,
    WorkerHandled,
    WorkerIdle,
    WorkerLost,
)
from batchpool.core.layout.arena import arena_of
from batchpool.core.layout.segments import lane_layout, worker_layout_of
from batchpool.core.layout.stage_numbers import stage_number
from batchpool.core.scheduler.decide import Limits
from batchpool.core.scheduler.queue import QueueColumn
from batchpool.core.tensors.spec import ModelSpec
from batchpool.core.tensors.stages import Stage, stage_spec, stages_of
from batchpool.log import setup
from batchpool.process import bootstrap
from batchpool.shm.doorbell import Doorbell, Waiter
from batchpool.shm.heartbeat import BATCHER, Heartbeats
from batchpool.shm.lane import Lane
from batchpool.shm.segment import Segment, map_checked
from batchpool.shm.stats.counters import Counters
from batchpool.shm.stats.flight_recorder import FlightRecorder
from batchpool.shm.worker_segment import WorkerSegment

_LOG = logging.getLogger("batchpool.batcher")
_SEND_AGAIN_NS = 20_000_000


class BatcherProcess:
    """The process around a `Batcher`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        start, fds = channel.receive(TO_BATCHER)
        if not isinstance(start, StartBatcher):
            raise InvalidMessage(f"a batcher starts with 'start', not with {type(start).__name__}")
        bell_fd, heartbeats_fd, counters_fd, flight_recorder_fd = fds
        self._bell = Doorbell(bell_fd)
        self._heartbeats = Heartbeats(heartbeats_fd, start.processes)
        counters = Counters(counters_fd, start.processes - 1 - start.tasks)
        flight_recorder = FlightRecorder(flight_recorder_fd)
        close_all((heartbeats_fd, counters_fd, flight_recorder_fd))
        self._beat_ns = start.beat_ns
        self._max_lanes = start.max_lanes
        self._counters = counters
        self._specs: dict[int, ModelSpec] = {}
        self._stages: dict[int, list[Stage]] = {}  # of each model, in the order of a row's way
        self._local_bells = LocalBells()
        self._lane_bells: dict[int, Doorbell] = {}  # of front ends
        self._worker_bells: dict[int, Doorbell] = {}
        self.batcher = Batcher(
            [], self._max_lanes, lane_closed=self._lane_closed, flight_recorder=flight_recorder
        )
        for model in start.models:
            self._add_model(model)
        self._drain_number = start.draining
        if self._drain_number:  # before there is a lane that it would open
            self.batcher.set_draining(True, last=start.last)
        self._unsent: deque[FromBatcher] = deque()  # while the supervisor reads nothing
        self._reported_empty = False
        self._reported_running = False
        self._begun = False

    def run(self) -> None:
        """Serve until the supervisor closes the channel."""
        while not self._begun:
            self._hear_one()
        bootstrap.settle()
        self._channel.sock.setblocking(False)
        control = self._channel.fileno()
        bell, local_bells = self._bell, self._local_bells
        waiter = Waiter(bell.fd, control, local_bells.fd)
        ready = [bell.fd]
        while True:
            now_ns = time.monotonic_ns()
            # Cleared before the counters are looked at, so that no ring is lost.
            if bell.fd in ready:
                bell.clear()
            if local_bells.fd in ready:
                local_bells.hear(now_ns)
            self._heartbeats.beat(BATCHER, now_ns)
            wake_at_ns = self.batcher.step(now_ns)
            while self.batcher.warnings:
                _LOG.warning("%s", self.batcher.warnings.pop())
            self._report()
            wake_at_ns = min(wake_at_ns, local_bells.wake_at_ns(now_ns))
            if self._unsent:
                wake_at_ns = min(wake_at_ns, now_ns + _SEND_AGAIN_NS)
            ready = waiter.wait_until(min(wake_at_ns, now_ns + self._beat_ns))
            if control in ready:
                self._hear_all()

    def _report(self) -> None:
        """Tell the supervisor what the last step has changed."""
        if not self._reported_running:
            self._reported_running = True
            self._send(BatcherRunning())
        self._send_unsent()
        # Only the last state counts, so the states of a time in which nothing is read are left out.
        if (
            self.batcher.draining
            and not self._unsent
            and self.batcher.is_empty() != self._reported_empty
        ):
            self._reported_empty = not self._reported_empty
            self._send(Drained(self._drain_number, self._reported_empty))
        for number, duty in self.batcher.workers.take_idle():
            self._send(WorkerIdle(number, duty))

    def _send(self, message: FromBatcher) -> None:
        """Send a message, or keep it until the supervisor reads again; the order is kept."""
        self._unsent.append(message)
        self._send_unsent()

    def _send_unsent(self) -> None:
        while self._unsent:
            try:
                self._channel.send(self._unsent[0])
            except BlockingIOError:
                return
            self._unsent.popleft()

    def _hear_all(self) -> None:
        while True:
            try:
                self._hear_one()
            except BlockingIOError:
                return

    def _hear_one(self) -> None:
        message, fds = self._channel.receive(TO_BATCHER)
        self._apply(message, fds)

    def _apply(self, message: ToBatcher, fds: list[int]) -> None:
        match message:
            case AddBatcherLane():
                self._add_lane(message, *fds)
            case CloseLane():
                self.batcher.close_lane(message.lane)
            case MoveLanes():
                self.batcher.lanes.move(message.lanes)
            case EvictLane():
                self.batcher.evict_lane(message.lane)
            case AddWorker():
                self._add_worker(message, *fds)
            case WorkerLost():
                self._lose_worker(message)
            case SetDuty():
                self.batcher.workers.set_active(message.on, message.off, message.duty)
            case AddModel():
                self._add_model(message.model)
            case RemoveModel():
                del self._specs[message.model]
                for stage in self._stages.pop(message.model):
                    self.batcher.retire_model(stage_number(message.model, stage))
            case SetLimits():
                self._set_limits(message)
            case DrainBatcher():
                self._drain(message)
            case Begin():
                self._begin(message)
            case StartBatcher():
                raise InvalidMessage("'start' came twice")
            case _:
                assert_never(message)

    def _begin(self, message: Begin) -> None:
        if message.takeover:
            take_over(self.batcher)
        for number in message.evicted:  # before a step that might run their rows
            self.batcher.evict_lane(number)
        self._begun = True

    def _add_model(self, form: BatcherModel) -> None:
        spec = self._specs[form.model] = ModelSpec.from_wire(form.spec)
        epoch_ns = time.time_ns() - time.monotonic_ns()
        earlier: ModelQueue | None = None
        all_limits = _limits_of(spec, form)
        self._stages[form.model] = list(all_limits)
        for stage, limits in all_limits.items():
            number = stage_number(form.model, stage)
            place = self._counters.place("batcher", number)
            metrics = BatcherMetrics(self._counters.cells, place, epoch_ns)
            model = ModelQueue(spec.name, limits, form.attempts, form.idempotent, metrics=metrics)
            model.stage = stage
            if spec.generates:
                model.generates, model.waits_since = True, QueueColumn.SINCE_NS
            if earlier is not None:
                model.follow(earlier)
            self.batcher.add_model(number, model)
            earlier = model

    def _add_lane(self, message: AddBatcherLane, segment_fd: int, *bell_fds: int) -> None:
        spec = self._specs[message.model]
        layout = lane_layout(spec, message.slots, arena_of(spec, message.arena_bytes))
        number = message.lane
        try:
            lane = Lane(spec, map_checked(segment_fd, layout), layout)
        except ValueError as exc:  # its client overwrote the head, which must end no other lane
            self._send(LaneBroken(number, str(exc)))
            close_all(bell_fds)
            return
        finally:
            os.close(segment_fd)
        if message.client:
            bell = self._local_bells.bell_of(message.client, *bell_fds)
        else:
            bell = self._lane_bells[number] = Doorbell(*bell_fds)
        stages = self._stages[message.model]
        admitted = AdmittedLane(
            number, message.serial, stage_number(message.model, stages[0]), lane, bell.ring,
            stages=stages, own_flow=message.client > 0, mapped_ns=time.monotonic_ns(),
            report_damage=self._lane_broken,
        )  # fmt: skip
        if message.client:
            self._local_bells.add_lane(message.client, admitted)
        self.batcher.add_lane(admitted, moved=message.moved)

    def _lane_broken(self, number: int, damage: str) -> None:
        self._send(LaneBroken(number, damage))

    def _lane_closed(self, number: int) -> None:
        self._local_bells.remove_lane(number)
        bell = self._lane_bells.pop(number, None)
        if bell is not None:
            bell.close()
        self._send(LaneClosed(number))

    def _add_worker(self, message: AddWorker, segment_fd: int, bell_fd: int) -> None:
        spec = self._specs[message.model]
        layout = worker_layout_of(spec, message.max_batch, self._max_lanes)
        damage = ""
        try:
            segment = map_checked(segment_fd, layout)
        except ValueError as exc:  # it overwrote the head, which must end no other worker
            segment, damage = Segment.blank(layout.total_bytes), str(exc)
        finally:
            os.close(segment_fd)
        bell = self._worker_bells[message.worker] = Doorbell(bell_fd)
        number = stage_number(message.model, Stage(message.stage))
        worker = WorkerProxy(
            message.worker, number, WorkerSegment(segment, layout), bell.ring,
            active=message.on_duty, row=max(0, message.row), identity=(message.place, message.pid),
            mapped_ns=time.monotonic_ns(), report_damage=self._worker_broken,
        )  # fmt: skip
        if damage:
            worker.mark_broken(damage)
        self.batcher.add_worker(worker, message.duty)

    def _worker_broken(self, number: int, damage: str, useful: bool) -> None:
        self._send(WorkerBroken(number, damage, useful))

    def _lose_worker(self, message: WorkerLost) -> None:
        self.batcher.lose_worker(message.worker, message.cause)
        bell = self._worker_bells.pop(message.worker, None)
        if bell is not None:
            bell.close()
        self._send(WorkerHandled(message.worker))

    def _set_limits(self, message: SetLimits) -> None:
        self._beat_ns = message.beat_ns
        setup.set_level(message.log_level)
        for form in message.models:
            for stage, limits in _limits_of(self._specs[form.model], form).items():
                number = stage_number(form.model, stage)
                self.batcher.set_limits(number, limits)
                model = self.batcher.models[number]
                model.metrics.limit(model.limits.max_batch)
                model.attempts, model.idempotent = form.attempts, form.idempotent

    def _drain(self, message: DrainBatcher) -> None:
        self._reported_empty, self._drain_number = False, message.drain
        self.batcher.set_draining(self._drain_number > 0, last=message.last)


def _limits_of(spec: ModelSpec, form: BatcherModel) -> dict[Stage, Limits]:
    """The limits of each stage, in the order in which a row takes them; how the rows of a stage
    differ in size is known from the spec."""
    sent = {Stage.INFER: form.limits}
    sent |= {Stage(each.stage): each.limits for each in form.cpu_stages}
    return {
        stage: sent[stage].of_stage(stage_spec(spec, stage))
        for stage in stages_of(spec)
        if stage in sent
    }


def main(argv: Sequence[str]) -> int:
    """Run as the batcher; returns the exit status."""
    args = bootstrap.arguments("batcher", argv)
    bootstrap.start(args.parent)
    bootstrap.outlast_sigterm()
    bootstrap.log_to_stderr("batcher", args)
    channel = bootstrap.control_channel(args.control_fd)
    try:
        BatcherProcess(channel).run()
    except Closed:
        return 0
    return 0
