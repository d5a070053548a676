"""The life of a slot: its states, who may write them, and the legal moves.

A slot's `state` word says who owns the slot. Only the owner stores into the word, and the
store that passes ownership on is the owner's last one.

    state      owner     may become
    FREE       client    FILLING (claim)
    FILLING    client    SUBMITTED (submit), FREE (abort)
    SUBMITTED  batcher   QUEUED (admit), DONE (expired, cancelled, refused)
    QUEUED     batcher   RUNNING (dispatch), DONE (expired, cancelled, lost)
    RUNNING    batcher   DONE (record finished), QUEUED (worker reaped, to run again)
    DONE       client    FREE (reap)

While a slot is RUNNING a worker owns its outputs, sizes, status and message, not its state.

    FREE -> FILLING -> SUBMITTED -> QUEUED <-> RUNNING
     ^         |           |          |           |
     +---------+           +--> DONE <+-----------+
     +--------------------------+

A ticket (lane, slot, sequence) names one use of one slot: the client raises the slot's
sequence with every claim, and whoever meets an older one counts it as stale and goes on.
A deadline or a cancel word does not end RUNNING: the client answers its caller by itself
and keeps the slot, abandoned, until DONE.
"""

from __future__ import annotations

import enum


class SlotState(enum.IntEnum):
    FREE = 0
    FILLING = 1
    SUBMITTED = 2
    QUEUED = 3
    RUNNING = 4
    DONE = 5


class SlotOwner(enum.Enum):
    CLIENT = "client"
    BATCHER = "batcher"


OWNER: dict[SlotState, SlotOwner] = {
    SlotState.FREE: SlotOwner.CLIENT,
    SlotState.FILLING: SlotOwner.CLIENT,
    SlotState.SUBMITTED: SlotOwner.BATCHER,
    SlotState.QUEUED: SlotOwner.BATCHER,
    SlotState.RUNNING: SlotOwner.BATCHER,
    SlotState.DONE: SlotOwner.CLIENT,
}

MOVES: dict[SlotState, frozenset[SlotState]] = {
    SlotState.FREE: frozenset({SlotState.FILLING}),
    SlotState.FILLING: frozenset({SlotState.SUBMITTED, SlotState.FREE}),
    SlotState.SUBMITTED: frozenset({SlotState.QUEUED, SlotState.DONE}),
    SlotState.QUEUED: frozenset({SlotState.RUNNING, SlotState.DONE}),
    SlotState.RUNNING: frozenset({SlotState.DONE, SlotState.QUEUED}),
    SlotState.DONE: frozenset({SlotState.FREE}),
}


class LaneGate(enum.IntEnum):
    """The lane's gate word, written by the batcher: may the client claim?

    MOVED and GONE are for good, whatever becomes of the batcher. GONE makes all slots the client's:
    what it finds there that is not DONE was not run and will not be.
    """

    CLOSED = 0
    OPEN = 1
    DRAINING = 2
    BROKEN = 3  # a bad ring entry or header closed the lane for good
    MOVED = 4  # the model has other lanes; what was claimed here is still served (supervisor/reload/lane_migration.py)
    GONE = 5  # after MOVED: the batcher has left this lane


class PoolState(enum.IntEnum):
    """The control segment's state word, written by the supervisor."""

    STARTING = 0
    READY = 1
    DRAINING = 2
    STOPPED = 3


class DispatchReason(enum.IntEnum):
    """Why a batch was dispatched."""

    FULL = 1
    WAIT = 2
    DEADLINE = 3
    IDLE = 4
    DRAIN = 5
    APART = 6  # suspects of a failed batch, which run apart from all others


class BatchOutcome(enum.IntEnum):
    """How a batch record ended, written by the worker."""

    NONE = 0
    OK = 1
    FAILED = 2  # the model raised or answered wrongly; the rows' statuses say so
    NO_MEMORY = 3  # the device's memory was too small for so many rows; statuses as for FAILED


assert set(MOVES) == set(SlotState) == set(OWNER)
assert all(moves for moves in MOVES.values()), "no state is a dead end"
assert min(SlotState, key=int) is SlotState(0) is SlotState.FREE, (
    "fresh, zeroed memory is all FREE slots"
)
assert min(LaneGate, key=int) is LaneGate(0) is LaneGate.CLOSED, "a fresh lane takes no claims"
for _state, _moves in MOVES.items():
    # Only the owner moves a slot, so a state's moves are all by one side; the moves that
    # change the owner are the two hand-overs.
    for _next in _moves:
        if OWNER[_state] is not OWNER[_next]:
            assert _next in (SlotState.SUBMITTED, SlotState.DONE), (_state, _next)
