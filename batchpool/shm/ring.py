"""Single-producer single-consumer rings in shared memory, and all the memory order there is.

A ring is a power-of-two array of u64 entries and two free-running u64 counters, tail
(written by the producer alone) and head (written by the consumer alone). tail - head
entries are pending; the entry of count k stands at k & mask.

Order of publication, which every writer of this project follows:

    1. payload       the slot's tensors          (numpy stores, memcpy)
    2. header        the slot's header columns
    3. ring entry    the slot's ticket
    4. fence
    5. tail          one aligned 8-byte store: the commit
    6. doorbell      always: there is no "consumer sleeps" word to get wrong

and of consumption: read tail, read entries, handle them, and only then store head, so that
an entry may be seen twice after a crash but never be lost. The producer may reuse an entry's
place once head has passed it.

Why this is sound, and where: x86-64 keeps stores in order with stores and loads in order with
loads (Intel SDM vol. 3, section 9.2), and CPython runs each of these steps as its own call
into C, which no compiler reorders. Non-temporal stores, which a large memcpy may use, are the
exception; the fence takes an uncontended lock, by a locked instruction, which drains them
(section 12.10.3). Each fence takes a lock of its own, which nobody waits for: an exception out of
a signal handler may strike before a release. An aligned 8-byte store through
memoryview.cast("Q") is a single move. With another processor or without the GIL none of this has
been shown, so we refuse to start there. Three rules for everyone else:

    - one fence per group, between the last entry and the tail;
    - ring the bell after every group;
    - shared words are written by index or slice, never by a whole-column expression, which
      may read and write back words that somebody else owns.
"""

from __future__ import annotations

import platform
import sys
from _thread import RLock  # gevent puts none of its own in its place
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from batchpool.core.errors import StartError

if TYPE_CHECKING:
    from batchpool.shm.segment import Cells

U64 = npt.NDArray[np.uint64]
_NO_ENTRIES: U64 = np.empty(0, dtype=np.uint64)
_HIGH_HALF = np.uint64(32)


class DamagedRing(ValueError):
    """The counters of a ring cannot be: somebody has overwritten one."""


def fence() -> None:
    """A full barrier: every store before it is visible before any store after it."""
    RLock().acquire()


def require_memory_order() -> None:
    """Raise StartError where the order above has not been shown to hold."""
    machine = platform.machine()
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    if machine not in ("x86_64", "AMD64") or sys.implementation.name != "cpython" or not gil:
        raise StartError(
            "batchpool needs CPython with its GIL on x86-64, the only memory order its"
            f" shared-memory rings are proved for; this is {sys.implementation.name}"
            f" {'with' if gil else 'without'} GIL on {machine}"
        )


class Producer:
    """The writing end. `cells` are the segment's u64 words; `tail_at`, `head_at` index them."""

    __slots__ = ("_cells", "_entries", "_fence", "_head_at", "_mask", "_tail", "_tail_at")

    def __init__(
        self,
        cells: Cells,
        entries: U64,
        tail_at: int,
        head_at: int,
        fence: Callable[[], None] = fence,
    ) -> None:
        self._cells = cells
        self._entries = entries
        self._mask = len(entries) - 1
        self._tail_at = tail_at
        self._head_at = head_at
        self._tail = int(cells[tail_at])
        self._fence = fence

    def room(self) -> int:
        """The number of entries that may be pushed now."""
        return self._mask + 1 - (self._tail - self._cells[self._head_at])

    def last(self) -> int:
        """The entry that was pushed last, whether it was taken or not; -1 if none ever was."""
        return int(self._entries[(self._tail - 1) & self._mask]) if self._tail else -1

    def push(self, entries: U64) -> None:
        """Publish a group of entries (payload and header stand already). Never waits."""
        n = len(entries)
        assert n <= self.room(), "ring overflow: more entries than slots"
        at = self._tail & self._mask
        first = min(n, self._mask + 1 - at)
        self._entries[at : at + first] = entries[:first]
        if first < n:
            self._entries[: n - first] = entries[first:]
        self._commit(n)

    def push_few(self, entries: Sequence[int]) -> None:
        """Pushes a few plain ints, cheaper than an array for one to eight of them."""
        assert len(entries) <= self.room(), "ring overflow: more entries than slots"
        tail, mask = self._tail, self._mask
        for i, entry in enumerate(entries):
            self._entries[(tail + i) & mask] = entry
        self._commit(len(entries))

    def _commit(self, n: int) -> None:
        self._fence()
        self._tail += n
        self._cells[self._tail_at] = self._tail


class Consumer:
    """The reading end: look at entries, handle them, then move the head past them."""

    __slots__ = ("_cells", "_entries", "_head", "_head_at", "_mask", "_tail_at")

    def __init__(self, cells: Cells, entries: U64, tail_at: int, head_at: int) -> None:
        self._cells = cells
        self._entries = entries
        self._mask = len(entries) - 1
        self._tail_at = tail_at
        self._head_at = head_at
        self._head = int(cells[head_at])

    def pending(self) -> int:
        """The number of waiting entries. A peer's wrong counter shows as more than the capacity."""
        return self._cells[self._tail_at] - self._head

    def peek(self) -> U64:
        """A copy of all pending entries, oldest first; they stay pending."""
        n = self._cells[self._tail_at] - self._head  # as `pending`: quiet rings are asked often
        if n == 0:
            return _NO_ENTRIES
        if not 0 < n <= self._mask + 1:
            raise DamagedRing(f"ring counters disagree: {n} entries pending of {self._mask + 1}")
        at = self._head & self._mask
        if at + n <= self._mask + 1:
            return self._entries[at : at + n].copy()
        return np.concatenate((self._entries[at:], self._entries[: at + n - self._mask - 1]))

    def advance(self, n: int) -> None:
        """The first n pending entries are handled; their places may be reused."""
        self._head += n
        self._cells[self._head_at] = self._head


def pack(slots: npt.NDArray[np.uint32], sequences: npt.NDArray[np.uint32]) -> U64:
    """Ring entries of tickets: low 32 bits slot, high 32 bits sequence."""
    return slots.astype(np.uint64) | (sequences.astype(np.uint64) << _HIGH_HALF)


def unpack(entries: U64) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Slots and sequences of ring entries."""
    pairs = entries.view(np.uint32)
    return pairs[::2], pairs[1::2]
