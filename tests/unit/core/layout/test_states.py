"""The slot's states: the table as it is drawn, and what must hold of any such table."""

from __future__ import annotations

import pytest

from batchpool.core.layout.states import (
    MOVES,
    OWNER,
    Gate,
    Outcome,
    Owner,
    PoolState,
    Reason,
    State,
)

LEGAL = {
    (State.FREE, State.FILLING),  # claim
    (State.FILLING, State.SUBMITTED),  # submit
    (State.FILLING, State.FREE),  # abort
    (State.SUBMITTED, State.QUEUED),  # admit
    (State.SUBMITTED, State.DONE),  # expired, cancelled, refused
    (State.QUEUED, State.RUNNING),  # dispatch
    (State.QUEUED, State.DONE),  # expired, cancelled, lost
    (State.RUNNING, State.DONE),  # record finished
    (State.RUNNING, State.QUEUED),  # worker reaped
    (State.DONE, State.FREE),  # reap
}


@pytest.mark.parametrize("old", list(State))
@pytest.mark.parametrize("new", list(State))
def test_the_legal_moves_are_these_and_no_others(old: State, new: State) -> None:
    assert (new in MOVES[old]) == ((old, new) in LEGAL)


def test_a_client_owns_what_it_fills_and_reaps_and_the_batcher_the_rest() -> None:
    theirs = {state for state, owner in OWNER.items() if owner is Owner.CLIENT}
    assert theirs == {State.FREE, State.FILLING, State.DONE}


def test_every_use_of_a_slot_can_end() -> None:
    reached = {State.FREE}
    while (more := reached | {n for state in reached for n in MOVES[state]}) != reached:
        reached = more
    assert reached == set(State)
    for start in State:
        seen = {start}
        while (more := seen | {n for state in seen for n in MOVES[state]}) != seen:
            seen = more
        assert State.FREE in seen, f"{start.name} never comes back to FREE"


def test_only_submitted_and_done_pass_a_slot_on() -> None:
    handovers = {(a, b) for a, moves in MOVES.items() for b in moves if OWNER[a] is not OWNER[b]}
    assert {b for _, b in handovers} == {State.SUBMITTED, State.DONE}
    assert (State.FILLING, State.SUBMITTED) in handovers


def test_numbers_in_shared_memory_stay_what_they_are() -> None:
    """These stand in segments that processes of different ages share; zeroed memory is legal."""
    assert [s.name for s in sorted(State)] == [
        "FREE",
        "FILLING",
        "SUBMITTED",
        "QUEUED",
        "RUNNING",
        "DONE",
    ]
    assert [int(s) for s in sorted(State)] == list(range(6))
    assert (Gate.CLOSED, Gate.OPEN, Gate.DRAINING, Gate.BROKEN) == (0, 1, 2, 3)
    assert (Outcome.NONE, Outcome.OK, Outcome.FAILED) == (0, 1, 2)
    assert (Reason.FULL, Reason.WAIT, Reason.DEADLINE, Reason.IDLE, Reason.DRAIN) == (1, 2, 3, 4, 5)
    assert PoolState.STARTING == 0
    assert len({int(s) for s in PoolState}) == len(PoolState)
