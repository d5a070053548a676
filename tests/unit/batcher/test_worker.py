"""The batcher's view of a worker: its batches, their times, and a worker that hangs."""

from __future__ import annotations

import numpy as np
import pytest

from batchpool.batcher.worker import DispatchedBatch, WorkerProxy
from batchpool.core.layout.segments import RECORDS
from batchpool.core.layout.states import BatchOutcome, DispatchReason
from batchpool.core.scheduler.estimators import ServiceTime
from batchpool.core.scheduler.queue import QUEUE_COLUMNS
from tests.unit.lanes import new_worker_segment

MS = 1_000_000


@pytest.fixture
def member() -> WorkerProxy:
    return WorkerProxy(0, 0, new_worker_segment(8), lambda: None)


def send(member: WorkerProxy, n: int, now_ns: int) -> DispatchedBatch:
    return member.prepare(np.zeros((QUEUE_COLUMNS, n), dtype=np.int64), DispatchReason.FULL, now_ns)


def finish(member: WorkerProxy, record: int, now_ns: int) -> None:
    batch = member.batches[record]
    member.worker_segment.outcome[record] = int(BatchOutcome.OK)
    member.measure(batch, now_ns)
    member.free(batch)


def test_a_batch_behind_another_counts_from_that_ones_end(member: WorkerProxy) -> None:
    send(member, 4, 1 * MS)
    send(member, 4, 2 * MS)
    finish(member, 0, 11 * MS)
    assert member.time.mean_ns(4) == 10 * MS
    finish(member, 1, 21 * MS)
    assert member.time.mean_ns(4) == 10 * MS


def test_the_rings_have_room_for_a_worker_that_is_held_up(member: WorkerProxy) -> None:
    worker_segment = member.worker_segment
    worker_cq = worker_segment.cq_producer()
    for _ in range(RECORDS):
        member.publish(send(member, 1, MS))
    for record in range(RECORDS):  # none of the entries is moved past, on either side
        token = int(worker_segment.token[record])
        worker_cq.push_few([record | (token & 0xFFFFFFFF) << 32])
        member.free(member.batches[record])
        member.publish(send(member, 1, MS))
    for record in range(RECORDS):
        token = int(worker_segment.token[record])
        worker_cq.push_few([record | (token & 0xFFFFFFFF) << 32])
    told = [
        (entry & 0xFFFFFFFF, entry >> 32) for entry in worker_segment.cq_consumer().peek().tolist()
    ]
    assert [record for record, _ in told] == 2 * list(range(RECORDS))
    assert [token for _, token in told] == list(range(1, 2 * RECORDS + 1))


def test_a_failed_batch_and_one_of_an_earlier_batcher_teach_nothing(member: WorkerProxy) -> None:
    batch = send(member, 4, 1 * MS)
    member.worker_segment.outcome[0] = int(BatchOutcome.FAILED)
    member.measure(batch, 2 * MS)
    member.free(batch)
    send(member, 4, 0)
    finish(member, 0, 3 * MS)
    assert not member.time.known


def test_when_it_will_be_free(member: WorkerProxy) -> None:
    assert member.free_at_ns(50 * MS) == 0
    send(member, 4, 0 + MS)
    finish(member, 0, 11 * MS)
    send(member, 4, 20 * MS)
    send(member, 4, 21 * MS)
    assert member.free_at_ns(22 * MS) == 40 * MS
    assert member.free_at_ns(99 * MS) == 99 * MS, "never in the past"


def test_a_decision_sees_a_worker_as_it_is(member: WorkerProxy) -> None:
    """One that is the same as before is not made anew, but every change shows."""
    idle = member.as_worker(None, 0)
    assert (idle.number, idle.in_flight, idle.lanes, idle.free_at_ns) == (0, 0, None, 0)
    assert idle.time is member.time
    assert member.as_worker(None, 0) is idle
    some = np.array([True, False])
    assert member.as_worker(some, 0).lanes is some
    assert member.as_worker(some.copy(), 0).lanes is not some
    send(member, 4, 1 * MS)
    busy = member.as_worker(None, 7)
    assert (busy.in_flight, busy.free_at_ns) == (1, 7)
    assert member.as_worker(None, 8).free_at_ns == 8
    member.free(member.batches[0])
    assert member.as_worker(None, 0) == idle


def test_nothing_should_wait_behind_a_batch_that_may_never_end(member: WorkerProxy) -> None:
    send(member, 4, 1 * MS)
    assert member.overdue_since_ns(10**12) == 0, "nothing is known of its times"
    finish(member, 0, 11 * MS)
    assert member.overdue_since_ns(10**12) == 0, "it is idle"
    send(member, 4, 20 * MS)
    limit_ns = 4 * int(member.time.high_ns(4)) + 100 * MS
    assert member.overdue_since_ns(20 * MS + limit_ns) == 0
    assert member.overdue_since_ns(20 * MS + limit_ns + 1) == 20 * MS
    on_time = member.as_worker(None, 7)
    overdue = member.as_worker(None, 7, 20 * MS)
    assert (on_time.closed, on_time.overdue_since_ns) == (False, 0)
    assert (overdue.closed, overdue.overdue_since_ns) == (True, 20 * MS)
    assert member.as_worker(None, 7) == on_time
    member.batches[next(iter(member.batches))].apart = True
    apart = member.as_worker(None, 7)
    assert (apart.closed, apart.overdue_since_ns) == (True, 0), "suspects, and nothing beside them"


def test_an_engines_sizes_count_for_times() -> None:
    time = ServiceTime((8, 64))
    for _ in range(20):
        time.took(1, 2 * MS)
        time.took(8, 2 * MS)
        time.took(9, 9 * MS)
        time.took(64, 9 * MS)
    assert [round(time.mean_ns(n) / MS, 3) for n in (1, 8, 9, 40, 64)] == [2, 2, 9, 9, 9]
    assert time.high_ns(3) == time.high_ns(8)


def test_other_sizes_make_other_times(member: WorkerProxy) -> None:
    send(member, 4, 1 * MS)
    finish(member, 0, 11 * MS)
    seen = member.as_worker(None, 0)
    member.forget_times((8, 64))
    again = member.as_worker(None, 0)
    assert again is not seen
    assert again.time is member.time
    assert not member.time.known
