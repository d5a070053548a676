"""The decisions played through in virtual time: traffic that comes, batches that run."""

from __future__ import annotations

import random
from statistics import mean, median, quantiles

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.core.batching import Limits
from batchpool.core.lifecycle import Reason
from batchpool.core.queue import I64
from tests.unit.core.queued import MS
from tests.unit.core.virtual import VirtualPool


def sizes(pool: VirtualPool) -> list[int]:
    return [run.rows.shape[1] for run in pool.runs]


def test_sparse_traffic_waits_for_nobody_and_dense_traffic_rides_together() -> None:
    """A lone caller, then 2,000 rows a second, then a lone caller again."""
    limits = Limits(64, 200 * MS, adaptive=True, max_wait_peak_ns=200 * MS)
    pool = VirtualPool(limits, lambda n: 5 * MS + n * MS // 100)
    for _ in range(2):
        lone = []
        for _ in range(30):
            lone += pool.send(0)
            pool.run(1000 * MS)
        assert median(pool.waited_ms(lone)) == pytest.approx(5.01)
        assert max(pool.waited_ms(lone[5:])) < 6
        pool.runs.clear()
        dense = [name for i in range(2000) for name in pool.send(i * MS // 2)]
        pool.run(1100 * MS)
        assert mean(sizes(pool)[20:]) > 8
        assert max(pool.waited_ms(dense)) < 20


def test_waiting_pays() -> None:
    """With a base of 10 ms and a row every 3 ms, all wait less than where nobody waits."""
    took = []
    for limits in (Limits(64, 0), Limits(64, 50 * MS, adaptive=True)):
        pool = VirtualPool(limits, lambda n: 10 * MS + n * MS // 10)
        sent_rows = [name for i in range(400) for name in pool.send(i * 3 * MS)]
        pool.run(2000 * MS)
        took.append(mean(pool.waited_ms(sent_rows[50:])))
    assert took[1] <= took[0]


def test_callers_that_send_again_come_to_ride_together() -> None:
    """Eight of them, half out of step: not two halves that take turns for ever."""

    def again(pool: VirtualPool, rows: I64) -> None:
        for i in range(rows.shape[1]):
            pool.send(MS // 10 + i * MS // 50)

    limits = Limits(64, 50 * MS, adaptive=True)
    pool = VirtualPool(limits, lambda n: 10 * MS + n * MS // 10, answered=again)
    pool.send(0, 4)
    pool.send(3 * MS, 4)
    pool.run(2000 * MS)
    assert sizes(pool)[-20:] == [8] * 20


def test_callers_that_send_again_leave_nobody_behind_where_several_workers_run() -> None:
    """64 of them, 0.1 ms after their answer on average, and an engine of 5 ms for any number: who
    misses the others waits until some worker is free."""
    rng = random.Random(1)

    def again(pool: VirtualPool, rows: I64) -> None:
        for _ in range(rows.shape[1]):
            pool.send(MS // 20 + round(rng.expovariate(1) * MS / 20))

    limits = Limits(64, 10 * MS, adaptive=True, max_wait_peak_ns=100 * MS)
    pool = VirtualPool(limits, lambda n: 5 * MS, 4, answered=again)
    for i in range(64):
        pool.send(i * MS // 12)
    pool.run(500 * MS)
    begun = len(pool.submit_ns)
    pool.run(500 * MS)
    waited = pool.waited_ms([name for name in pool.done_ns if name >= begun])
    assert mean(waited) < 5.4, "0.2 ms more than the batch itself"
    assert quantiles(waited, n=100)[98] < 7


def test_a_bulk_sender_delays_nobody_by_more_than_the_batches_under_way() -> None:
    limits = Limits(64, 10 * MS)
    pool = VirtualPool(limits, lambda n: 10 * MS)
    pool.send(0, 10_000, flow=1)
    lone = [name for i in range(14) for name in pool.send(i * 100 * MS + 3 * MS, flow=2)]
    pool.run(2000 * MS)
    assert len(pool.done_ns) == 10_014
    assert max(pool.waited_ms(lone)) <= 30, "the one that runs, the one behind it, its own"


@settings(max_examples=30, deadline=None)
@given(
    sends=st.lists(
        st.tuples(st.integers(0, 200), st.sampled_from([1, 3, 5, 7, 8, 9, 30])), max_size=30
    ),
    policy=st.booleans(),
    workers=st.integers(1, 3),
)
def test_every_row_is_run_once_and_in_batches_that_fit(
    sends: list[tuple[int, int]], policy: bool, workers: int
) -> None:
    """Whatever the groups they come in; a group larger than a batch is several."""
    limits = Limits(8, 20 * MS, adaptive=policy, max_wait_peak_ns=50 * MS)
    pool = VirtualPool(limits, lambda n: 4 * MS + n * MS // 10, workers)
    called = [name for at_ms, n in sends for name in pool.send(at_ms * MS, n)]
    pool.run(2000 * MS)
    assert len(pool.queue) == 0
    assert max(sizes(pool), default=0) <= 8
    assert sorted(pool.done_ns) == called
    assert sum(sizes(pool)) == len(called)
    assert {run.reason for run in pool.runs} <= {Reason.FULL, Reason.WAIT, Reason.IDLE}
