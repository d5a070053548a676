"""The batcher process: `Batcher.step` in a loop around its bell and its control channel.

Told by the supervisor:

    start        {models: [{spec, max_batch, max_wait_ns, attempts, idempotent}], max_lanes}
                 fds: its bell
    lane         {lane, serial, model, slots}                 fds: segment, the client's bell
    unlane       {lane}
    worker       {worker, model, max_batch}                   fds: segment, the worker's bell
    worker_lost  {worker, cause}
    begin        {takeover}
    drain        {}
    tally        {id}

and tells it:  running {} | lane_closed {lane} | worker_handled {worker} | drained {} |
tally {id, models}
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from batchpool.core.batching import Limits
from batchpool.core.layout import lane_layout, worker_layout
from batchpool.core.tensors import ModelSpec
from batchpool.pool import child
from batchpool.pool.admission import AdmittedLane
from batchpool.pool.batcher import Batcher, ModelQueue
from batchpool.pool.crew import CrewMember
from batchpool.pool.takeover import take_over
from batchpool.shm.channel import Channel, Closed
from batchpool.shm.doorbell import Doorbell, Waiter
from batchpool.shm.lane import Lane
from batchpool.shm.records import Records
from batchpool.shm.segment import map_checked

_LOOK_NS = 1_000_000_000


class BatcherProcess:
    """The process around a `Batcher`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        message, fds = channel.receive()
        (bell_fd,) = fds
        self._bell = Doorbell(bell_fd)
        self._max_lanes = message["max_lanes"]
        self._specs = [ModelSpec.from_wire(form["spec"]) for form in message["models"]]
        models = [
            ModelQueue(
                spec.name,
                Limits(form["max_batch"], form["max_wait_ns"]),
                form["attempts"],
                form["idempotent"],
            )
            for spec, form in zip(self._specs, message["models"], strict=True)
        ]
        self.batcher = Batcher(models, self._max_lanes, lane_closed=self._lane_closed)
        self._bells: dict[tuple[str, int], Doorbell] = {}
        self._drain_told = False
        self._running_told = False
        self._begun = False

    def run(self) -> None:
        """Serve until the supervisor closes the channel."""
        while not self._begun:
            self._hear_one()
        self._channel.sock.setblocking(False)
        control = self._channel.fileno()
        waiter = Waiter(self._bell.fd, control)
        while True:
            # Cleared before the counters are looked at, so that no ring is lost.
            self._bell.clear()
            now_ns = time.monotonic_ns()
            wake_at_ns = self.batcher.step(now_ns)
            if not self._running_told:
                self._running_told = True
                self._channel.send({"op": "running"})
            if self.batcher.draining and not self._drain_told and self.batcher.is_empty():
                self._drain_told = True
                self._channel.send({"op": "drained"})
            ready = waiter.wait_until(min(wake_at_ns, now_ns + _LOOK_NS))
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
        self._begun = True

    def _on_lane(self, message: dict[str, Any], fds: list[int]) -> None:
        spec = self._specs[message["model"]]
        layout = lane_layout(spec, message["slots"])
        segment_fd, bell_fd = fds
        lane = Lane(spec, map_checked(segment_fd, layout), layout)
        os.close(segment_fd)
        number = message["lane"]
        bell = self._bells[("lane", number)] = Doorbell(bell_fd)
        self.batcher.add_lane(
            AdmittedLane(number, message["serial"], message["model"], lane, bell.ring)
        )

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
        records = Records(map_checked(segment_fd, layout), layout)
        os.close(segment_fd)
        number = message["worker"]
        bell = self._bells[("worker", number)] = Doorbell(bell_fd)
        self.batcher.add_worker(CrewMember(number, message["model"], records, bell.ring))

    def _on_worker_lost(self, message: dict[str, Any], fds: list[int]) -> None:
        number = message["worker"]
        self.batcher.lose_worker(number, message["cause"])
        bell = self._bells.pop(("worker", number), None)
        if bell is not None:
            bell.close()
        self._channel.send({"op": "worker_handled", "worker": number})

    def _on_drain(self, message: dict[str, Any], fds: list[int]) -> None:
        self.batcher.drain()

    def _on_tally(self, message: dict[str, Any], fds: list[int]) -> None:
        models = {
            model.name: {
                "queued": len(model.queue) + len(model.suspects),
                "max_batch": model.limits.max_batch,
                **asdict(model.tally),
            }
            for model in self.batcher.models
        }
        self._channel.send({"op": "tally", "id": message["id"], "models": models})


def main(argv: Sequence[str]) -> int:
    """The role `batcher`."""
    args = child.arguments("batcher", argv)
    child.start(args.parent)
    child.outlast_sigterm()
    child.log_to_stderr("batcher", args.log_level)
    channel = child.control_channel(args.control_fd)
    try:
        BatcherProcess(channel).run()
    except Closed:
        return 0
    return 0
