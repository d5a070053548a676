"""The slot's states: the table as it is drawn, and what must hold of any such table."""

from __future__ import annotations

import pytest

from batchpool.core.layout.states import (
    MOVES,
    OWNER,
    BatchOutcome,
    DispatchReason,
    LaneGate,
    PoolState,
    SlotOwner,
    SlotState,
)

LEGAL = {
    (SlotState.FREE, SlotState.FILLING),  # claim
    (SlotState.FILLING, SlotState.SUBMITTED),  # submit
    (SlotState.FILLING, SlotState.FREE),  # abort
    (SlotState.SUBMITTED, SlotState.QUEUED),  # admit
    (SlotState.SUBMITTED, SlotState.DONE),  # expired, cancelled, refused
    (SlotState.QUEUED, SlotState.RUNNING),  # dispatch
    (SlotState.QUEUED, SlotState.DONE),  # expired, cancelled, lost
    (SlotState.RUNNING, SlotState.DONE),  # record finished
    (SlotState.RUNNING, SlotState.QUEUED),  # worker reaped
    (SlotState.DONE, SlotState.FREE),  # reap
}


@pytest.mark.parametrize("old", list(SlotState))
@pytest.mark.parametrize("new", list(SlotState))
def test_the_legal_moves_are_these_and_no_others(old: SlotState, new: SlotState) -> None:
    assert (new in MOVES[old]) == ((old, new) in LEGAL)


def test_a_client_owns_what_it_fills_and_reaps_and_the_batcher_the_rest() -> None:
    theirs = {state for state, owner in OWNER.items() if owner is SlotOwner.CLIENT}
    assert theirs == {SlotState.FREE, SlotState.FILLING, SlotState.DONE}


def test_every_use_of_a_slot_can_end() -> None:
    reached = {SlotState.FREE}
    while (more := reached | {n for state in reached for n in MOVES[state]}) != reached:
        reached = more
    assert reached == set(SlotState)
    for start in SlotState:
        seen = {start}
        while (more := seen | {n for state in seen for n in MOVES[state]}) != seen:
            seen = more
        assert SlotState.FREE in seen, f"{start.name} never comes back to FREE"


def test_only_submitted_and_done_pass_a_slot_on() -> None:
    handovers = {(a, b) for a, moves in MOVES.items() for b in moves if OWNER[a] is not OWNER[b]}
    assert {b for _, b in handovers} == {SlotState.SUBMITTED, SlotState.DONE}
    assert (SlotState.FILLING, SlotState.SUBMITTED) in handovers


def test_numbers_in_shared_memory_stay_what_they_are() -> None:
    """These stand in segments that processes of different ages share; zeroed memory is legal."""
    assert [s.name for s in sorted(SlotState)] == [
        "FREE",
        "FILLING",
        "SUBMITTED",
        "QUEUED",
        "RUNNING",
        "DONE",
    ]
    assert [int(s) for s in sorted(SlotState)] == list(range(6))
    assert (LaneGate.CLOSED, LaneGate.OPEN, LaneGate.DRAINING, LaneGate.BROKEN) == (0, 1, 2, 3)
    assert (BatchOutcome.NONE, BatchOutcome.OK, BatchOutcome.FAILED) == (0, 1, 2)
    assert (
        DispatchReason.FULL,
        DispatchReason.WAIT,
        DispatchReason.DEADLINE,
        DispatchReason.IDLE,
        DispatchReason.DRAIN,
    ) == (1, 2, 3, 4, 5)
    assert PoolState.STARTING == 0
    assert len({int(s) for s in PoolState}) == len(PoolState)
