"""Rows of a stage on the CPU are divided among its idle workers, as far as that pays."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.core.layout.states import DispatchReason
from batchpool.core.scheduler.decide import NEVER_NS, Limits, WorkerView
from batchpool.core.scheduler.estimators import ServiceTime
from batchpool.core.scheduler.queue import QueueColumn
from batchpool.core.scheduler.shares import able, share_of
from tests.unit.core.scheduler.decisions import (
    FAR,
    NOW,
    Case,
    Outcome,
    cases,
    mask,
    time_of,
    waiting,
)
from tests.unit.core.scheduler.queued import MS
from tests.unit.core.scheduler.virtual import VirtualPool

SPREAD = Limits(16, 0, spreads=True)
TOKENIZER = time_of(0.3 * MS, 0.13 * MS)


def sent(n: int, workers: list[WorkerView], limits: Limits = SPREAD) -> list[tuple[int, str, int]]:
    """(worker, reason, rows) of each batch, where so many rows wait."""
    batches = Outcome(Case(waiting([NOW] * n), workers, limits)).batches
    return [(dispatch.worker, dispatch.reason.name, len(rows)) for dispatch, rows in batches]


def crew(*in_flight: int, time: ServiceTime | None = None) -> list[WorkerView]:
    return [WorkerView(number, batches, None, time) for number, batches in enumerate(in_flight)]


def test_rows_that_come_together_are_divided_among_the_idle_workers() -> None:
    assert sent(7, crew(0, 0, 0)) == [(0, "IDLE", 3), (1, "IDLE", 2), (2, "IDLE", 2)]
    assert sent(7, crew(0, 1, 0)) == [(0, "IDLE", 4), (2, "IDLE", 3)]
    assert sent(2, crew(0, 0, 0)) == [(0, "IDLE", 1), (1, "IDLE", 1)]
    assert sent(7, crew(0, 0, 0), replace(SPREAD, spreads=False)) == [(0, "IDLE", 7)]


def test_what_would_fill_a_batch_is_divided_too() -> None:
    assert sent(20, crew(0, 0, 0, 0)) == [(worker, "IDLE", 5) for worker in range(4)]
    assert sent(40, crew(0, 0))[:2] == [(0, "FULL", 16), (1, "FULL", 16)]


def test_batches_behind_others_are_full_ones() -> None:
    assert sent(20, crew(1, 1)) == [(0, "FULL", 16)]


def test_no_batch_is_so_small_that_its_fixed_cost_exceeds_the_time_of_its_rows() -> None:
    """0.3 ms a call and 0.13 ms a row: three rows."""
    assert TOKENIZER.least_share == 3
    assert [rows for *_, rows in sent(8, crew(0, 0, 0, time=TOKENIZER))] == [3, 3]
    assert [rows for *_, rows in sent(9, crew(0, 0, 0, time=TOKENIZER))] == [3, 3, 3]
    assert [rows for *_, rows in sent(30, crew(0, 0, 0, time=TOKENIZER))] == [10, 10, 10]
    assert sent(7, crew(0, 0, time=time_of(1 * MS, 0.01 * MS))) == [(0, "IDLE", 7)]


def test_small_batches_are_tried_until_it_is_known_what_a_row_takes() -> None:
    time = ServiceTime()
    assert time.least_share == 1
    for _ in range(20):
        time.took(8, 4 * MS)
    assert time.least_share == 1
    for _ in range(20):
        time.took(4, 3 * MS)
    assert time.least_share == 8


def test_where_company_costs_nothing_nothing_is_divided() -> None:
    time = ServiceTime()
    for n in (1, 8) * 20:
        time.took(n, 4 * MS)
    assert sent(8, crew(0, 0, time=time)) == [(0, "IDLE", 8)]


@pytest.mark.parametrize(("n", "idle", "share"), [(1, 1, 1), (1, 6, 1), (7, 3, 3), (6, 3, 2)])
def test_equal_shares(n: int, idle: int, share: int) -> None:
    assert share_of(n, idle, None) == share


def test_workers_that_cannot_run_the_rows_get_no_share() -> None:
    views = [WorkerView(number, 0, may) for number, may in enumerate((mask(0), mask(1), None))]
    lanes = waiting([NOW] * 4, lane=0)[0]
    assert (able(views, lanes), able(views, None)) == (2, 3)
    assert sent(4, views) == [(0, "IDLE", 2), (2, "IDLE", 2)]


@settings(max_examples=100, deadline=None)
@given(cases(), st.integers(1, 30))
def test_an_idle_worker_is_left_out_only_where_all_shares_are_as_small_as_pays(
    case: Case, most: int
) -> None:
    limits = Limits(most, 0, spreads=True)
    workers = [replace(worker, lanes=None) for worker in case.workers]
    o = Outcome(replace(case, limits=limits, workers=workers))
    before = [worker for worker in o.open if worker.in_flight == 0]
    own = {worker.number: 0 for worker in before}
    for dispatch, rows in o.batches:
        if own.get(dispatch.worker) == 0:
            own[dispatch.worker] = len(rows)
            assert dispatch.reason is not DispatchReason.FULL or len(rows) == most
    given_rows = sorted(own.values())
    times = [1 if w.time is None else w.time.least_share for w in before]
    if given_rows and given_rows[-1] - given_rows[0] > 1:
        assert given_rows[-1] <= max(times)
    if o.left and o.idle:
        assert any(o.load[worker.number] for worker in o.open)
    for worker in o.idle:
        for p in o.left:
            assert worker.time is not None
            until_ns = o.word(QueueColumn.SINCE_NS, p) + worker.time.base_ns
            assert o.case.now < until_ns, "what waits while a worker is idle is held for company"


def held(o: Outcome) -> tuple[int, int]:
    """(rows that were sent, the time of the next decision less now)."""
    wake_at_ns = o.decision.wake_at_ns
    return len(o.sent), wake_at_ns - NOW if wake_at_ns < NEVER_NS else NEVER_NS


def test_fewer_rows_than_pay_are_held_for_company_while_a_worker_is_busy() -> None:
    """0.3 ms a call: as long, or until they are three."""
    busy, one_idle = crew(1, 1, time=TOKENIZER), crew(1, 0, time=TOKENIZER)
    assert held(Outcome(Case(waiting([NOW] * 2), one_idle, SPREAD))) == (0, 0.3 * MS)
    came = NOW - MS // 10
    assert held(Outcome(Case(waiting([came, NOW]), one_idle, SPREAD))) == (0, 0.2 * MS)
    assert held(Outcome(Case(waiting([NOW] * 2), busy, SPREAD))) == (0, FAR - NOW)
    assert sent(3, one_idle) == [(1, "IDLE", 3)]


def test_rows_that_were_held_as_long_as_it_may_be_leave_as_ones_that_waited() -> None:
    came = NOW - int(0.3 * MS)
    o = Outcome(Case(waiting([came, NOW]), crew(1, 0, time=TOKENIZER), SPREAD))
    assert [(d.worker, d.reason.name, rows) for d, rows in o.batches] == [(1, "WAIT", [0, 1])]


def test_where_all_workers_are_idle_rows_leave_at_once() -> None:
    assert sent(1, crew(0, 0, time=TOKENIZER)) == [(0, "IDLE", 1)]


def test_a_worker_that_may_hang_is_no_reason_to_hold_rows() -> None:
    views = crew(1, 0, time=TOKENIZER)
    assert sent(1, [replace(views[0], closed=True), views[1]]) == [(1, "IDLE", 1)]


def test_nothing_is_held_while_draining_or_where_it_is_unknown_what_a_call_takes() -> None:
    one_idle = crew(1, 0, time=TOKENIZER)
    assert sent(1, one_idle, replace(SPREAD, draining=True)) == [(1, "DRAIN", 1)]
    assert sent(1, [one_idle[0], replace(one_idle[1], time=ServiceTime())]) == [(1, "IDLE", 1)]
    assert sent(1, [one_idle[0], replace(one_idle[1], time=None)]) == [(1, "IDLE", 1)]


def test_what_spreads_not_is_not_held() -> None:
    limits = replace(SPREAD, spreads=False)
    assert sent(1, crew(1, 0, time=TOKENIZER), limits) == [(1, "IDLE", 1)]


def test_rows_whose_own_time_is_long_are_not_held() -> None:
    """A picture that takes 5 ms and a call of 1 ms: each may leave alone."""
    assert sent(1, crew(1, 0, time=time_of(1 * MS, 5 * MS))) == [(1, "IDLE", 1)]


def test_the_time_in_earlier_stages_is_no_time_of_waiting_for_company() -> None:
    rows = waiting([NOW - 50 * MS], since=NOW)
    assert held(Outcome(Case(rows, crew(1, 0, time=TOKENIZER), SPREAD))) == (0, 0.3 * MS)


def test_a_row_is_not_held_until_it_is_too_late_to_run() -> None:
    """One row takes 0.43 ms, at the 99th percentile 0.5375; company is waited for for 0.3."""
    views = crew(1, 0, time=TOKENIZER)
    rows = waiting([NOW], deadline=NOW + 7 * MS // 10)
    assert held(Outcome(Case(rows, views, SPREAD))) == (0, 700_000 - 537_500)
    rows = waiting([NOW], deadline=NOW + MS // 2)
    o = Outcome(Case(rows, views, SPREAD))
    assert [(d.worker, d.reason.name, rows) for d, rows in o.batches] == [(1, "DEADLINE", [0])]


def test_rows_of_several_buckets_are_held_too() -> None:
    rows = waiting([NOW, NOW], bucket=[1, 2])
    limits = replace(SPREAD, bucketed=True)
    assert held(Outcome(Case(rows, crew(1, 0, time=TOKENIZER), limits))) == (0, 0.3 * MS)


def test_rows_that_come_one_by_one_share_batches_though_workers_are_idle() -> None:
    """100 rows, one each 0.2 ms, ten workers with 0.9 ms a call and 0.1 ms a row: 5 of 10 would be
    busy with single rows."""
    pool = VirtualPool(SPREAD, lambda n: int((0.9 + 0.1 * n) * MS), workers=10)
    for n in (1, 4):  # what calls take is known
        for worker in pool.workers:
            for _ in range(20):
                worker.time.took(n, (0.9 + 0.1 * n) * MS)
    names = [name for k in range(100) for name in pool.send(k * MS // 5)]
    pool.run(100 * MS)
    assert len(names) / len(pool.runs) >= 4
    assert max(pool.waited_ms(names)) <= 0.9 + 0.9 + 1.0


def test_callers_are_answered_sooner_by_workers_that_divide_their_rows() -> None:
    """16 callers that send again at once, and six workers that take 0.3 ms and 0.13 ms a row: with
    batches as large as can be one worker has all rows, and five have none."""
    of: dict[bool, list[float]] = {}
    for spreads in (False, True):
        pool = VirtualPool(
            replace(SPREAD, spreads=spreads),
            lambda n: int((0.3 + 0.13 * n) * MS),
            workers=6,
            answered=lambda pool, rows: [pool.send(0) for _ in range(rows.shape[1])] and None,
        )
        names = pool.send(0, 16)
        pool.run(200 * MS)
        of[spreads] = pool.waited_ms([name for name in pool.done_ns if name not in names])
    median = {spreads: sorted(waits)[len(waits) // 2] for spreads, waits in of.items()}
    assert median[False] >= 2.3 > 0.9 >= median[True]
