"""The batcher's process in a thread of the test, with the supervisor's end of its channel."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence

from batchpool.batcher.process import BatcherProcess
from batchpool.client.lane_client import LaneClient
from batchpool.client.pending_request import PendingRequest
from batchpool.control.channel import close_all, pair
from batchpool.control.edges import FROM_BATCHER
from batchpool.control.messages import Message
from batchpool.control.process_messages import (
    AddBatcherLane,
    AddWorker,
    BatcherModel,
    BatcherRunning,
    Begin,
    CloseLane,
    LaneClosed,
    StartBatcher,
)
from batchpool.core.errors import Status
from batchpool.core.layout.segments import heartbeats_layout, lane_layout, worker_layout
from batchpool.core.layout.states import BatchOutcome
from batchpool.core.metrics.segments import counters_layout, flight_recorder_layout
from batchpool.core.scheduler.decide import Limits
from batchpool.shm.doorbell import Doorbell, Waiter
from batchpool.shm.lane import Lane
from batchpool.shm.segment import create, map_checked
from batchpool.shm.stats.counters import Counters
from batchpool.shm.stats.flight_recorder import FlightRecorder
from batchpool.shm.worker_segment import WorkerSegment
from tests.unit.client.lane_clients import rows_of
from tests.unit.specs import AFFINE

PATIENCE_S = 60.0
HOUR_NS = 3600 * 10**9
LANES, SLOTS, MOST = 8, 8, 4
FORM = BatcherModel(0, AFFINE.to_wire(), Limits(MOST, 0), 3, idempotent=True)
NOBODY = 7  # a lane that there is not


class Worker:
    """A worker that the test plays. It has mapped every lane."""

    def __init__(self, segment_fd: int) -> None:
        layout = worker_layout(MOST, LANES)
        self.segment = WorkerSegment(map_checked(segment_fd, layout), layout)
        self.segment.ready.set(1)
        self.segment.lanes[:] = range(10, 10 + LANES)
        self.bell = Doorbell()
        self.sq, self.cq = self.segment.sq_consumer(), self.segment.cq_producer()

    def run_next(self, lane: Lane) -> None:
        """Wait for a batch of rows of this lane, and finish it with outputs of ones."""
        hear(self.bell)
        self.finish(lane)

    def finish(self, lane: Lane) -> None:
        entry = int(self.sq.peek()[0])
        record, segment = entry & 0xFFFFFFFF, self.segment
        slots = segment.tickets[record, 1, : segment.n[record]]
        lane.outputs["y"].values[slots] = 1
        lane.write_status(slots, Status.OK)
        segment.launched.set(int(segment.token[record]))
        segment.outcome[record] = int(BatchOutcome.OK)
        segment.finished[record] = segment.token[record]
        self.cq.push_few([entry])
        self.sq.advance(1)


class Supervisor:
    """The other end of a batcher's process, which runs in a thread of the test.

    ends: what the thread ended with. Nothing but a message, a bell or an hour wakes the batcher.
    """

    def __init__(self, *models: BatcherModel, draining: int = 0, last: bool = False) -> None:
        self.channel, self._own = pair()
        self.channel.sock.settimeout(PATIENCE_S)
        self.ends: list[BaseException] = []
        self.bell = Doorbell()
        self.fds = [self.bell.fd]
        self.clients: dict[int, LaneClient] = {}
        shared = [
            create(layout, sealed=False)
            for layout in (heartbeats_layout(2), counters_layout(1), flight_recorder_layout())
        ]
        self.counters = Counters(shared[1], 1)
        self.counters.name_model(0, "m")
        self.counters.alive[0] = 1
        self.recorder = FlightRecorder(shared[2], writable=False)
        start = StartBatcher(
            models or (FORM,), draining, LANES, processes=2, beat_ns=HOUR_NS, last=last
        )
        self.send(start, self.bell.fd, *shared)
        close_all(shared)
        self.process = BatcherProcess(self._own)
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.process.run()
        except BaseException as exc:
            self.ends.append(exc)

    def send(self, message: Message, *fds: int) -> None:
        self.channel.send(message, fds)

    def begin(self, *, takeover: bool = False, evicted: Sequence[int] = ()) -> None:
        """Let it run; it tells once that it has made its first step."""
        self.send(Begin(takeover, tuple(evicted)))
        self.thread.start()
        self.expect(BatcherRunning())

    def expect(self, *messages: Message) -> None:
        """The next messages are these."""
        for message in messages:
            assert self.channel.receive(FROM_BATCHER) == (message, [])

    def settle(self) -> None:
        """Until it has taken all messages so far, and has sent no other one than this reply."""
        self.send(CloseLane(NOBODY))
        self.expect(LaneClosed(NOBODY))

    def end(self) -> None:
        self.channel.close()
        if self.thread.ident is not None:
            self.thread.join(PATIENCE_S)
            assert not self.thread.is_alive()
        self._own.close()
        close_all(self.fds)

    # -- lanes and workers ------------------------------------------------------------------

    def add_lane(
        self,
        number: int,
        *bells: int,
        client: int = 0,
        moved: bool = False,
        layout_slots: int = SLOTS,
    ) -> LaneClient:
        layout = lane_layout(AFFINE, layout_slots)
        fd = create(layout, sealed=True)
        lane = Lane(AFFINE, map_checked(fd, layout), layout)
        self.clients[number] = LaneClient(lane)
        self.send(AddBatcherLane(number, 10 + number, 0, SLOTS, client, moved), fd, *bells)
        os.close(fd)
        return self.clients[number]

    def new_bell(self) -> Doorbell:
        bell = Doorbell()
        self.fds.append(bell.fd)
        return bell

    def add_worker(
        self, number: int, *, on_duty: bool = True, duty: int = 0, row: int = -1
    ) -> Worker:
        fd = create(worker_layout(MOST, LANES), sealed=True)
        worker = Worker(fd)
        self.fds.append(worker.bell.fd)
        message = AddWorker(
            number, place=2, pid=1234, model=0, max_batch=MOST, row=row, on_duty=on_duty, duty=duty
        )
        self.send(message, fd, worker.bell.fd)
        os.close(fd)
        return worker

    def claim(self, number: int, flow: int = 0) -> PendingRequest:
        """A row of a lane, which its client has not published."""
        now_ns = time.monotonic_ns()
        return self.clients[number].submit(rows_of(1), now_ns, now_ns + HOUR_NS, flow=flow)

    def submit(self, number: int) -> PendingRequest:
        pending = self.claim(number)
        self.clients[number].flush()
        return pending


def hear(bell: Doorbell) -> None:
    """Wait until a bell is rung, and forget that."""
    assert Waiter(bell.fd).wait_ms(1000 * PATIENCE_S) == [bell.fd], "nobody rang"
    bell.clear()


def open_bells() -> int:
    """The number of eventfds that are open in this process."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one by which the folder was read
            found += os.readlink(f"/proc/self/fd/{fd}") == "anon_inode:[eventfd]"
    return found


Start = Callable[..., Supervisor]
