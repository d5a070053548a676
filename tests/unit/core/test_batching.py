"""The batching decision: the invariants of its docstring as properties, and examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.core.batching import NEVER_NS, Decision, Dispatch, Limits, Worker, decide
from batchpool.core.lifecycle import Reason
from batchpool.core.queue import FIELDS, I64, Field

MS = 1_000_000
NOW = 1_000 * MS


def queue_of(
    submit: Sequence[int], deadline: Sequence[int] | None = None, lane: Sequence[int] | None = None
) -> I64:
    """Rows by their times; slot = position, so that a row can be told."""
    n = len(submit)
    rows = np.zeros((FIELDS, n), dtype=np.int64)
    rows[Field.SLOT] = np.arange(n)
    rows[Field.SUBMIT_NS] = submit
    rows[Field.DEADLINE_NS] = [NOW + 60_000 * MS] * n if deadline is None else deadline
    rows[Field.LANE] = [0] * n if lane is None else lane
    return rows


def positions(dispatch: Dispatch, n: int) -> list[int]:
    everywhere: list[int] = np.arange(n)[dispatch.rows].tolist()
    return everywhere


# -- any input ------------------------------------------------------------------------------

LANES = 3


@dataclass(frozen=True)
class Case:
    now: int
    queue: I64
    workers: list[Worker]
    limits: Limits


def mask(bits: int | None) -> npt.NDArray[np.bool_] | None:
    return None if bits is None else np.array([bool(bits >> i & 1) for i in range(LANES)])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    n = draw(st.integers(0, 20))
    times = st.integers(-50, 5)
    submit = [NOW + draw(times) * MS for _ in range(n)]
    if draw(st.booleans()):
        submit.sort()
    # Often no deadline near: the common road of the decision.
    near = draw(st.booleans())
    deadline = [NOW + (draw(st.integers(-3, 4)) if near else 1000) * MS for _ in range(n)]
    lane = [draw(st.integers(0, LANES - 1)) for _ in range(n)]
    masks = st.none() if draw(st.booleans()) else st.none() | st.integers(0, 2**LANES - 1)
    workers = [
        Worker(number, draw(st.integers(0, 3)), mask(draw(masks)))
        for number in draw(st.lists(st.integers(0, 9), max_size=3, unique=True))
    ]
    limits = Limits(
        draw(st.integers(1, 6)),
        draw(st.integers(0, 40)) * MS,
        draw(st.integers(1, 3)),
        draw(st.booleans()),
    )
    return Case(NOW, queue_of(submit, deadline, lane), workers, limits)


class Outcome:
    """A decision, and what is left when it was carried out."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.n = case.queue.shape[1]
        self.decision: Decision = decide(case.now, case.queue, case.workers, case.limits)
        self.batches = [(d, positions(d, self.n)) for d in self.decision.dispatch]
        self.sent = [p for _, rows in self.batches for p in rows]
        self.expired: list[int] = self.decision.expire.tolist()
        self.left = [p for p in range(self.n) if p not in {*self.sent, *self.expired}]
        self.load = {w.number: w.in_flight for w in case.workers}
        for dispatch, _ in self.batches:
            self.load[dispatch.worker] += 1

    def may_run(self, worker: Worker, among: Sequence[int]) -> list[int]:
        if worker.lanes is None:
            return list(among)
        return [p for p in among if worker.lanes[self.case.queue[Field.LANE, p]]]


decisions = cases().map(Outcome)
often = settings(max_examples=300, deadline=None)


@often
@given(decisions)
def test_no_batch_is_too_large_and_no_row_goes_twice(o: Outcome) -> None:
    assert all(0 < len(rows) <= o.case.limits.max_batch for _, rows in o.batches)
    assert len(set(o.sent)) == len(o.sent)
    assert not set(o.sent) & set(o.expired)


@often
@given(decisions)
def test_only_the_late_expire_all_of_them_and_at_once(o: Outcome) -> None:
    """At its deadline a row is late. No worker needs to be there for that."""
    late = [p for p in range(o.n) if o.case.queue[Field.DEADLINE_NS, p] <= o.case.now]
    assert o.expired == late


@often
@given(decisions)
def test_a_full_batch_never_waits_while_a_worker_is_free(o: Outcome) -> None:
    for worker in o.case.workers:
        if o.load[worker.number] < o.case.limits.depth:
            assert len(o.may_run(worker, o.left)) < o.case.limits.max_batch


@often
@given(decisions)
def test_nobody_waits_longer_than_max_wait_while_a_worker_is_idle(o: Outcome) -> None:
    for worker in o.case.workers:
        if o.load[worker.number] == 0:
            for p in o.may_run(worker, o.left):
                waited = o.case.now - int(o.case.queue[Field.SUBMIT_NS, p])
                assert waited < o.case.limits.max_wait_ns


@often
@given(decisions)
def test_while_draining_nobody_waits_for_company(o: Outcome) -> None:
    if o.case.limits.draining:
        for worker in o.case.workers:
            assert o.load[worker.number] > 0 or not o.may_run(worker, o.left)


@often
@given(decisions)
def test_no_partial_batch_goes_to_a_busy_worker_and_none_past_the_depth(o: Outcome) -> None:
    load = {w.number: w.in_flight for w in o.case.workers}
    for dispatch, rows in o.batches:
        if len(rows) < o.case.limits.max_batch:
            assert load[dispatch.worker] == 0
        assert load[dispatch.worker] < o.case.limits.depth
        load[dispatch.worker] += 1


@often
@given(decisions)
def test_a_worker_gets_rows_of_the_lanes_it_has_acknowledged_only(o: Outcome) -> None:
    workers = {w.number: w for w in o.case.workers}
    for dispatch, rows in o.batches:
        assert o.may_run(workers[dispatch.worker], rows) == rows


@often
@given(decisions)
def test_first_in_first_out_among_the_rows_a_worker_may_run(o: Outcome) -> None:
    workers = {w.number: w for w in o.case.workers}
    gone: set[int] = set(o.expired)
    for dispatch, rows in o.batches:
        waiting = [p for p in range(o.n) if p not in gone]
        assert rows == o.may_run(workers[dispatch.worker], waiting)[: len(rows)]
        gone |= set(rows)


@often
@given(decisions)
def test_every_batch_says_why_it_left(o: Outcome) -> None:
    gone: set[int] = set(o.expired)
    workers = {w.number: w for w in o.case.workers}
    limits = o.case.limits
    for dispatch, rows in o.batches:
        mine = o.may_run(workers[dispatch.worker], [p for p in range(o.n) if p not in gone])
        oldest = min(int(o.case.queue[Field.SUBMIT_NS, p]) for p in mine)
        if len(mine) >= limits.max_batch:
            assert dispatch.reason is Reason.FULL
            assert len(rows) == limits.max_batch
        elif limits.draining:
            assert dispatch.reason is Reason.DRAIN
        else:
            assert dispatch.reason is (Reason.WAIT if limits.max_wait_ns else Reason.IDLE)
            assert o.case.now - oldest >= limits.max_wait_ns
        gone |= set(rows)


@often
@given(decisions)
def test_it_wakes_in_time_for_what_it_left_and_never_in_the_past(o: Outcome) -> None:
    wake = o.decision.wake_at_ns
    assert wake > o.case.now
    for p in o.left:
        assert wake <= o.case.queue[Field.DEADLINE_NS, p]
    for worker in o.case.workers:
        if o.load[worker.number] == 0:
            for p in o.may_run(worker, o.left):
                due = int(o.case.queue[Field.SUBMIT_NS, p]) + o.case.limits.max_wait_ns
                assert wake <= due


@often
@given(decisions)
def test_deciding_again_at_once_changes_nothing(o: Outcome) -> None:
    rest = o.case.queue[:, o.left]
    workers = [replace(w, in_flight=o.load[w.number]) for w in o.case.workers]
    again = decide(o.case.now, rest, workers, o.case.limits)
    assert again.dispatch == ()
    assert again.expire.tolist() == []


@often
@given(decisions)
def test_the_same_input_gives_the_same_output_and_is_not_changed(o: Outcome) -> None:
    before = o.case.queue.copy()
    again = Outcome(o.case)
    assert [(d.worker, d.reason, rows) for d, rows in again.batches] == [
        (d.worker, d.reason, rows) for d, rows in o.batches
    ]
    assert (again.expired, again.decision.wake_at_ns) == (o.expired, o.decision.wake_at_ns)
    assert (o.case.queue == before).all()


@often
@given(decisions)
def test_masks_that_allow_all_are_like_no_masks(o: Outcome) -> None:
    """The common road and the general one are the same decision."""
    workers = [replace(w, lanes=None) for w in o.case.workers]
    masked = [replace(w, lanes=np.ones(LANES, dtype=bool)) for w in o.case.workers]
    plain = Outcome(replace(o.case, workers=workers))
    general = Outcome(replace(o.case, workers=masked))
    assert [(d.worker, d.reason, rows) for d, rows in plain.batches] == [
        (d.worker, d.reason, rows) for d, rows in general.batches
    ]
    assert plain.expired == general.expired
    assert plain.decision.wake_at_ns == general.decision.wake_at_ns


# -- examples -------------------------------------------------------------------------------

FOUR = Limits(max_batch=4, max_wait_ns=5000 * MS)
IDLE = [Worker(0, 0)]
BUSY = [Worker(0, 1)]


def outcome(
    submit: Sequence[int], workers: list[Worker], limits: Limits = FOUR, now: int = NOW
) -> Outcome:
    return Outcome(Case(now, queue_of(submit), workers, limits))


def sent(o: Outcome) -> list[tuple[int, str, list[int]]]:
    return [(d.worker, d.reason.name, rows) for d, rows in o.batches]


def test_exactly_full_starts_at_once() -> None:
    assert sent(outcome([NOW] * 4, IDLE)) == [(0, "FULL", [0, 1, 2, 3])]
    assert sent(outcome([NOW] * 3, IDLE)) == []


def test_a_partial_batch_starts_at_exactly_max_wait_from_submission() -> None:
    submit = [NOW, NOW + 100 * MS, NOW + 200 * MS]
    assert outcome(submit, IDLE).decision.wake_at_ns == NOW + 5000 * MS
    assert sent(outcome(submit, IDLE, now=NOW + 5000 * MS - 1)) == []
    assert sent(outcome(submit, IDLE, now=NOW + 5000 * MS)) == [(0, "WAIT", [0, 1, 2])]


def test_the_wait_counts_while_the_only_worker_is_busy() -> None:
    """A batch of 3 s runs; one request comes at its start. It may not wait 3 s and then 5 s."""
    submit = [NOW]
    for later in (1, 3000, 5000, 8000):
        busy = outcome(submit, BUSY, now=NOW + later * MS)
        assert sent(busy) == []
        assert busy.decision.wake_at_ns == NOW + 60_000 * MS, "only the deadline wakes it"
    assert sent(outcome(submit, IDLE, now=NOW + 3000 * MS)) == []
    assert outcome(submit, IDLE, now=NOW + 3000 * MS).decision.wake_at_ns == NOW + 5000 * MS
    assert sent(outcome(submit, IDLE, now=NOW + 6000 * MS)) == [(0, "WAIT", [0])]


def test_with_a_second_idle_worker_it_is_the_idle_one_that_runs() -> None:
    both = [Worker(0, 1), Worker(1, 0)]
    assert sent(outcome([NOW], both, now=NOW + 5000 * MS)) == [(1, "WAIT", [0])]
    assert sent(outcome([NOW] * 4, both)) == [(1, "FULL", [0, 1, 2, 3])]


def test_a_full_batch_may_queue_behind_the_one_that_runs_up_to_the_depth() -> None:
    limits = replace(FOUR, depth=2)
    assert sent(outcome([NOW] * 9, IDLE, limits)) == [
        (0, "FULL", [0, 1, 2, 3]),
        (0, "FULL", [4, 5, 6, 7]),
    ]
    assert sent(outcome([NOW] * 4, [Worker(0, 2)], limits)) == []
    assert sent(outcome([NOW] * 4, BUSY, replace(FOUR, depth=1))) == []


def test_batches_go_round_the_workers() -> None:
    o = outcome([NOW] * 13, [Worker(5, 0), Worker(2, 0)])
    assert sent(o) == [
        (2, "FULL", [0, 1, 2, 3]),
        (5, "FULL", [4, 5, 6, 7]),
        (2, "FULL", [8, 9, 10, 11]),
    ]
    assert o.left == [12]


def test_no_wait_means_at_once_when_idle_and_company_while_busy() -> None:
    limits = replace(FOUR, max_wait_ns=0)
    assert sent(outcome([NOW], IDLE, limits)) == [(0, "IDLE", [0])]
    assert sent(outcome([NOW] * 3, BUSY, limits)) == []


def test_draining_lets_a_partial_batch_go() -> None:
    limits = replace(FOUR, draining=True)
    assert sent(outcome([NOW], IDLE, limits)) == [(0, "DRAIN", [0])]
    assert sent(outcome([NOW] * 4, IDLE, limits)) == [(0, "FULL", [0, 1, 2, 3])]


def test_a_row_at_its_deadline_is_late_and_one_before_is_not() -> None:
    queue = queue_of([NOW - 9] * 3, [NOW - 1, NOW, NOW + 1])
    decision = decide(NOW, queue, IDLE, replace(FOUR, max_wait_ns=0))
    assert decision.expire.tolist() == [0, 1]
    assert [d.rows.tolist() for d in decision.dispatch] == [[2]]


def test_expiry_needs_no_worker_and_wakes_in_time() -> None:
    queue = queue_of([NOW] * 2, [NOW + 7 * MS, NOW + 3 * MS])
    decision = decide(NOW, queue, [], FOUR)
    assert (decision.dispatch, decision.expire.tolist()) == ((), [])
    assert decision.wake_at_ns == NOW + 3 * MS
    later = decide(NOW + 3 * MS, queue, [], FOUR)
    assert later.expire.tolist() == [1]
    assert later.wake_at_ns == NOW + 7 * MS
    last = decide(NOW + 7 * MS, queue, [], FOUR)
    assert (last.expire.tolist(), last.wake_at_ns) == ([0, 1], NEVER_NS)


def test_an_empty_queue_wakes_nobody() -> None:
    decision = decide(NOW, queue_of([]), IDLE, FOUR)
    assert (decision.dispatch, decision.expire.tolist()) == ((), [])
    assert decision.wake_at_ns == NEVER_NS


def test_a_worker_that_lacks_a_lane_gets_the_rows_of_the_others() -> None:
    queue = queue_of([NOW - 5000 * MS] * 4, lane=[0, 1, 0, 2])
    only_two = Worker(0, 0, mask(0b100))
    decision = decide(NOW, queue, [only_two], FOUR)
    assert [positions(d, 4) for d in decision.dispatch] == [[3]]
    everything = decide(NOW, queue, [only_two, Worker(1, 0)], FOUR)
    assert {d.worker: positions(d, 4) for d in everything.dispatch} == {0: [3], 1: [0, 1, 2]}


@pytest.mark.parametrize("rows", [1, 64, 4096])
def test_a_batch_from_the_front_is_a_slice(rows: int) -> None:
    """Taking a slice moves no memory: the common case must stay on that road."""
    decision = decide(NOW, queue_of([NOW] * rows), IDLE, Limits(64, 0))
    assert all(isinstance(d.rows, slice) for d in decision.dispatch)
    assert decision.dispatch[0].rows == slice(0, min(rows, 64))
