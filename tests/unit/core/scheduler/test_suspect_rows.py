"""Isolation of the guilty rows: how many calls, who gets the error, and nobody else."""

from __future__ import annotations

from collections.abc import Set

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.core.scheduler.queue import I64, QUEUE_COLUMNS, QueueColumn
from batchpool.core.scheduler.suspect_rows import SuspectRows


def batch(n: int, first_slot: int = 0) -> I64:
    rows = np.zeros((QUEUE_COLUMNS, n), dtype=np.int64)
    rows[QueueColumn.SLOT] = np.arange(first_slot, first_slot + n)
    rows[QueueColumn.DEADLINE_NS] = 1000 + rows[QueueColumn.SLOT]
    return rows


def isolate(n: int, guilty: Set[int], attempts: int) -> tuple[set[int], set[int], int, int]:
    """Run a batch with guilty rows to the end: (errors, answers, calls, failures)."""
    suspects = SuspectRows()
    errors: set[int] = set()
    answers: set[int] = set()
    calls = failures = 0
    group: I64 | None = batch(n)
    while group is not None:
        calls += 1
        slots = set(group[QueueColumn.SLOT].tolist())
        if slots & guilty:
            failures += 1
            group[QueueColumn.ATTEMPT] += 1
            spent = suspects.add_failed(group, attempts, group.shape[1])
            errors |= set(spent[QueueColumn.SLOT].tolist())
        else:
            answers |= slots
        group = suspects.take_next() if len(suspects) else None
    return errors, answers, calls, failures


def test_one_killer_among_sixty_four_makes_three_deaths_and_seventeen_calls() -> None:
    errors, answers, calls, deaths = isolate(64, {37}, attempts=3)
    assert errors == {37}
    assert answers == set(range(64)) - {37}
    assert (deaths, calls) == (3, 17)


@pytest.mark.parametrize("attempts", [1, 3, 5])
@pytest.mark.parametrize("guilty", [{0}, {63}, {0, 63}, {30, 31}])
def test_the_bounds_on_calls_and_deaths(attempts: int, guilty: set[int]) -> None:
    errors, answers, calls, deaths = isolate(64, guilty, attempts)
    assert errors == guilty
    assert answers == set(range(64)) - guilty
    assert calls - 1 <= len(guilty) * (16 + attempts)
    assert deaths <= len(guilty) * max(3, attempts)


@given(
    n=st.integers(1, 200),
    guilty=st.sets(st.integers(0, 199), max_size=10),
    attempts=st.integers(1, 5),
)
def test_every_row_gets_its_own_end(n: int, guilty: set[int], attempts: int) -> None:
    guilty = {slot for slot in guilty if slot < n}
    errors, answers, _, _ = isolate(n, guilty, attempts)
    assert errors == guilty
    assert answers == set(range(n)) - guilty


def test_a_lone_row_has_all_its_attempts() -> None:
    assert isolate(1, {0}, attempts=3) == ({0}, set(), 3, 3)
    assert isolate(1, {0}, attempts=1) == ({0}, set(), 1, 1)


def test_a_group_that_did_not_run_is_the_next_again() -> None:
    suspects = SuspectRows()
    suspects.add_parts(batch(3))
    taken = suspects.take_next()
    suspects.add_first(taken)
    assert len(suspects) == 3
    assert np.array_equal(suspects.peek(), taken)
    suspects.add_first(taken[:, :0])
    assert len(suspects) == 3, "no rows are no group"


def test_a_row_whose_companions_are_gone_did_not_fail_alone() -> None:
    suspects = SuspectRows()
    row = batch(1)
    row[QueueColumn.ATTEMPT] = 5
    assert suspects.add_failed(row, attempts=1, batch_rows=2).shape == (QUEUE_COLUMNS, 0)
    assert suspects.take_next().tolist() == row.tolist()
    assert suspects.add_failed(row, attempts=1, batch_rows=1).tolist() == row.tolist()


def test_late_rows_and_rows_of_a_lane_are_taken_out_of_their_groups() -> None:
    suspects = SuspectRows()
    rows = batch(16)
    rows[QueueColumn.ATTEMPT] = 1
    rows[QueueColumn.LANE, 8:] = 5
    assert suspects.add_failed(rows, 3, 16).shape == (QUEUE_COLUMNS, 0)
    assert len(suspects) == 16
    assert suspects.next_deadline_ns() == 1000
    assert suspects.of_lane(5)[QueueColumn.SLOT].tolist() == list(range(8, 16))
    assert suspects.take_late(1001)[QueueColumn.SLOT].tolist() == [0, 1]
    assert suspects.take_tickets(np.array([3, 9]), 5)[QueueColumn.SLOT].tolist() == [9]
    assert suspects.take_lane(5)[QueueColumn.SLOT].tolist() == [8, 10, 11, 12, 13, 14, 15]
    assert len(suspects) == 6
    assert suspects.peek()[QueueColumn.SLOT].tolist() == [2, 3]
    assert suspects.take_next()[QueueColumn.SLOT].tolist() == [2, 3]
    suspects.take_next()
    suspects.take_next()
    assert len(suspects) == 0
    assert suspects.next_deadline_ns() == 2**63 - 1
    assert suspects.take_late(10**9).shape == (QUEUE_COLUMNS, 0)
