"""The batcher's process with workers whose segments are not sound: reported, and nobody else's."""

from __future__ import annotations

import os
import time

from batchpool.client.pending_request import PendingRequest
from batchpool.control.edges import FROM_BATCHER
from batchpool.control.process_messages import (
    AddWorker,
    BatcherRunning,
    Begin,
    WorkerBroken,
    WorkerHandled,
    WorkerLost,
)
from batchpool.core.layout.segments import worker_layout
from batchpool.shm.segment import create, word
from tests.unit.batcher.process_bench import LANES, MOST, Start, hear


def test_a_worker_that_wrote_nonsense_is_reported_and_the_others_serve(start: Start) -> None:
    pool = start()
    bell = pool.new_bell()
    pool.add_lane(1, bell.fd)
    broken, sound = pool.add_worker(5), pool.add_worker(6)
    pool.begin()
    broken.segment.memory.cells()[word(broken.segment.layout, "cq_tail")] = 99
    pool.bell.ring()
    pool.expect(WorkerBroken(5, "ring counters disagree: 99 entries pending of 8", useful=False))
    for _ in range(2):
        pending = pool.submit(1)
        pool.bell.ring()
        sound.run_next(pool.clients[1].lane)
        pool.bell.ring()
        found: list[PendingRequest] = []
        while not found:
            hear(bell)
            found = pool.clients[1].reap(time.monotonic_ns())
        assert found == [pending]
        pool.clients[1].release(pending)
    pool.send(WorkerLost(5, "was killed"))
    pool.expect(WorkerHandled(5))
    assert list(pool.process.batcher.workers.by_number) == [6]


def test_a_worker_whose_segment_has_another_head_is_reported_when_it_is_mapped(
    start: Start,
) -> None:
    """A batcher that takes over goes on without it."""
    pool = start()
    fd = create(worker_layout(MOST, LANES), sealed=True)
    os.pwrite(fd, bytes(64), 0)
    message = AddWorker(5, place=2, pid=1, model=0, max_batch=MOST, row=-1, on_duty=True, duty=0)
    bell = pool.new_bell()
    pool.send(message, fd, bell.fd)
    os.close(fd)
    pool.send(Begin(takeover=True, evicted=()))
    pool.thread.start()
    found, _ = pool.channel.receive(FROM_BATCHER)
    assert isinstance(found, WorkerBroken)
    assert (found.worker, found.useful) == (5, False)
    assert "its magic is 0x0" in found.damage
    pool.expect(BatcherRunning())
    pool.send(WorkerLost(5, "was killed"))
    pool.expect(WorkerHandled(5))
