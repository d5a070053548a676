"""The batcher process: `Batcher.step` in a loop around its bell and its control channel.

Told by the supervisor:

    start        {models: [{model, spec, limits, attempts, idempotent}], draining, max_lanes,
                 posts, beat_ns}    fds: its bell, the heartbeats, the counters, the flight recorder
    model        {model, spec, ...}   as in start: another entry; entries are named `model`
    unmodel      {model}                                      nothing is left of it
    lane         {lane, serial, model, slots, local, moved}   fds: segment, the client's bell
    unlane       {lane}
    move         {lanes}                                      clients have others now
    evict        {lane}                                       its client has had its time
    worker       {worker, model, max_batch, row, on_duty, turn}  fds: segment, the worker's bell
    worker_lost  {worker, cause}
    duty         {on, off, turn}      lists of workers: who gets new batches and who does not
    limits       {models, beat_ns, log_level}                 as in start, of all that are there
    begin        {takeover, evicted}                          evicted: lanes
    drain        {turn}                                       0: open again

and tells it:  running {} | lane_closed {lane} | worker_handled {worker} | idle {worker, turn} |
drained {turn, empty}

idle: a worker that is off duty since that turn has nothing in flight. drained: since the drain
with that turn all rows are answered; a claim made just before it may still bring some.

It stamps the heartbeats in every turn of its loop, at least every beat_ns.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from typing import Any

from batchpool.batcher.batcher import Batcher
from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.metrics import BatcherMetrics
from batchpool.batcher.model_queue import ModelQueue
from batchpool.batcher.recovery import take_over
from batchpool.batcher.worker import WorkerProxy
from batchpool.control.channel import Channel, Closed, close_all
from batchpool.core.layout.segments import lane_layout, worker_layout
from batchpool.core.scheduler.decide import Limits
from batchpool.core.scheduler.size_buckets import SizeBuckets
from batchpool.core.tensors.spec import ModelSpec
from batchpool.process import bootstrap
from batchpool.shm.doorbell import Doorbell, Waiter
from batchpool.shm.heartbeat import BATCHER, Heartbeats
from batchpool.shm.lane import Lane
from batchpool.shm.segment import map_checked
from batchpool.shm.stats.counters import Counters
from batchpool.shm.stats.flight_recorder import FlightRecorder
from batchpool.shm.worker_segment import WorkerSegment

_LOG = logging.getLogger("batchpool.batcher")


class BatcherProcess:
    """The process around a `Batcher`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        message, fds = channel.receive()
        bell_fd, heartbeats_fd, counters_fd, flight_recorder_fd = fds
        self._bell = Doorbell(bell_fd)
        self._heartbeats = Heartbeats(heartbeats_fd, message["posts"])
        counters = Counters(counters_fd, message["posts"] - 1)
        flight_recorder = FlightRecorder(flight_recorder_fd)
        close_all((heartbeats_fd, counters_fd, flight_recorder_fd))
        self._beat_ns = message["beat_ns"]
        self._max_lanes = message["max_lanes"]
        self._counters = counters
        self._specs: dict[int, ModelSpec] = {}
        self.batcher = Batcher(
            [], self._max_lanes, lane_closed=self._lane_closed, flight_recorder=flight_recorder
        )
        for form in message["models"]:
            self._on_model(form, [])
        self._drain_turn = message["draining"]
        if self._drain_turn:  # before there is a lane that it would open
            self.batcher.set_draining(True)
        self._bells: dict[tuple[str, int], Doorbell] = {}
        self._drain_told = False
        self._running_told = False
        self._begun = False

    def run(self) -> None:
        """Serve until the supervisor closes the channel."""
        while not self._begun:
            self._hear_one()
        bootstrap.settle()
        self._channel.sock.setblocking(False)
        control = self._channel.fileno()
        waiter = Waiter(self._bell.fd, control)
        while True:
            # Cleared before the counters are looked at, so that no ring is lost.
            self._bell.clear()
            now_ns = time.monotonic_ns()
            self._heartbeats.beat(BATCHER, now_ns)
            wake_at_ns = self.batcher.step(now_ns)
            while self.batcher.warnings:
                _LOG.warning("%s", self.batcher.warnings.pop())
            if not self._running_told:
                self._running_told = True
                self._channel.send({"op": "running"})
            if self.batcher.draining and self.batcher.is_empty() != self._drain_told:
                empty = self._drain_told = not self._drain_told
                self._channel.send({"op": "drained", "turn": self._drain_turn, "empty": empty})
            for number, turn in self.batcher.workers.take_idle():
                self._channel.send({"op": "idle", "worker": number, "turn": turn})
            ready = waiter.wait_until(min(wake_at_ns, now_ns + self._beat_ns))
            if control in ready:
                self._hear_all()

    def _hear_all(self) -> None:
        while True:
            try:
                self._hear_one()
            except BlockingIOError:
                return

    def _hear_one(self) -> None:
        message, fds = self._channel.receive()
        getattr(self, f"_on_{message['op']}")(message, fds)

    def _on_begin(self, message: dict[str, Any], fds: list[int]) -> None:
        if message["takeover"]:
            take_over(self.batcher)
        for number in message["evicted"]:  # before a step that might run their rows
            self.batcher.evict_lane(number)
        self._begun = True

    def _on_model(self, message: dict[str, Any], fds: list[int]) -> None:
        entry = message["model"]
        spec = self._specs[entry] = ModelSpec.from_wire(message["spec"])
        limits, attempts = _limits(spec, message["limits"]), message["attempts"]
        metrics = BatcherMetrics(self._counters.cells, self._counters.place("batcher", entry))
        model = ModelQueue(spec.name, limits, attempts, message["idempotent"], metrics=metrics)
        self.batcher.add_model(entry, model)

    def _on_unmodel(self, message: dict[str, Any], fds: list[int]) -> None:
        self.batcher.retire_model(message["model"])
        del self._specs[message["model"]]

    def _on_lane(self, message: dict[str, Any], fds: list[int]) -> None:
        spec = self._specs[message["model"]]
        layout = lane_layout(spec, message["slots"])
        segment_fd, bell_fd = fds
        number = message["lane"]
        try:
            lane = Lane(spec, map_checked(segment_fd, layout), layout)
        except ValueError as exc:  # its client overwrote the head: nobody else may suffer for it
            _LOG.error("lane %d stays unmapped: %s", number, exc)
            os.close(bell_fd)
            return
        finally:
            os.close(segment_fd)
        bell = self._bells[("lane", number)] = Doorbell(bell_fd)
        self.batcher.add_lane(
            AdmittedLane(
                number,
                message["serial"],
                message["model"],
                lane,
                bell.ring,
                own_flow=message["local"],
            ),
            moved=message["moved"],
        )

    def _on_move(self, message: dict[str, Any], fds: list[int]) -> None:
        self.batcher.lanes.move(message["lanes"])

    def _on_evict(self, message: dict[str, Any], fds: list[int]) -> None:
        self.batcher.evict_lane(message["lane"])

    def _on_unlane(self, message: dict[str, Any], fds: list[int]) -> None:
        self.batcher.close_lane(message["lane"])

    def _lane_closed(self, number: int) -> None:
        bell = self._bells.pop(("lane", number), None)
        if bell is not None:
            bell.close()
        self._channel.send({"op": "lane_closed", "lane": number})

    def _on_worker(self, message: dict[str, Any], fds: list[int]) -> None:
        layout = worker_layout(message["max_batch"], self._max_lanes)
        segment_fd, bell_fd = fds
        worker_segment = WorkerSegment(map_checked(segment_fd, layout), layout)
        os.close(segment_fd)
        number = message["worker"]
        bell = self._bells[("worker", number)] = Doorbell(bell_fd)
        active, row = message["on_duty"], max(0, message["row"])
        identity = message["place"], message["pid"]
        worker = WorkerProxy(
            number,
            message["model"],
            worker_segment,
            bell.ring,
            active=active,
            row=row,
            identity=identity,
        )
        self.batcher.add_worker(worker, message["turn"])

    def _on_duty(self, message: dict[str, Any], fds: list[int]) -> None:
        self.batcher.workers.set_active(message["on"], message["off"], message["turn"])

    def _on_limits(self, message: dict[str, Any], fds: list[int]) -> None:
        self._beat_ns = message["beat_ns"]
        logging.getLogger().setLevel(message["log_level"].upper())
        for form in message["models"]:
            entry = form["model"]
            self.batcher.set_limits(entry, _limits(self._specs[entry], form["limits"]))
            model = self.batcher.models[entry]
            model.metrics.limit(model.limits.max_batch)
            model.attempts, model.idempotent = form["attempts"], form["idempotent"]

    def _on_worker_lost(self, message: dict[str, Any], fds: list[int]) -> None:
        number = message["worker"]
        self.batcher.lose_worker(number, message["cause"])
        bell = self._bells.pop(("worker", number), None)
        if bell is not None:
            bell.close()
        self._channel.send({"op": "worker_handled", "worker": number})

    def _on_drain(self, message: dict[str, Any], fds: list[int]) -> None:
        self._drain_told, self._drain_turn = False, message["turn"]
        if self._drain_turn:
            self.batcher.set_draining(True)
        else:
            self.batcher.set_draining(False)


def _limits(spec: ModelSpec, form: dict[str, Any]) -> Limits:
    """A model's limits as the supervisor sent them; the sizes of its rows are known here."""
    return Limits(**{**form, "sizes": tuple(form["sizes"]), "bucketed": SizeBuckets(spec).many})


def main(argv: Sequence[str]) -> int:
    """The role `batcher`."""
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
