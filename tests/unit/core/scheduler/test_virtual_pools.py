"""The decisions played through in virtual time: traffic that comes, batches that run."""

from __future__ import annotations

import itertools
import random
from statistics import mean, median, quantiles

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.core.layout.states import DispatchReason
from batchpool.core.scheduler.decide import Limits
from batchpool.core.scheduler.depth import QUEUED_BEFORE_END_NS
from batchpool.core.scheduler.queue import I64
from tests.unit.core.scheduler.queued import MS, names
from tests.unit.core.scheduler.virtual import VirtualPool


def sizes(pool: VirtualPool) -> list[int]:
    return [run.rows.shape[1] for run in pool.runs]


def test_sparse_traffic_waits_for_nobody_and_dense_traffic_rides_together() -> None:
    """C15: A lone caller, then 2,000 rows a second, then a lone caller again."""
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


@pytest.mark.parametrize(
    ("workers", "slow", "flows"), [(1, False, 1), (1, True, 3), (4, False, 3), (4, True, 1)]
)
def test_a_lone_row_in_a_quiet_pool_leaves_at_once_whatever_came_before(
    workers: int, slow: bool, flows: int
) -> None:
    """A flood, a batch that takes 2 s, then a row now and then, of one caller or of several."""
    limits = Limits(64, 10 * MS, adaptive=True, max_wait_peak_ns=100 * MS)
    slow_ns = 0
    pool = VirtualPool(limits, lambda n: 5 * MS + n * MS // 20 + slow_ns, workers)
    for i in range(2000):
        pool.send(i * MS // 10, flow=i % flows)
    pool.run(1000 * MS)
    if slow:
        slow_ns = 2000 * MS
        pool.send(0, 20)
        pool.run(2500 * MS)
        slow_ns = 0
    lone = []
    for i, quiet_ms in enumerate([20_000, 1_000, 300, 60, 60, 1_000]):
        pool.run(quiet_ms * MS)
        lone += pool.send(0, flow=i % flows)
    pool.run(100 * MS)
    assert pool.waited_ms(lone) == pytest.approx([5.05] * len(lone))
    assert {run.reason for run in pool.runs[-len(lone) :]} == {DispatchReason.IDLE}


def test_a_row_beside_a_flood_of_slow_rows_waits_for_the_batch_that_runs_and_for_its_own() -> None:
    """C67: not for a third one, which was queued before it came; and the worker is never idle."""
    limits = Limits(64, 10 * MS, adaptive=True, max_wait_peak_ns=100 * MS)
    batch_ns = 64 * 2 * MS
    pool = VirtualPool(limits, lambda n: n * 2 * MS)
    pool.send(0, 64 * 100, flow=1)
    pool.run(5 * batch_ns)
    begun, lone = len(pool.runs), []
    for part in range(1, 20):
        lone += pool.send(part * batch_ns // 20, flow=2)
        pool.run(4 * batch_ns)
    assert max(pool.waited_ms(lone)) <= (2 * batch_ns + QUEUED_BEFORE_END_NS) / MS
    for before, after in itertools.pairwise(pool.runs[begun - 1 :]):
        assert after.began_ns == before.done_ns


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
    """C67: 10,000 rows against one each 100 ms."""
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
    assert {run.reason for run in pool.runs} <= {
        DispatchReason.FULL,
        DispatchReason.WAIT,
        DispatchReason.IDLE,
    }


def fifo_waits_ms(sends: list[tuple[int, int]], batch_ns: int, most: int) -> list[float]:
    """The wait of each row in one line before one worker, first come, first served."""
    came = [at_ns for at_ns, n in sends for _ in range(n)]
    waits, free_ns, at = [], 0, 0
    while at < len(came):
        begins_ns = max(free_ns, came[at])
        group = [ns for ns in came[at : at + most] if ns <= begins_ns]
        free_ns = begins_ns + batch_ns
        waits += [(free_ns - ns) / MS for ns in group]
        at += len(group)
    return waits


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_under_a_steady_load_of_mixed_sizes_nobody_waits_many_times_longer_than_in_a_line(
    seed: int, adaptive: bool
) -> None:
    """C66: requests of 1 to 20 rows at 90 % of what the worker can do; an odd-shaped one now and
    then rides with nobody, and must not wait longer for that than for a turn of its own."""
    rng = random.Random(seed)
    limits = Limits(8, 2 * MS, adaptive=adaptive, max_wait_peak_ns=10 * MS, bucketed=True)
    pool = VirtualPool(limits, lambda n: 4 * MS)
    sends, now_ns = [], 0
    for _ in range(200):
        now_ns += round(rng.expovariate(1) * 7 * MS)
        sends.append((now_ns, rng.choice([1, 2, 3, 5, 20])))
    common = [name for at_ns, n in sends for name in pool.send(at_ns, n, bucket=1)]
    odd = [name for at_ns, _ in sends[::20] for name in pool.send(at_ns + 1, bucket=2)]
    pool.run(now_ns + 2000 * MS)
    assert len(pool.done_ns) == len(common) + len(odd)
    line = fifo_waits_ms(sorted([*sends, *[(at_ns + 1, 8) for at_ns, _ in sends[::20]]]), 4 * MS, 8)
    assert max(pool.waited_ms(common)) < 3 * max(line)
    assert max(pool.waited_ms(odd)) < 3 * max(line)
    began = {name: run.began_ns for run in pool.runs for name in names(run.rows)}
    order = [began[name] for name in common]
    assert order == sorted(order), "first come, first served"
