"""The supervisor's book of lanes: numbers, serials, descriptors, and who each belongs to.

A lane's number is its place in every process's tables; it is used again only after every
process has let the old lane go. Its serial is never used again.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from batchpool.core.errors import Overloaded
from batchpool.core.layout.segments import Layout
from batchpool.shm.segment import create, free_pages
from batchpool.supervisor.resources.held_bells import HeldBells

_WORD = struct.Struct("<Q")


@dataclass
class LaneEntry:
    """One lane. `fd` and `bells` are the supervisor's, to be handed out again.

    model: the entry. client: the number of its local client, 0 for a front end. pinned: GPUs may
    read and write it by themselves. handed: its client knows it. moved, left, evicted: see
    `batchpool/supervisor/reload/lane_migration.py`. closing: the batcher was told to close it.
    abandoned: its client has closed its connection, so that nobody reads it any more.
    """

    number: int
    serial: int
    model: int
    owner: str
    layout: Layout
    fd: int
    bells: HeldBells
    client: int
    pinned: bool
    handed: bool = True
    moved: bool = False
    left: bool = False
    evicted: bool = False
    closing: bool = False
    abandoned: bool = False

    @property
    def local(self) -> bool:
        """True for a lane of a local client."""
        return self.client > 0

    def word(self, name: str) -> int:
        """One of its words now."""
        return int(_WORD.unpack(os.pread(self.fd, 8, self.layout.words[name]))[0])

    def claimed(self) -> int:
        """Slots its client has claimed, as it last said: at most all of them."""
        return min(self.word("claimed"), self.layout.slots)

    def rows(self) -> int:
        """Rows that its client has claimed slots for and has not fetched: those that it reads in
        place (copy=False) are fetched, and claimed."""
        return max(0, self.claimed() - self.word("lent"))


class LaneTable:
    """All lanes of the pool. leaving: told of each before it goes."""

    def __init__(
        self, max_lanes: int, leaving: Callable[[LaneEntry], None] = lambda entry: None
    ) -> None:
        self._leaving = leaving
        self._free = list(range(max_lanes - 1, -1, -1))
        self._serial = 0
        self._entries: dict[int, LaneEntry] = {}

    def __iter__(self) -> Iterator[LaneEntry]:
        return iter(list(self._entries.values()))

    def of_owner(self, owner: str) -> list[LaneEntry]:
        return [e for e in self._entries.values() if e.owner == owner and not e.closing]

    def of_entry(self, model: int) -> list[LaneEntry]:
        """Those that are being closed too."""
        return [e for e in self._entries.values() if e.model == model]

    def add(
        self,
        model: int,
        owner: str,
        layout: Layout,
        bells: HeldBells,
        *,
        client: int,
        pinned: bool,
    ) -> LaneEntry:
        """A new lane, sealed if it is a local client's, which shares its client's bells. Overloaded
        when the table is full, StartError when there is no memory or no descriptor to be had."""
        if not self._free:
            raise Overloaded("the pool has no room for another lane now; try again later")
        fd = create(layout, sealed=client > 0)
        self._serial += 1
        number = self._free.pop()
        entry = LaneEntry(
            number, self._serial, model, owner, layout, fd, bells.share(), client, pinned
        )
        self._entries[number] = entry
        return entry

    def get(self, number: int) -> LaneEntry | None:
        return self._entries.get(number)

    def remove(self, number: int) -> None:
        """Every process has been told to let it go, in the order of its messages."""
        entry = self._entries.pop(number)
        self._leaving(entry)
        if entry.abandoned:  # which must not hold the pool's memory by a descriptor that was kept
            with suppress(OSError):
                free_pages(entry.fd, entry.layout.total_bytes)
        os.close(entry.fd)
        entry.bells.close()
        self._free.append(number)
