"""Which rows of a generator join which worker: the invariants of the module as properties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.core.scheduler.decision import Decision
from batchpool.core.scheduler.limits import NEVER_NS
from batchpool.core.scheduler.queue import I64, QueueColumn
from batchpool.core.scheduler.seating import SequenceWorker, seat
from tests.unit.core.scheduler.queued import rows_of

NOW = 1000
LANES = 3
often = settings(max_examples=200, deadline=None)


@dataclass(frozen=True)
class Case:
    """A decision's input, and the decision."""

    queue: I64
    workers: tuple[SequenceWorker, ...]
    settled: bool

    @property
    def decision(self) -> Decision:
        return seat(NOW, self.queue, self.workers, self.settled)

    def word(self, field: int, at: int) -> int:
        return int(self.queue[field, at])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    n = draw(st.integers(0, 8))
    few = st.lists(st.integers(0, 9), min_size=n, max_size=n)
    lanes, tokens, near = draw(few), draw(few), draw(few)
    queue = rows_of(
        n,
        lane=[lane % LANES for lane in lanes],
        bucket=[1 + size for size in tokens],
        deadline=[NOW + offset - 1 if offset < 4 else NEVER_NS for offset in near],
    )
    return Case(queue, tuple(draw(workers())), draw(st.booleans()))


@st.composite
def workers(draw: st.DrawFn) -> list[SequenceWorker]:
    found = []
    for number in draw(st.sampled_from([(0,), (), (2, 1), (0, 5, 3)])):
        sequences, kv_tokens = draw(st.integers(1, 4)), draw(st.sampled_from([0, 0, 6, 9, 14]))
        lanes = draw(st.sampled_from([None, None, (0,), (1, 2), ()]))
        found.append(
            SequenceWorker(
                number,
                draw(st.integers(0, sequences)),
                sequences,
                draw(st.integers(0, kv_tokens or 20)),
                kv_tokens,
                None if lanes is None else np.isin(np.arange(LANES), lanes),
                draw(st.sampled_from([False, False, False, True])),
            )
        )
    return found


def sent(decision: Decision) -> list[tuple[int, int]]:
    """The (row, worker) pairs of a decision, in the order of the rows."""
    pairs = [(int(row), each.worker) for each in decision.dispatch for row in each.rows]
    return sorted(pairs)


def after(case: Case, taken: Sequence[tuple[int, int]]) -> dict[int, SequenceWorker]:
    """The workers once these rows have joined."""
    found = {worker.number: worker for worker in case.workers}
    for row, number in taken:
        worker = found[number]
        reserved = worker.reserved + case.word(QueueColumn.BUCKET, row)
        found[number] = replace(worker, running=worker.running + 1, reserved=reserved)
    return found


def may_run(worker: SequenceWorker, case: Case, row: int) -> bool:
    lane, tokens = case.word(QueueColumn.LANE, row), case.word(QueueColumn.BUCKET, row)
    mapped = worker.lanes is None or bool(worker.lanes[lane])
    return not worker.closed and mapped and worker.may_ever_run(tokens)


def has_place(worker: SequenceWorker, tokens: int) -> bool:
    fits = worker.kv_tokens == 0 or worker.reserved + tokens <= worker.kv_tokens
    return worker.running < worker.sequences and fits


@often
@given(cases())
def test_no_worker_has_more_than_it_said_and_no_row_goes_twice(case: Case) -> None:
    taken = sent(case.decision)
    rows = [row for row, _ in taken]
    assert len(set(rows)) == len(rows)
    before = {worker.number: worker for worker in case.workers}
    for number, worker in after(case, taken).items():
        assert worker.running <= worker.sequences
        if worker.kv_tokens and worker != before[number]:
            assert worker.reserved <= worker.kv_tokens


@often
@given(cases())
def test_rows_go_to_open_workers_that_have_their_lanes(case: Case) -> None:
    by_number = {worker.number: worker for worker in case.workers}
    for row, number in sent(case.decision):
        assert may_run(by_number[number], case, row)


@often
@given(cases())
def test_the_late_expire_all_of_them_and_nobody_else(case: Case) -> None:
    decision, n = case.decision, case.queue.shape[1]
    late = [row for row in range(n) if case.word(QueueColumn.DEADLINE_NS, row) <= NOW]
    assert decision.expire.tolist() == late
    gone = {*late, *(row for row, _ in sent(decision)), *decision.refuse.tolist()}
    assert len(gone) == len(late) + len(sent(decision)) + len(decision.refuse)
    waiting = [case.word(QueueColumn.DEADLINE_NS, r) for r in range(n) if r not in gone]
    assert NOW < decision.wake_at_ns <= min(waiting, default=NEVER_NS)


@often
@given(cases())
def test_a_row_is_refused_if_no_worker_can_ever_hold_it(case: Case) -> None:
    for row in range(case.queue.shape[1]):
        tokens = case.word(QueueColumn.BUCKET, row)
        hopeless = bool(case.workers) and not any(w.may_ever_run(tokens) for w in case.workers)
        late = case.word(QueueColumn.DEADLINE_NS, row) <= NOW
        assert (row in case.decision.refuse) == (hopeless and case.settled and not late)


@often
@given(cases())
def test_a_row_with_a_place_waits_only_for_workers_that_earlier_rows_hold(case: Case) -> None:
    """Each row that waits for tokens holds one worker, the one with the most of them left."""
    decision = case.decision
    gone = {*decision.expire.tolist(), *decision.refuse.tolist()}
    taken, held = dict(sent(decision)), set[int]()
    now = {worker.number: worker for worker in case.workers}
    for row in range(case.queue.shape[1]):
        if row in gone or not any(
            w.running < w.sequences and not w.closed and n not in held for n, w in now.items()
        ):
            continue
        tokens = case.word(QueueColumn.BUCKET, row)
        able = [n for n, w in now.items() if n not in held and may_run(w, case, row)]
        free = [n for n in able if has_place(now[n], tokens)]
        if free:
            assert taken[row] in free
            assert now[taken[row]].running == min(now[n].running for n in free)
            now = after(case, [(r, n) for r, n in taken.items() if r <= row])
        else:
            assert row not in taken
            left = {n: (now[n].kv_tokens or 10**9) - now[n].reserved for n in able}
            held.update(sorted(able, key=lambda n: (-left[n], n))[:1])


@often
@given(cases())
def test_no_row_overtakes_one_of_its_lane_that_needs_no_more(case: Case) -> None:
    decision = case.decision
    taken = {row for row, _ in sent(decision)}
    gone = taken | {*decision.expire.tolist(), *decision.refuse.tolist()}
    for row in taken:
        for earlier in set(range(row)) - gone:
            alike = case.word(QueueColumn.LANE, earlier) == case.word(QueueColumn.LANE, row)
            needs = case.word(QueueColumn.BUCKET, earlier) <= case.word(QueueColumn.BUCKET, row)
            assert not (alike and needs)


@often
@given(cases())
def test_the_same_again(case: Case) -> None:
    before = case.queue.copy()
    assert sent(case.decision) == sent(case.decision)
    assert np.array_equal(case.queue, before)


def test_a_long_row_is_not_starved_by_short_ones() -> None:
    """Short ones come without end, one for each that is over."""
    running, reserved, waited = 3, 30, 0
    queue = rows_of(2, bucket=[40, 10])
    while True:
        worker = SequenceWorker(0, running, 4, reserved, 45)
        decision = seat(NOW, queue, [worker])
        if decision.dispatch:
            break
        running, reserved, waited = running - 1, reserved - 10, waited + 1
    assert sent(decision) == [(0, 0)]
    assert waited == 3, "as long as what ran when it came"


def test_a_long_row_takes_one_worker_from_those_behind_it() -> None:
    queue = rows_of(4, bucket=[40, 5, 5, 5])
    fuller, emptier = SequenceWorker(0, 3, 8, 30, 45), SequenceWorker(1, 2, 8, 20, 45)
    assert sent(seat(NOW, queue, [fuller, emptier])) == [(1, 0), (2, 0), (3, 0)]


def test_rows_are_spread_over_the_workers() -> None:
    workers = [SequenceWorker(n, running, 4) for n, running in ((0, 2), (1, 0), (2, 1))]
    taken = sent(seat(NOW, rows_of(5, bucket=1), workers))
    assert [number for _, number in taken] == [1, 2, 1, 0, 2]
