"""The order of a move: a model gets other lanes under its clients. Pure decisions.

A reload that changes a model's tensors or slots, adds a model or removes one changes entries. An
entry is a model's place in all tables (state page, counters, batcher);
what one is about never changes.

    entry    COMING    its workers load; its lanes are mapped and open, and no client knows them
             SERVING   the plan that counts has it: clients are handed its lanes
             LEAVING   gates MOVED; its workers serve what was claimed before, and nothing else
             RETIRED   no lane and no worker is left; the number is free

    COMING > SERVING (commit) > LEAVING (the next commit) > RETIRED;  COMING > RETIRED (undone)

    lane     OPEN      claims
             MOVED     no more claims. Its client takes what it is owed, and claims elsewhere
             LEFT      its client said so: gate MOVED seen, nothing claimed. Or it is dead, or was
                       never handed the lane
             EVICTED   its client has had drain_s: what is not in a worker's hands is answered
                       "not ready" (503, send again), what is there is waited for
             GONE      gate GONE, if the client is alive; unmapped by all

    OPEN > MOVED > LEFT > GONE;  MOVED > EVICTED > GONE;  OPEN > LEFT > GONE (the client died, or
    the entry is undone)

A commit, in this order: the plan counts (who asks is handed new lanes); front ends are sent the
new lanes; the batcher is told to move the old gates. It is not begun before every new worker is
warm and every new gate is open. So whoever meets MOVED finds another lane, or no such model.

Who writes: the batcher the gate, and then raises `generation`, which makes a client look at its
gate and at its slots; MOVED and GONE are never taken back. The supervisor keeps in its book which
lanes are moved, left and evicted. A client says `left`, once for a lane.

A row that is published after the batcher has left, as by a client that was stopped in the middle,
is answered "not ready" by the client itself: at GONE it finds the slot not DONE. It never ran.

    dies                    then
    client                  its lanes, old and new, are LEFT
    batcher                 the next one finds MOVED and GONE in the lanes, is told of them besides,
                            and told to evict again. Entries and lanes are the supervisor's
    worker of LEAVING       another is loaded; rows wait for it as long as their deadlines or
                            drain_s let them
    worker of COMING        the reload is undone: its lanes were nobody's
    front end               its lanes are LEFT, the next one is handed lanes of what serves
    supervisor              everything ends at once
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class MigrationAction(enum.Enum):
    CLOSE = "close"  # its client is done with it
    EVICT = "evict"  # its client has had its time


@dataclass(frozen=True)
class MigrationOrder:
    """What is to be done now with a lane."""

    act: MigrationAction
    lane: int


class LaneMigration:
    """An entry that leaves, from the moment its gates are told to move.

    lanes: numbers of those it has. until_ns: until when their clients may take their time.
    """

    def __init__(self, lanes: Iterable[int], until_ns: int) -> None:
        self.until_ns = until_ns
        self._moved = set(lanes)
        self._left: set[int] = set()
        self._ending: set[int] = set()

    @property
    def lanes(self) -> int:
        """How many are left."""
        return len(self._moved) + len(self._left) + len(self._ending)

    def left(self, lane: int) -> None:
        """Its client has nothing there any more and knows that it moved, or is dead."""
        if lane in self._moved:
            self._moved.remove(lane)
            self._left.add(lane)

    def gone(self, lane: int) -> None:
        """Nobody has it mapped any more but perhaps its client."""
        for lanes in (self._moved, self._left, self._ending):
            lanes.discard(lane)

    def step(self, now_ns: int) -> list[MigrationOrder]:
        """What is to be done now, once for each lane."""
        orders = [MigrationOrder(MigrationAction.CLOSE, lane) for lane in sorted(self._left)]
        self._ending |= self._left
        self._left.clear()
        if now_ns >= self.until_ns:
            orders += [MigrationOrder(MigrationAction.EVICT, lane) for lane in sorted(self._moved)]
            self._ending |= self._moved
            self._moved.clear()
        return orders


@dataclass(frozen=True)
class WantedLane:
    """A lane of this entry for this client."""

    owner: str
    entry: int


def wishes(
    clients: Sequence[tuple[str, bool]],
    has: Iterable[tuple[str, int]],
    coming: Sequence[int],
    heir_of: dict[int, int],
) -> list[WantedLane]:
    """The lanes that must be there before a commit, and are not.

    clients: (owner, whether it is a front end) of all that are attached. has: (owner, entry) of
    every lane. coming: entries; heir_of: of an entry that leaves, the one that comes for it.

    A front end has a lane to every model. A local client has one to each model that it uses.
    """
    had = set(has)
    wanted = []
    for owner, is_frontend in clients:
        entries = (
            coming if is_frontend else [new for old, new in heir_of.items() if (owner, old) in had]
        )
        wanted += [WantedLane(owner, entry) for entry in entries if (owner, entry) not in had]
    return wanted
