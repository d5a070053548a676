"""Decisions of a reload about lanes: clients move from the lanes of one entry to those of another.

Pure: no lane and no clock is used here. An entry is the place of a model in all tables (pool state
page, counters, batcher). A reload that changes a model's tensors or slots gives it another entry;
one that adds or removes a model adds or removes an entry.

    entry    COMING    its workers load; its lanes are mapped and open, and no client knows them
             SERVING   the plan in force has it: clients are given its lanes
             LEAVING   its gates are MOVED; its workers serve only rows claimed before
             RETIRED   no lane and no worker is left; the number is free

    COMING > SERVING (commit) > LEAVING (the next commit) > RETIRED;  COMING > RETIRED (undone)

    lane     OPEN      takes claims
             MOVED     takes no more claims; its client reaps what is in flight and claims elsewhere
             LEFT      its client said so: gate MOVED seen, nothing claimed. Or the client is dead,
                       or was never given the lane
             EVICTED   its client has had drain_s: rows that no worker has are answered "not ready"
                       (503, send again), rows that a worker has are waited for
             GONE      gate GONE, if the client is alive; unmapped by every process

    OPEN > MOVED > LEFT > GONE;  MOVED > EVICTED > GONE;  OPEN > LEFT > GONE (the client died, or
    the entry is undone)

A commit, in this order: the plan is in force (clients that ask are given new lanes); front ends are
sent their new lanes; the batcher is told to move the old gates. It does not begin before every new
worker is warm and every new gate is open, so a client that meets MOVED finds another lane, or the
model is removed.

Writers: the batcher writes the gate and then raises `generation`, upon which a client looks at its
gate and its slots; MOVED and GONE are never taken back. The supervisor keeps in its lane table
which lanes are moved, left and evicted. A client says `left` once for a lane.

A row that is published after the batcher has let go of the lane, as by a client that was stopped in
the middle, is answered "not ready" by the client itself: at GONE it finds the slot not DONE. Such a
row never ran.

    the end of              is followed by
    client                  its lanes, old and new, are LEFT
    batcher                 the next one finds MOVED and GONE in the lanes, and is told again of
                            moved and evicted ones. Entries and lanes belong to the supervisor
    worker of LEAVING       another one loads; rows wait for it as long as their deadlines or
                            drain_s permit
    worker of COMING        the reload is undone; no client had its lanes
    front end               its lanes are LEFT; the next one is given lanes of SERVING entries
    supervisor              every process ends
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class MigrationAction(enum.Enum):
    CLOSE = "close"  # its client has left it
    EVICT = "evict"  # its client's time is up


@dataclass(frozen=True)
class MigrationCommand:
    """One action to carry out on a lane, by its number."""

    action: MigrationAction
    lane: int


class LaneMigration:
    """The migration of all clients away from one entry, from the commit on.

    lanes: the numbers of its lanes. until_ns: the time at which clients that stay are evicted.
    Each lane gets one command.
    """

    def __init__(self, lanes: Iterable[int], until_ns: int) -> None:
        self.until_ns = until_ns
        self._moved = set(lanes)
        self._left: set[int] = set()
        self._closing: set[int] = set()

    @property
    def lanes(self) -> int:
        """The number of lanes that are not gone."""
        return len(self._moved) + len(self._left) + len(self._closing)

    def left(self, lane: int) -> None:
        """The client has nothing in the lane and knows that it moved, or is dead."""
        if lane in self._moved:
            self._moved.remove(lane)
            self._left.add(lane)

    def gone(self, lane: int) -> None:
        """No process but perhaps the client has the lane mapped."""
        for lanes in (self._moved, self._left, self._closing):
            lanes.discard(lane)

    def step(self, now_ns: int) -> list[MigrationCommand]:
        """Return what is to be done now."""
        commands = [MigrationCommand(MigrationAction.CLOSE, lane) for lane in sorted(self._left)]
        self._closing |= self._left
        self._left.clear()
        if now_ns >= self.until_ns:
            commands += [
                MigrationCommand(MigrationAction.EVICT, lane) for lane in sorted(self._moved)
            ]
            self._closing |= self._moved
            self._moved.clear()
        return commands


@dataclass(frozen=True)
class MissingLane:
    """A lane that a client lacks: owner is the client's name, entry the model's."""

    owner: str
    entry: int


def missing_lanes(
    clients: Sequence[tuple[str, bool]],
    has: Iterable[tuple[str, int]],
    coming: Sequence[int],
    replaced_by: dict[int, int],
) -> list[MissingLane]:
    """Lanes that must be opened before a commit.

    clients: (owner, True for a front end) of each attached client. has: (owner, entry) of each
    lane. coming: entries that the commit adds. replaced_by: for an entry that leaves, the one that
    comes for the same model.

    A front end has a lane to every model, a local client to each model that it uses.
    """
    existing = set(has)
    missing = []
    for owner, is_frontend in clients:
        entries = (
            coming
            if is_frontend
            else [new for old, new in replaced_by.items() if (owner, old) in existing]
        )
        missing += [
            MissingLane(owner, entry) for entry in entries if (owner, entry) not in existing
        ]
    return missing
