"""A worker's process in a thread of the test, with the other ends of its channel and bells."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

from batchpool.batcher.dispatched_batch import DispatchedBatch
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.control.channel import close_all, pair
from batchpool.control.edges import FROM_WORKER
from batchpool.control.process_messages import AddWorkerLane, StartWorker
from batchpool.core.layout.segments import lane_layout, worker_layout_of
from batchpool.core.layout.states import DispatchReason
from batchpool.core.metrics.segments import counters_layout, tracebacks_layout
from batchpool.core.scheduler.queue import QueueColumn
from batchpool.core.tensors.spec import ModelSpec
from batchpool.model import Model, spec_of
from batchpool.shm.doorbell import Doorbell, Waiter
from batchpool.shm.lane import Lane
from batchpool.shm.segment import create, map_checked
from batchpool.shm.stats.counters import Counters
from batchpool.shm.stats.tracebacks import Tracebacks
from batchpool.shm.worker_segment import WorkerSegment
from batchpool.worker.process import WorkerProcess
from tests.unit.core.scheduler.queued import rows_of

PATIENCE_S = 60.0
LANES, SLOTS, MOST = 8, 8, 4
SERIAL = 33


class Pool:
    """The supervisor's and the batcher's ends of a worker. bell: the worker's; batcher: what it
    rings."""

    def __init__(
        self,
        cls: type[Model],
        *,
        sizes: Sequence[int] = (),
        row: int = -1,
        tracebacks: bool = False,
        spec: ModelSpec | None = None,
    ) -> None:
        self.channel, self.own = pair()
        self.channel.sock.settimeout(PATIENCE_S)
        self.spec = spec or spec_of(cls)
        layout = worker_layout_of(self.spec, MOST, LANES)
        segment_fd = create(layout, sealed=True)
        self.segment = WorkerSegment(map_checked(segment_fd, layout), layout)
        counters_fd = create(counters_layout(1), sealed=True)
        self.counters = Counters(counters_fd, 1)
        self.bell, self.batcher = Doorbell(), Doorbell()
        self.proxy = WorkerProxy(0, 0, self.segment, self.bell.ring)
        self.lanes: dict[int, Lane] = {}
        message = StartWorker(
            place=3, import_name=f"{cls.__module__}:{cls.__name__}", options={},
            spec=self.spec.to_wire(),
            device="cpu", max_batch=MOST, batch_sizes=tuple(sizes), max_lanes=LANES, frontends=1,
            row=row, tracebacks=tracebacks,
        )  # fmt: skip
        tracebacks_fd = create(tracebacks_layout(), sealed=True)
        self.tracebacks = Tracebacks(tracebacks_fd, writable=False)
        fds = [segment_fd, self.bell.fd, self.batcher.fd, counters_fd, tracebacks_fd]
        self.channel.send(message, fds[: message.descriptor_count()])
        close_all((segment_fd, counters_fd, tracebacks_fd))
        self.ends: list[BaseException] = []
        self.thread: threading.Thread | None = None

    def start(self, process: WorkerProcess) -> None:
        """Let a loaded worker serve, in a thread."""
        self.own.sock.setblocking(False)
        worker = process.load()

        def run() -> None:
            try:
                process.run(worker)
            except BaseException as exc:
                self.ends.append(exc)

        self.thread = threading.Thread(target=run)
        self.thread.start()

    def receive(self) -> Any:
        return self.channel.receive(FROM_WORKER)[0]

    def add_lane(self, number: int, slots: int = SLOTS) -> Lane:
        layout = lane_layout(self.spec, slots)
        fd = create(layout, sealed=True)
        self.lanes[number] = Lane(self.spec, map_checked(fd, layout), layout)
        self.channel.send(AddWorkerLane(number, SERIAL, SLOTS, pinned=False), [fd])
        os.close(fd)
        return self.lanes[number]

    def send(self, lane: int, *slots: int) -> DispatchedBatch:
        rows = rows_of(len(slots), lane=lane)
        rows[QueueColumn.SLOT] = slots
        batch = self.proxy.prepare(rows, DispatchReason.FULL, 1, 1)
        self.proxy.publish(batch)
        return batch

    def heard(self) -> None:
        """The worker has rung the batcher."""
        assert Waiter(self.batcher.fd).wait_ms(1000 * PATIENCE_S), "it did not ring"
        self.batcher.clear()

    def acknowledged(self, number: int) -> None:
        """Wait until the worker has mapped a lane; it may have rung for a batch before that."""
        while self.segment.lanes[number] != SERIAL:
            self.heard()

    def finished(self) -> list[DispatchedBatch]:
        """The next batches that the worker has finished."""
        while not (done := self.proxy.finished()):
            self.heard()
        for batch in done:
            self.proxy.free(batch)
        self.proxy.advance()
        return done

    def end(self) -> None:
        self.channel.close()
        if self.thread is not None:
            self.bell.ring()
            self.thread.join(PATIENCE_S)
            assert not self.thread.is_alive()
        self.own.close()
        close_all((self.bell.fd, self.batcher.fd))
