"""The batcher's view of a worker: its batches, their times, and a worker that hangs."""

from __future__ import annotations

import numpy as np
import pytest

from batchpool.batcher.dispatched_batch import DispatchedBatch
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.core.layout.segments import RECORDS
from batchpool.core.layout.states import BatchOutcome, DispatchReason
from batchpool.core.scheduler.element_budget import InputShape, RowElements
from batchpool.core.scheduler.estimators import ServiceTime
from batchpool.core.scheduler.queue import QUEUE_COLUMNS, QueueColumn
from tests.unit.core.scheduler.queued import rows_of
from tests.unit.lanes import new_worker_segment

MS = 1_000_000


@pytest.fixture
def proxy() -> WorkerProxy:
    return WorkerProxy(0, 0, new_worker_segment(8), lambda: None)


def send(proxy: WorkerProxy, n: int, now_ns: int) -> DispatchedBatch:
    return proxy.prepare(
        np.zeros((QUEUE_COLUMNS, n), dtype=np.int64), DispatchReason.FULL, now_ns, 1
    )


def end(proxy: WorkerProxy, batch: DispatchedBatch, outcome: BatchOutcome) -> None:
    proxy.worker_segment.launched.set(batch.token)
    proxy.worker_segment.outcome[batch.record] = int(outcome)
    proxy.worker_segment.finished[batch.record] = batch.token
    assert proxy.has_finished(batch)


def finish(proxy: WorkerProxy, record: int, now_ns: int) -> None:
    batch = proxy.batches[record]
    end(proxy, batch, BatchOutcome.OK)
    proxy.measure(batch, now_ns)
    proxy.free(batch)


def test_a_batch_behind_another_counts_from_that_ones_end(proxy: WorkerProxy) -> None:
    send(proxy, 4, 1 * MS)
    send(proxy, 4, 2 * MS)
    finish(proxy, 0, 11 * MS)
    assert proxy.service_time.mean_ns(4) == 10 * MS
    finish(proxy, 1, 21 * MS)
    assert proxy.service_time.mean_ns(4) == 10 * MS


def test_the_rings_have_room_for_a_worker_that_is_held_up(proxy: WorkerProxy) -> None:
    worker_segment = proxy.worker_segment
    worker_cq = worker_segment.cq_producer()
    for _ in range(RECORDS):
        proxy.publish(send(proxy, 1, MS))
    for record in range(RECORDS):  # none of the entries is moved past, on either side
        token = int(worker_segment.token[record])
        worker_cq.push_few([record | (token & 0xFFFFFFFF) << 32])
        proxy.free(proxy.batches[record])
        proxy.publish(send(proxy, 1, MS))
    for record in range(RECORDS):
        token = int(worker_segment.token[record])
        worker_cq.push_few([record | (token & 0xFFFFFFFF) << 32])
    told = [
        (entry & 0xFFFFFFFF, entry >> 32) for entry in worker_segment.cq_consumer().peek().tolist()
    ]
    assert [record for record, _ in told] == 2 * list(range(RECORDS))
    assert [token for _, token in told] == list(range(1, 2 * RECORDS + 1))


def test_a_failed_batch_and_one_of_an_earlier_batcher_teach_nothing(proxy: WorkerProxy) -> None:
    batch = send(proxy, 4, 1 * MS)
    end(proxy, batch, BatchOutcome.FAILED)
    proxy.measure(batch, 2 * MS)
    proxy.free(batch)
    send(proxy, 4, 0)
    finish(proxy, 0, 3 * MS)
    assert not proxy.service_time.known


def test_when_it_will_be_free(proxy: WorkerProxy) -> None:
    assert proxy.free_at_ns(50 * MS) == 0
    send(proxy, 4, 0 + MS)
    finish(proxy, 0, 11 * MS)
    send(proxy, 4, 20 * MS)
    send(proxy, 4, 21 * MS)
    assert proxy.free_at_ns(22 * MS) == 40 * MS
    assert proxy.free_at_ns(99 * MS) == 99 * MS, "never in the past"


def test_the_end_of_a_batch_is_foreseen_by_its_elements_where_rows_differ_in_these(
    proxy: WorkerProxy,
) -> None:
    proxy.measure_elements(RowElements((InputShape(1, (0,)),), (1024,)))
    short, long = 4, 10  # rows of 16 and of 1024 elements

    def sent(bucket: int, now_ns: int) -> None:
        rows = np.zeros((QUEUE_COLUMNS, 4), dtype=np.int64)
        rows[QueueColumn.BUCKET] = bucket
        proxy.prepare(rows, DispatchReason.FULL, now_ns, 1)

    now_ns = MS
    for bucket, took_ns in ((short, 2 * MS), (long, 65 * MS)) * 3:
        sent(bucket, now_ns)
        (record,) = proxy.batches
        finish(proxy, record, now_ns := now_ns + took_ns)
    for bucket, took_ms in ((short, 2), (long, 65)):
        sent(bucket, now_ns)
        (record,) = proxy.batches
        assert proxy.free_at_ns(now_ns) - now_ns == pytest.approx(took_ms * MS, rel=0.01)
        proxy.free(proxy.batches[record])
    sent(long, now_ns)
    spread = proxy.service_time.spread
    usual_ns = 4 * spread * 65 * MS
    assert proxy.overdue_since_ns(now_ns + int(0.99 * usual_ns) + 100 * MS) == 0
    assert proxy.overdue_since_ns(now_ns + int(1.01 * usual_ns) + 100 * MS) == now_ns


def test_a_decision_sees_a_worker_as_it_is(proxy: WorkerProxy) -> None:
    """One that is the same as before is not made anew, but every change shows."""
    idle = proxy.view(None, 0)
    assert (idle.number, idle.in_flight, idle.lanes, idle.free_at_ns) == (0, 0, None, 0)
    assert idle.time is proxy.service_time
    assert proxy.view(None, 0) is idle
    some = np.array([True, False])
    assert proxy.view(some, 0).lanes is some
    assert proxy.view(some.copy(), 0).lanes is not some
    send(proxy, 4, 1 * MS)
    busy = proxy.view(None, 7)
    assert (busy.in_flight, busy.free_at_ns) == (1, 7)
    assert proxy.view(None, 8).free_at_ns == 8
    proxy.free(proxy.batches[0])
    again = proxy.view(None, 0)
    assert (again.in_flight, again.free_at_ns) == (0, 0)
    assert (idle.last_bucket, again.last_bucket) == (-1, 0)
    assert proxy.view(None, 0) is again
    proxy.last_bucket = 7
    assert proxy.view(None, 0).last_bucket == 7
    for in_flight in (1, 2):
        send(proxy, 4, 2 * MS)
        assert proxy.view(None, 0).in_flight == in_flight


def test_nothing_should_wait_behind_a_batch_that_may_never_end(proxy: WorkerProxy) -> None:
    send(proxy, 4, 1 * MS)
    assert proxy.overdue_since_ns(10**12) == 0, "nothing is known of its times"
    finish(proxy, 0, 11 * MS)
    assert proxy.overdue_since_ns(10**12) == 0, "it is idle"
    send(proxy, 4, 20 * MS)
    limit_ns = 4 * int(proxy.service_time.high_ns(4)) + 100 * MS
    assert proxy.overdue_since_ns(20 * MS + limit_ns) == 0
    assert proxy.overdue_since_ns(20 * MS + limit_ns + 1) == 20 * MS
    on_time = proxy.view(None, 7)
    overdue = proxy.view(None, 7, 20 * MS)
    assert (on_time.closed, on_time.overdue_since_ns) == (False, 0)
    assert (overdue.closed, overdue.overdue_since_ns) == (True, 20 * MS)
    assert proxy.view(None, 7) == on_time
    proxy.batches[next(iter(proxy.batches))].apart = True
    apart = proxy.view(None, 7)
    assert (apart.closed, apart.overdue_since_ns) == (True, 0), "suspects, and nothing beside them"


def test_batches_of_an_earlier_batcher_count_from_the_oldest_in_whatever_order_they_are_found(
    proxy: WorkerProxy,
) -> None:
    for _ in range(3):
        proxy.service_time.took(1, 10 * MS)
    for record, token, sent_ms in ((5, 7, 40), (2, 3, 20), (9, 5, 30)):
        proxy.adopt(DispatchedBatch(record, token, rows_of(1), sent_ms * MS, 1, token))
    assert [batch.token for batch in proxy.batches.values()] == [3, 5, 7]
    assert proxy.free_at_ns(21 * MS) == 50 * MS, "each begins at its dispatch, as the others ended"
    limit_ns = int(4 * proxy.service_time.high_ns(1)) + 100 * MS
    assert proxy.overdue_since_ns(20 * MS + limit_ns + 1) == 20 * MS


def test_an_engines_sizes_count_for_times() -> None:
    time = ServiceTime((8, 64))
    for _ in range(20):
        time.took(1, 2 * MS)
        time.took(8, 2 * MS)
        time.took(9, 9 * MS)
        time.took(64, 9 * MS)
    assert [round(time.mean_ns(n) / MS, 3) for n in (1, 8, 9, 40, 64)] == [2, 2, 9, 9, 9]
    assert time.high_ns(3) == time.high_ns(8)


def test_other_sizes_make_other_times(proxy: WorkerProxy) -> None:
    send(proxy, 4, 1 * MS)
    finish(proxy, 0, 11 * MS)
    seen = proxy.view(None, 0)
    proxy.reset_service_time((8, 64))
    again = proxy.view(None, 0)
    assert again is not seen
    assert again.time is proxy.service_time
    assert not proxy.service_time.known


def test_a_batch_behind_another_is_over_that_long_after_the_others_end(proxy: WorkerProxy) -> None:
    send(proxy, 4, 1 * MS)
    send(proxy, 4, 2 * MS)
    finish(proxy, 0, 11 * MS)
    assert proxy.free_at_ns(12 * MS) == 21 * MS
    limit_ns = 4 * int(proxy.service_time.high_ns(4)) + 100 * MS
    assert proxy.overdue_since_ns(11 * MS + limit_ns) == 0
    assert proxy.overdue_since_ns(11 * MS + limit_ns + 1) == 11 * MS


@pytest.mark.parametrize(
    ("word", "rows", "learns"),
    [
        ("refused_of", 4, False),
        ("refused_of", 3, True),
        ("expired_of", 1, False),
        ("cancelled_of", 1, False),
    ],
)
def test_the_time_of_a_batch_of_which_less_was_computed_is_not_learnt(
    proxy: WorkerProxy, word: str, rows: int, learns: bool
) -> None:
    send(proxy, 4, 1 * MS)
    getattr(proxy.worker_segment, word)[0] = rows
    finish(proxy, 0, 2 * MS)
    assert proxy.service_time.known is learns


def test_a_record_holds_what_the_worker_needs_of_its_rows(proxy: WorkerProxy) -> None:
    rows = rows_of(3, name=[7, 8, 9], lane=[1, 1, 2], deadline=[50, 40, 60])
    rows[QueueColumn.SLOT] = [4, 5, 6]
    rows[QueueColumn.ATTEMPT] = [0, 2, 1]
    batch = proxy.prepare(rows, DispatchReason.APART, MS, 12, cancels=2**63 + 5)
    segment = proxy.worker_segment
    assert (segment.n[0], segment.token[0], segment.attempt[0]) == (3, 1, 2)
    assert (segment.due_ns_of[0], segment.cancels_of[0]) == (40, 5)
    assert segment.reason[0] == DispatchReason.APART
    assert segment.tickets[0, 0, :3].tolist() == [1, 1, 2]
    assert segment.tickets[0, 1, :3].tolist() == [4, 5, 6]
    assert segment.tickets[0, 2, :3].tolist() == [7, 8, 9]
    assert (batch.apart, batch.size, batch.number, batch.attempt) == (True, 3, 12, 2)
    assert proxy.runs_apart()


def test_a_record_holds_the_bucket_that_all_of_its_rows_are_in(proxy: WorkerProxy) -> None:
    for number, (buckets, told) in enumerate(
        [([9, 9, 9], 9), ([9, 8, 9], 9), ([0, 9, 0], 0), ([0, 0, 0], 0)]
    ):
        proxy.prepare(rows_of(3, bucket=buckets), DispatchReason.FULL, MS, number)
        assert proxy.worker_segment.bucket_of[number] == told


def test_free_records_are_used_again_and_their_tokens_rise(proxy: WorkerProxy) -> None:
    first, second = send(proxy, 1, MS), send(proxy, 1, MS)
    proxy.free(first)
    assert proxy.worker_segment.freed[0] == first.token
    third = send(proxy, 1, MS)
    assert [(b.record, b.token) for b in (first, second, third)] == [(0, 1), (1, 2), (0, 3)]
    later = WorkerProxy(0, 0, proxy.worker_segment, lambda: None)
    assert send(later, 1, MS).token == 4, "also those of a later batcher"


def test_a_completion_entry_of_another_use_of_the_record_ends_nothing(proxy: WorkerProxy) -> None:
    """A former batcher has completed that use, and died before it moved past the entry."""
    first = send(proxy, 1, MS)
    segment = proxy.worker_segment
    cq = segment.cq_producer()
    proxy.free(first)
    proxy = WorkerProxy(0, 0, segment, lambda: None)
    second = send(proxy, 1, MS)
    cq.push_few([first.entry])
    assert second.record == first.record
    assert proxy.finished() == []
    proxy.advance()
    segment.launched.set(second.token)
    segment.outcome[second.record] = int(BatchOutcome.OK)
    segment.finished[second.record] = second.token
    cq.push_few([second.entry])
    assert proxy.finished() == [second]
    assert proxy.worker_segment.cq_consumer().pending() == 1, "until the rows are completed"
    proxy.advance()
    proxy.advance()
    assert not proxy.damage
    assert proxy.worker_segment.cq_consumer().pending() == 0


def test_which_batches_a_worker_began_and_finished(proxy: WorkerProxy) -> None:
    batches = [send(proxy, 1, MS) for _ in range(3)]
    proxy.worker_segment.launched.set(batches[1].token)
    assert [proxy.has_launched(batch) for batch in batches] == [True, True, False]
    proxy.worker_segment.outcome[batches[0].record] = int(BatchOutcome.OK)
    proxy.worker_segment.finished[batches[0].record] = batches[0].token
    assert [proxy.has_finished(batch) for batch in batches] == [True, False, False]


def test_lanes_are_runnable_as_the_worker_acknowledges_them(proxy: WorkerProxy) -> None:
    serials = np.array([0, 11, 12, 0, 0, 0, 0, 0])
    acknowledged = proxy.worker_segment.lanes
    acknowledged[[1, 4]] = 11, 14  # 4: of a lane that is gone
    some = proxy.runnable_lanes(serials, version=1)
    assert some is not None
    assert np.flatnonzero(some).tolist() == [1]
    acknowledged[2] = 12
    assert proxy.runnable_lanes(serials, version=1) is None
    acknowledged[1] = 0
    assert proxy.runnable_lanes(serials, version=1) is None, "not read again"
    serials[1] = 13
    again = proxy.runnable_lanes(serials, version=2)
    assert again is not None
    assert np.flatnonzero(again).tolist() == [2]


def test_a_published_batch_is_in_the_ring_before_the_worker_is_rung() -> None:
    segment = new_worker_segment(8)
    seen: list[list[int]] = []
    proxy = WorkerProxy(0, 0, segment, lambda: seen.append(segment.sq_consumer().peek().tolist()))
    batch = send(proxy, 2, MS)
    assert seen == []
    proxy.publish(batch)
    assert seen == [[batch.record | batch.token << 32]]


def test_a_worker_is_ready_when_it_says_so(proxy: WorkerProxy) -> None:
    assert not proxy.is_ready()
    proxy.worker_segment.ready.set(1)
    assert proxy.is_ready()
