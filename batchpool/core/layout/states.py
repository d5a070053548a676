"""The states of slots, lanes, the pool and batches, with their owners and legal moves.

A slot's `state` word names the owner of the slot. Only the owner stores into the word, and the
store that passes ownership on is the owner's last one.

    state      owner     may become
    FREE       client    FILLING (claim)
    FILLING    client    SUBMITTED (submit), FREE (abort)
    SUBMITTED  batcher   QUEUED (admit), DONE (the pool is gone)
    QUEUED     batcher   RUNNING (dispatch), DONE (expired, cancelled, refused, evicted)
    RUNNING    batcher   DONE (batch finished, or lost for the last time),
                         QUEUED (worker lost or batch failed, to run again; or the model's next
                         stage comes)
    DONE       client    FREE (reap)

A row of a model with stages is QUEUED and RUNNING once in each. The batcher stores its `stage` word
before the state word that makes it QUEUED, so that a later batcher knows whose queue it is in.

While a slot is RUNNING a worker owns its outputs, sizes, status and message, but not its state.

    FREE -> FILLING -> SUBMITTED -> QUEUED <-> RUNNING
     ^         |           |          |           |
     +---------+           +--> DONE <+-----------+
     +--------------------------+

A ticket (lane, slot, sequence) names one use of one slot: the client raises the slot's sequence
with every claim, and a process that finds an older sequence counts the ticket as stale and skips
it. A deadline or a cancel word does not end RUNNING: the client answers its caller without the
slot and keeps it, abandoned, until DONE. A generator's worker looks at both between two steps and
ends such rows itself, which makes them DONE soon.
"""

from __future__ import annotations

import enum


class SlotState(enum.IntEnum):
    """The value of a slot's state word."""

    FREE = 0
    FILLING = 1
    SUBMITTED = 2
    QUEUED = 3
    RUNNING = 4
    DONE = 5


class SlotOwner(enum.Enum):
    """The process that owns a slot."""

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

# The legal moves, each with its cause; docs/architecture.md draws its diagram from here. After
# LaneGate.GONE all slots belong to the client, which sets those that did not run to DONE.
MOVES: dict[SlotState, dict[SlotState, str]] = {
    SlotState.FREE: {SlotState.FILLING: "claim"},
    SlotState.FILLING: {SlotState.SUBMITTED: "submit", SlotState.FREE: "abort"},
    SlotState.SUBMITTED: {
        SlotState.QUEUED: "admit",
        SlotState.DONE: "the pool is gone",
    },
    SlotState.QUEUED: {
        SlotState.RUNNING: "dispatch",
        SlotState.DONE: "expired, cancelled, refused or evicted",
    },
    SlotState.RUNNING: {
        SlotState.DONE: "batch finished, or lost for the last time",
        SlotState.QUEUED: "worker lost or batch failed, to run again; or its next stage comes",
    },
    SlotState.DONE: {SlotState.FREE: "reap"},
}


class LaneGate(enum.IntEnum):
    """The value of a lane's gate word, which admits the client's claims; the batcher writes it.

    MOVED and GONE are final, also for a later batcher. After GONE all slots belong to the client:
    a row there that is not DONE has not been run and will not be.
    """

    CLOSED = 0
    OPEN = 1
    DRAINING = 2
    BROKEN = 3  # a bad ring entry or header closed the lane for good
    MOVED = 4  # a reload gave the model other lanes; claimed rows here are still served
    GONE = 5  # after MOVED: the batcher has left the lane


class PoolState(enum.IntEnum):
    """The value of the pool's state word; the supervisor writes it."""

    STARTING = 0
    READY = 1
    DRAINING = 2
    STOPPED = 3


class DispatchReason(enum.IntEnum):
    """The reason for which a batch was dispatched."""

    FULL = 1
    WAIT = 2
    DEADLINE = 3
    IDLE = 4
    DRAIN = 5
    APART = 6  # rows of a failed batch, which run apart from all others


class BatchOutcome(enum.IntEnum):
    """The end of a batch record; the worker writes it."""

    NONE = 0
    OK = 1
    FAILED = 2  # the model raised or returned wrong outputs; the statuses of the rows tell more
    NO_MEMORY = 3  # the batch was too large for the device's memory; statuses as for FAILED
    INVALID_INPUT = 4  # the model refused one of several rows and did not say which
    RETURNED = 5  # a worker that goes off duty gives a sequence back, to be gone on with elsewhere


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
