"""The admitted rows of one model, oldest first, in arrays of the batcher's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]


class Field:
    """The rows of a queue block [fields, n]. Plain ints: numpy indexes twice as fast by them."""

    LANE = 0
    SLOT = 1
    SEQUENCE = 2
    SUBMIT_NS = 3
    DEADLINE_NS = 4
    PRIORITY = 5
    FLOW = 6
    ATTEMPT = 7


FIELDS = 8


def least(values: npt.NDArray[Any]) -> int:
    """The least of at least one value; a reduction costs ten times as much as one look."""
    return int(values[0]) if len(values) == 1 else int(values.min())


def largest(values: npt.NDArray[Any]) -> int:
    """The largest of at least one value."""
    return int(values[0]) if len(values) == 1 else int(values.max())


class Queue:
    """A first-in first-out block of int64 columns; taking from the front moves no memory."""

    def __init__(self, capacity: int = 1024) -> None:
        self._block: I64 = np.empty((FIELDS, capacity), dtype=np.int64)
        self._head = 0
        self._tail = 0

    def __len__(self) -> int:
        return self._tail - self._head

    def view(self) -> I64:
        """The live rows [FIELDS, n]; valid until the next change."""
        return self._block[:, self._head : self._tail]

    def append(self, rows: I64) -> None:
        """Rows [FIELDS, n] at the back."""
        n = rows.shape[1]
        if self._tail + n > self._block.shape[1]:
            self._make_room(n)
        self._block[:, self._tail : self._tail + n] = rows
        self._tail += n

    def prepend(self, rows: I64) -> None:
        """Rows [FIELDS, n] at the front: they were here before."""
        live = self.view().copy()
        self._head = self._tail = 0
        self.append(rows)
        self.append(live)

    def take(self, rows: slice | npt.NDArray[Any]) -> I64:
        """Remove and return rows by position; a prefix slice costs no move of the others."""
        live = self.view()
        taken: I64 = live[:, rows].copy()
        if isinstance(rows, slice) and rows.start == 0:
            self._head += taken.shape[1]
        else:
            keep = np.ones(len(self), dtype=bool)
            keep[rows] = False
            kept = live[:, keep]
            self._tail = self._head + kept.shape[1]
            self._block[:, self._head : self._tail] = kept
        if self._head == self._tail:
            self._head = self._tail = 0
        return taken

    def _make_room(self, n: int) -> None:
        live = self.view()
        size = live.shape[1]
        if size + n > self._block.shape[1] // 2:
            grown = np.empty((FIELDS, 2 * (size + n)), dtype=np.int64)
            grown[:, :size] = live
            self._block = grown
        else:
            self._block[:, :size] = live.copy()
        self._head, self._tail = 0, size
