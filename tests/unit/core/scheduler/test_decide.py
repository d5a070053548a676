"""The batching decision: the invariants of its docstring as properties, for every policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.core.layout.states import DispatchReason
from batchpool.core.scheduler import decide as decision_maker
from batchpool.core.scheduler.background import BACKGROUND_KEY
from batchpool.core.scheduler.decide import NEVER_NS, Limits, WorkerView
from batchpool.core.scheduler.depth import QUEUED_BEFORE_END_NS, ends_soon_at
from batchpool.core.scheduler.estimators import ServiceTime
from batchpool.core.scheduler.queue import QueueColumn
from batchpool.core.scheduler.size_buckets import joined_bucket
from tests.unit.core.scheduler.decisions import (
    LANES,
    NOW,
    Case,
    Outcome,
    cases,
    mask,
    outcomes,
    places,
    time_of,
    waiting,
)
from tests.unit.core.scheduler.queued import MS, rows_of

often = settings(max_examples=100, deadline=None)


def longest_wait_ns(o: Outcome, worker: WorkerView, rows: Sequence[int]) -> float:
    """The policy's limit of the wait of these rows for company on a worker that is idle."""
    limits, traffic, time = o.limits, o.case.traffic, o.known(worker)
    if limits.draining:
        return 0
    if limits.spreads and time is not None and any(o.load[other.number] for other in o.open):
        return time.base_ns if len(rows) < time.least_share else 0
    if not limits.adaptive:
        return limits.max_wait_ns
    if traffic is None or time is None:
        return 0
    most = o.most(rows)
    batches_per_s = len(o.open) * 1e9 / max(1.0, time.mean_ns(most))
    if traffic.rows_per_s > 0.5 * batches_per_s * most:
        return max(limits.max_wait_ns, limits.max_wait_peak_ns)
    return limits.max_wait_ns


@often
@given(outcomes())
def test_no_batch_is_too_large_and_no_row_goes_twice(o: Outcome) -> None:
    """C12: rows are counted, whatever the requests."""
    for dispatch, rows in o.batches:
        assert 0 < len(rows) <= o.cap(o.workers[dispatch.worker], rows) <= o.limits.max_batch
        assert rows == sorted(rows)
    assert len(set(o.sent)) == len(o.sent)
    assert not {*o.sent} & {*o.expired, *o.refused}
    assert not {*o.expired} & {*o.refused}


@often
@given(outcomes())
def test_only_the_late_expire_all_of_them_and_at_once(o: Outcome) -> None:
    """At its deadline a row is late. No worker needs to be there for that."""
    assert o.expired == [p for p in range(o.n) if o.word(QueueColumn.DEADLINE_NS, p) <= o.case.now]


@often
@given(outcomes())
def test_a_full_batch_never_waits_while_a_worker_is_free(o: Outcome) -> None:
    """Of no bucket, whichever is first in the order."""
    for worker in o.open:
        if o.has_room(worker):
            for rows in o.groups(worker, o.left):
                assert len(rows) < o.cap(worker, rows)


@often
@given(outcomes())
def test_nobody_waits_longer_than_the_policy_says_while_a_worker_is_idle(o: Outcome) -> None:
    """C15: for every policy."""
    for worker in o.idle:
        for rows in o.groups(worker, o.left):
            limit_ns = longest_wait_ns(o, worker, rows)
            for p in rows:
                assert o.case.now - o.word(QueueColumn.SUBMIT_NS, p) < limit_ns


@often
@given(outcomes())
def test_nobody_waits_for_company_until_it_is_too_late_to_run(o: Outcome) -> None:
    for worker in o.idle:
        time = o.known(worker)
        if time is not None:
            for rows in o.groups(worker, o.left):
                runs_ns = int(time.high_ns(o.limits.padded(len(rows))))
                for p in rows:
                    assert o.case.now < o.word(QueueColumn.DEADLINE_NS, p) - runs_ns


@often
@given(outcomes())
def test_while_draining_nobody_waits_for_company_and_nobody_is_refused(o: Outcome) -> None:
    o = Outcome(replace(o.case, limits=replace(o.limits, draining=True)))
    assert o.refused == []
    for worker in o.idle:
        assert o.may_run(worker, o.left) == []


@often
@given(outcomes())
def test_no_partial_batch_goes_to_a_busy_worker_and_none_past_the_depth(o: Outcome) -> None:
    load = {w.number: w.in_flight for w in o.case.workers}
    for dispatch, rows in o.batches:
        if len(rows) < o.cap(o.workers[dispatch.worker], rows) and not o.limits.bucketed:
            assert load[dispatch.worker] == 0
        assert load[dispatch.worker] < o.most_room(o.workers[dispatch.worker])
        load[dispatch.worker] += 1


@often
@given(outcomes())
def test_nothing_full_is_queued_behind_a_batch_that_runs_for_long_still(o: Outcome) -> None:
    """Rows that come meanwhile would wait for both."""
    load = {w.number: w.in_flight for w in o.case.workers}
    for dispatch, _ in o.batches:
        worker = o.workers[dispatch.worker]
        if load[dispatch.worker] == worker.in_flight > 0:
            assert worker.free_at_ns - o.case.now <= QUEUED_BEFORE_END_NS
        load[dispatch.worker] += 1


@often
@given(outcomes())
def test_a_worker_gets_rows_of_the_lanes_it_has_acknowledged_only(o: Outcome) -> None:
    for dispatch, rows in o.batches:
        assert o.may_run(o.workers[dispatch.worker], rows) == rows
        assert not o.workers[dispatch.worker].closed


@often
@given(outcomes())
def test_in_the_order_of_service_among_the_rows_of_a_bucket_that_a_worker_may_run(
    o: Outcome,
) -> None:
    gone = {*o.expired, *o.refused}
    for dispatch, rows in o.batches:
        groups = o.groups(o.workers[dispatch.worker], [p for p in range(o.n) if p not in gone])
        for group in groups:
            mine = [p for p in group if p in rows]
            assert mine == group[: len(mine)]
        gone |= set(rows)


@often
@given(outcomes())
def test_every_batch_says_why_it_left(o: Outcome) -> None:
    """And takes all that may ride, up to the cap."""
    gone, limits = {*o.expired, *o.refused}, o.limits
    last = {w.number: w.last_bucket for w in o.case.workers}
    for dispatch, rows in o.batches:
        worker = o.workers[dispatch.worker]
        groups = o.groups(worker, [p for p in range(o.n) if p not in gone])
        joined = [group for group in groups if group[0] in rows]
        gone |= set(rows)
        before, last[worker.number] = last[worker.number], joined_bucket(o.buckets(rows))
        if len(joined) > 1:  # any of them may have been due
            assert limits.row_elements is not None
            assert rows == sorted(p for group in joined for p in group)
            assert 2 * sum(map(len, groups)) <= limits.max_batch
            assert dispatch.reason is not DispatchReason.FULL
            continue
        (mine,) = joined
        theirs = [o.buckets(group)[0] for group in groups if group is not mine]
        if dispatch.reason is DispatchReason.IDLE and before in theirs:
            assert rows == mine[: len(rows)]  # it may go before a batch of that bucket
            assert limits.row_elements is not None or rows == mine[: o.cap(worker, rows)]
            continue
        assert rows == mine[: o.cap(worker, rows)]
        waited_ns = o.case.now - min(o.word(QueueColumn.SUBMIT_NS, p) for p in mine)
        assert (dispatch.reason is DispatchReason.FULL) == (len(mine) >= o.cap(worker, rows))
        if dispatch.reason is DispatchReason.FULL:
            continue
        assert (dispatch.reason is DispatchReason.DRAIN) == limits.draining
        if dispatch.reason is DispatchReason.DEADLINE:
            time = o.known(worker)
            assert time is not None
            runs_ns = int(time.high_ns(limits.padded(len(mine))))
            first_ns = min(o.word(QueueColumn.DEADLINE_NS, p) for p in mine)
            assert o.case.now >= first_ns - runs_ns
        elif not limits.draining and not limits.adaptive:
            assert dispatch.reason is (
                DispatchReason.WAIT if limits.max_wait_ns else DispatchReason.IDLE
            )
            assert waited_ns >= limits.max_wait_ns


@often
@given(outcomes())
def test_it_wakes_in_time_for_what_it_left_and_never_in_the_past(o: Outcome) -> None:
    """One nanosecond before there was nothing to do."""
    wake = o.decision.wake_at_ns
    assert wake > o.case.now
    for p in o.left:
        assert wake <= o.word(QueueColumn.DEADLINE_NS, p)
    if wake < NEVER_NS:
        before = Outcome(replace(o.rest(), now=wake - 1))
        assert before.expired == []
        if not before.refused:
            assert before.batches == []


@often
@given(outcomes(target=False))
def test_it_does_not_wake_for_nothing(o: Outcome) -> None:
    """Of what is left something leaves or expires then, or a worker may get a partial batch from
    then on, if one is due."""
    rest = o.rest()
    np.minimum(rest.queue[QueueColumn.SUBMIT_NS], rest.now, out=rest.queue[QueueColumn.SUBMIT_NS])
    rest = Outcome(rest).rest()
    wake = rest.decide().wake_at_ns
    assert (wake == NEVER_NS) == (rest.queue.shape[1] == 0)
    if wake < NEVER_NS:
        at_wake = Outcome(replace(rest, now=wake))
        soon = [
            ends_soon_at(w.free_at_ns, w.elements_time, rest.limits)
            for w in rest.workers
            if w.in_flight == 1 and rest.limits.row_elements is not None
        ]
        assert at_wake.batches or at_wake.expired or wake in soon


@pytest.mark.interpreted
@often
@given(cases(target=False))
def test_what_is_decided_in_short_is_what_would_be_decided_at_length(case: Case) -> None:
    """Where all workers are busy, nobody looks at the rows one bucket after the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decision_maker, "all_busy_until", lambda *_: 0)
        at_length = Outcome(case)
    in_short = Outcome(case)
    assert in_short.told()[:3] == at_length.told()[:3]
    assert in_short.decision.wake_at_ns <= at_length.decision.wake_at_ns


@often
@given(outcomes())
def test_deciding_again_at_once_changes_nothing(o: Outcome) -> None:
    again = Outcome(o.rest())
    assert (again.batches, again.expired) == ([], [])


@often
@given(outcomes())
def test_the_same_input_gives_the_same_output_and_is_not_changed(o: Outcome) -> None:
    before = o.case.queue.copy()
    assert Outcome(o.case).told() == o.told()
    assert (o.case.queue == before).all()


def on_both_roads(case: Case) -> tuple[Outcome, Outcome]:
    """Without masks and buckets; and with masks that allow all and one bucket for all."""
    queue = case.queue.copy()
    queue[QueueColumn.BUCKET] = 5
    plain = replace(
        case,
        queue=queue,
        limits=replace(case.limits, bucketed=False, bucket_rows=None),
        workers=[replace(w, lanes=None) for w in case.workers],
    )
    general = replace(
        plain,
        limits=replace(case.limits, bucketed=True, bucket_rows=None),
        workers=[replace(w, lanes=mask(*range(LANES))) for w in case.workers],
    )
    return Outcome(plain), Outcome(general)


@often
@given(cases(alike=False), st.booleans(), st.booleans())
def test_few_rows_are_decided_upon_as_many_are(case: Case, beside: bool, background: bool) -> None:
    """By plain numbers, and by arrays."""
    if beside:  # the rows behind the first half are in the background
        half = case.queue.shape[1] // 2
        case.queue[QueueColumn.KEY, half if background else 0 :] = BACKGROUND_KEY
    few, many = (replace(case, listed_most=most).decide(beside=beside) for most in (64, 0))
    assert few.wake_at_ns == many.wake_at_ns
    assert few.expire.tolist() == many.expire.tolist()
    assert few.refuse.tolist() == many.refuse.tolist()
    sent = [
        [(d.worker, d.reason, places(d, case.queue.shape[1])) for d in decision.dispatch]
        for decision in (few, many)
    ]
    assert sent[0] == sent[1]


@often
@given(cases())
def test_the_common_road_and_the_general_one_are_the_same_decision(case: Case) -> None:
    plain, general = on_both_roads(case)
    assert plain.told() == general.told()


@often
@given(cases(alike=False))
def test_the_two_roads_agree_where_workers_are_not_equally_fast(case: Case) -> None:
    plain, general = on_both_roads(case)
    assert plain.told() == general.told()


@often
@given(outcomes(alike=False))
def test_full_batches_do_not_wait_either_where_workers_are_not_equally_fast(o: Outcome) -> None:
    for worker in o.open:
        if o.has_room(worker):
            for rows in o.groups(worker, o.left):
                assert len(rows) < o.cap(worker, rows)


def test_nothing_stands_behind_a_batch_of_which_nobody_knows_how_long_it_takes() -> None:
    """The first one of a worker may hang, and another worker is free sooner, whoever that is."""
    queue, limits = waiting([NOW] * 8), Limits(4, 0)
    times = (ServiceTime(), time_of(MS, 0))
    for mine, others in zip(times, reversed(times), strict=True):
        crew = [WorkerView(0, 1, None, mine, NOW), WorkerView(1, 1, None, others, NOW + 20 * MS)]
        known = 0 if mine.known else 1
        o = Outcome(Case(queue, crew, limits))
        assert [(d.worker, rows) for d, rows in o.batches][:1] == [(known, [0, 1, 2, 3])]
        assert o.load[1 - known] == 1
    idle = Outcome(Case(queue, [WorkerView(0, 0, None, ServiceTime(), NOW)], limits))
    assert [rows for _, rows in idle.batches] == [[0, 1, 2, 3]]


def test_a_full_batch_waits_for_the_last_moments_of_a_long_one() -> None:
    """A batch of 64 long texts takes a CPU seconds: a caller who comes within it would wait for
    that one, for the one queued behind it, and then for its own."""
    time, limits = time_of(2000 * MS, 0), Limits(4, 0)

    def decided(rows: int, worker: WorkerView, now: int = NOW) -> tuple[list[list[int]], int]:
        o = Outcome(Case(waiting([NOW] * rows), [worker], limits, None, now))
        return [rows for _, rows in o.batches], o.decision.wake_at_ns

    queued_at = NOW + 2000 * MS - QUEUED_BEFORE_END_NS
    assert decided(8, WorkerView(0, 0, None, time)) == ([[0, 1, 2, 3]], queued_at)
    runs = WorkerView(0, 1, None, time, free_at_ns=NOW + 2000 * MS)
    assert decided(4, runs, queued_at - 1) == ([], queued_at)
    assert decided(4, runs, queued_at)[0] == [[0, 1, 2, 3]]


def test_an_empty_queue_wakes_nobody() -> None:
    decision = Case(rows_of(0), [WorkerView(0, 0)], Limits(4, 0)).decide()
    assert decision.dispatch == ()
    assert (decision.expire.tolist(), decision.refuse.tolist()) == ([], [])
    assert decision.wake_at_ns == NEVER_NS
