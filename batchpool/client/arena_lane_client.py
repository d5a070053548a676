"""The client's side of a lane whose large inputs stand in an arena.

All is as in a `LaneClient`, which lanes without an arena have: a claim takes runs of the arena too,
so that it is refused where either has no room, and they are free when its rows are done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from batchpool.client.lane_arena import LaneArena, Runs
from batchpool.client.lane_client import LaneClient
from batchpool.client.lane_rows import LaneRows
from batchpool.client.pending_request import PendingRequest
from batchpool.core.tensors.rows import Rows
from batchpool.shm.columns import Where
from batchpool.shm.lane import Lane

_NO_RUNS = Runs([], [], [])


class ArenaRows(LaneRows):
    """Writes rows into the runs that were claimed for them. runs: of the rows that come next."""

    def __init__(self, lane: Lane, arena: LaneArena) -> None:
        super().__init__(lane)
        self._large = [(column.tensor.name, column) for column in lane.arena_inputs]
        in_arena = [name for name, _ in self._large]
        self._inputs = [(name, column) for name, column in self._inputs if name not in in_arena]
        self._arena = arena
        self.runs = _NO_RUNS

    def write(self, where: Where, rows: Rows) -> None:
        super().write(where, rows)
        self._arena.place(where, self.runs)
        for name, column in self._large:
            column.store_rows(where, rows.tensors[name], rows.sizes.get(name))


class ArenaLaneClient(LaneClient):
    """A `LaneClient` of a lane with an arena; its arguments are the same. arena: what it has
    claimed of it."""

    def __init__(
        self,
        lane: Lane,
        *,
        watermark: float = 0.90,
        accepting: Callable[[], bool] = lambda: True,
        serial: int = 0,
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(lane, watermark=watermark, accepting=accepting, serial=serial, moved=moved)
        self.arena = LaneArena(lane, watermark, self._refusals)
        self._arena_rows = ArenaRows(lane, self.arena)
        self._rows = self._arena_rows
        self._coming: Rows | None = None  # which are submitted, until they have runs

    def set_watermark(self, watermark: float) -> None:
        super().set_watermark(watermark)
        self.arena.allocator.set_watermark(watermark)

    def check(self, n: int, now_ns: int, *, flow: int = 0, priority: int = 0) -> None:
        super().check(n, now_ns, flow=flow, priority=priority)
        if self._coming is None:
            self.arena.check_open(now_ns, priority)
            return
        self._arena_rows.runs = self.arena.claim(
            self._coming,
            now_ns,
            flow=flow,
            contested=self.allocator.is_contested(flow, now_ns),
            origin_contested=bool(self.allocator.named)
            and self.allocator.is_origin_contested(flow, now_ns),
            priority=priority,
        )
        self._coming = None

    def has_room(self, rows: Rows, now_ns: int, priority: int = 0) -> bool:
        has_slots = super().has_room(rows, now_ns, priority)
        return has_slots and self.arena.has_room(rows, now_ns, priority)

    def give_up_room(self, rows: Rows) -> None:
        self.arena.give_up(rows)

    def most_rows(self, rows: Rows) -> int:
        return min(super().most_rows(rows), self.arena.most_rows(rows))

    def submit(
        self,
        rows: Rows,
        now_ns: int,
        deadline_ns: int,
        *,
        priority: int = 0,
        flow: int = 0,
        tag: Any = None,
    ) -> PendingRequest:
        self._coming, self._arena_rows.runs = rows, _NO_RUNS
        try:
            pending = super().submit(
                rows, now_ns, deadline_ns, priority=priority, flow=flow, tag=tag
            )
        except BaseException:
            self._coming = None
            self.arena.put_back(self._arena_rows.runs, flow)
            raise
        self.arena.hold(pending.slots, self._arena_rows.runs)
        return pending

    def _complete(self, tickets: Iterable[tuple[int, int]], finished: list[PendingRequest]) -> None:
        before = len(finished)
        super()._complete(tickets, finished)
        for pending in finished[before:]:
            self.arena.free(pending.slots, pending.flow)

    def _free(self, slots: Sequence[int], flow: int) -> None:
        self.arena.free(slots, flow)  # of a request that was abandoned
        super()._free(slots, flow)


def lane_client_of(
    lane: Lane,
    *,
    watermark: float = 0.90,
    accepting: Callable[[], bool] = lambda: True,
    serial: int = 0,
    moved: Callable[[], None] = lambda: None,
) -> LaneClient:
    """The lane client of a lane, with an arena or without."""
    kind = ArenaLaneClient if lane.layout.arena_bytes else LaneClient
    return kind(lane, watermark=watermark, accepting=accepting, serial=serial, moved=moved)
