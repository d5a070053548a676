"""A client's runs in the arena of its lane: claimed with the slots, freed when their rows are done.

claim   sets a run aside for each row, all or none
place   writes into the slots where their rows will stand
hold    notes which slots the runs belong to
free    gives the runs back: nobody reads the inputs of a row that is DONE, not even a late worker
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from batchpool.client.backpressure import Rejections
from batchpool.core.errors import TooLarge
from batchpool.core.layout.admission import Refusal
from batchpool.core.layout.arena import aligned, largest_run
from batchpool.core.layout.arena_admission import ArenaAllocator
from batchpool.core.tensors.rows import Rows
from batchpool.shm.columns import Where, slots_of
from batchpool.shm.lane import Lane
from batchpool.shm.memory_limits import size_text

_NS_PER_MS = 1_000_000
_COMES_AGAIN_NS = 1_000_000_000  # a refused row, so long after it was told to, at the latest


class Runs(NamedTuple):
    """Claimed runs, one a row. spans: the aligned bytes of each input in each row."""

    places: list[int]
    sizes: list[int]
    spans: list[list[int]]


class LaneArena:
    """The runs of one lane. allocator: of the arena's bytes."""

    def __init__(self, lane: Lane, watermark: float, refusals: Rejections) -> None:
        spec = lane.spec
        self._columns = [(column.tensor.name, column) for column in lane.arena_inputs]
        largest = largest_run(spec, tuple(name for name, _ in self._columns))
        self.allocator = ArenaAllocator(lane.layout.arena_bytes, largest, watermark)
        self._name = spec.name
        self._refusals = refusals
        self._refused, self._refused_share = lane.refused, lane.refused_share
        self._places = [0] * lane.slots
        self._sizes = [0] * lane.slots

    def check_open(self, now_ns: int, priority: int) -> None:
        """Raise Overloaded where not even the smallest row would find room."""
        refusal = self.allocator.full(priority)
        if refusal is not None:
            raise self._overloaded(refusal, (), now_ns)

    def claim(
        self,
        rows: Rows,
        now_ns: int,
        *,
        flow: int,
        contested: bool,
        origin_contested: bool,
        priority: int,
    ) -> Runs:
        """A run for each of these rows; raises Overloaded, or TooLarge if they never fit."""
        spans = self._spans(rows)
        sizes = _sums(spans)
        total, bound = sum(sizes), self.allocator.bound
        if total > bound:
            raise TooLarge(
                f"{rows.n} rows whose large inputs take {size_text(total)} at once; model"
                f" {self._name!r} takes at most {size_text(bound)} here: send them in smaller"
                " requests, or raise input_arena_mib"
            )
        found = self.allocator.claim(
            sizes,
            now_ns,
            flow=flow,
            contested=contested,
            origin_contested=origin_contested,
            priority=priority,
        )
        if isinstance(found, Refusal):
            raise self._overloaded(found, sizes, now_ns)
        return Runs(found, sizes, spans)

    def has_room(self, rows: Rows, now_ns: int, priority: int) -> bool:
        """True if these rows may be claimed now; if not, room is kept for whoever waits for it and
        asks again within a second."""
        sizes = _sums(self._spans(rows))
        if self.allocator.has_room(sizes, now_ns, priority):
            return True
        self.allocator.keep(sizes, now_ns, now_ns + _COMES_AGAIN_NS)
        return False

    def give_up(self, rows: Rows) -> None:
        """Keep nothing for these rows any more."""
        self.allocator.forget(_sums(self._spans(rows)))

    def most_rows(self, rows: Rows) -> int:
        """So many of these rows, wherever they begin, may be claimed at once."""
        ends = np.cumsum(_sums(self._spans(rows)))
        n = rows.n
        while n > 1 and _most_of(ends, n) > self.allocator.bound:
            n = -(-n // 2)
        return n

    def hold(self, slots: Sequence[int], runs: Runs) -> None:
        """These slots have the runs now."""
        for slot, place, size in zip(slots, runs.places, runs.sizes, strict=True):
            self._places[slot] = place
            self._sizes[slot] = size

    def put_back(self, runs: Runs, flow: int) -> None:
        """Give back runs that no slot has."""
        for place, size in zip(runs.places, runs.sizes, strict=True):
            self.allocator.give_back(place, size, flow)

    def place(self, where: Where, runs: Runs) -> None:
        """Write where the rows in these slots, which are FILLING, will stand."""
        slots = slots_of(where)
        places = runs.places
        for (_, column), spans in zip(self._columns, runs.spans, strict=True):
            column.place(slots, places)
            if column is not self._columns[-1][1]:
                places = [at + span for at, span in zip(places, spans, strict=True)]

    def free(self, slots: Sequence[int], flow: int) -> None:
        """Give back the runs of slots, if they still have them."""
        for slot in slots:
            size, self._sizes[slot] = self._sizes[slot], 0
            self.allocator.give_back(self._places[slot], size, flow)

    def _spans(self, rows: Rows) -> list[list[int]]:
        return [
            list(map(aligned, column.spans(rows.tensors[name], rows.sizes.get(name))))
            for name, column in self._columns
        ]

    def _overloaded(self, refusal: Refusal, sizes: Sequence[int], now_ns: int) -> Exception:
        error = self._refusals.no_room(refusal, self.allocator)
        word = self._refused if refusal.is_of_lane else self._refused_share
        word.set(word.get() + 1)
        if refusal.is_of_lane:
            again_ns = 2 * error.retry_after_ms * _NS_PER_MS + _COMES_AGAIN_NS
            self.allocator.keep(sizes, now_ns, now_ns + again_ns)
        return error


def _sums(spans: list[list[int]]) -> list[int]:
    """The bytes of each row's run."""
    return spans[0] if len(spans) == 1 else list(map(sum, zip(*spans, strict=True)))


def _most_of(ends: np.ndarray[tuple[int], np.dtype[np.int64]], n: int) -> int:
    """The most that n neighbours take."""
    return int(max(ends[n - 1], (ends[n:] - ends[:-n]).max(initial=0)))
