"""An input whose rows stand in the arena of their lane, each in a run of the bytes that it needs.

The client sets runs aside and writes where they are; it alone allocates. Whoever reads takes offset
and lengths once, and stays inside the arena whatever they are: a client that writes others, at any
time, gets other bytes of its own lane for its own rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from batchpool.core.layout.arena import ALIGN
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.packed_strings import PackedStrings
from batchpool.shm.columns import TensorColumn, Where, elements_of, slots_of
from batchpool.shm.segment import Cells


@dataclass(frozen=True)
class ArenaColumn(TensorColumn):
    """One tensor in the arena. values: the arena, u8 [bytes]. offsets: u64 [slots]; a row stands
    there with its own sizes, the elements of a bytes tensor one behind the other.

    offset_cells: the offsets for single loads and stores.
    """

    offsets: Array
    offset_cells: Cells

    def spans(self, rows: Array | PackedStrings, sizes: npt.NDArray[np.int64] | None) -> list[int]:
        """The bytes of each of these rows [n, *row shape]. sizes: as in `Rows`."""
        if isinstance(rows, PackedStrings):
            lengths: list[int] = rows.lengths.tolist()
            return lengths
        if self.lengths is not None:
            if not self.tensor.shape:
                return list(map(len, rows.tolist()))
            return [
                sum(len(element) for _, element in elements_of(row))
                for row in self._cut(rows, sizes)
            ]
        if sizes is None:
            return [math.prod(rows.shape[1:]) * rows.itemsize] * len(rows)
        return [row.nbytes for row in self._cut(rows, sizes)]

    def place(self, slots: Sequence[int], offsets: Sequence[int]) -> None:
        """Write where the rows in these slots will stand."""
        cells = self.offset_cells
        for slot, offset in zip(slots, offsets, strict=True):
            cells[slot] = offset

    def store_rows(
        self,
        where: Where,
        rows: Array | PackedStrings,
        sizes: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Write rows [n, *row shape] where they were placed. sizes: as in `Rows`."""
        for k, dim in self.places:
            self.sizes[where, k] = rows.shape[1 + dim]
        if sizes is not None:
            self.store_sizes(where, sizes)
        if isinstance(rows, PackedStrings):
            return self._store_strings(where, rows.pieces())
        if self.lengths is not None and not self.tensor.shape:
            return self._store_strings(where, rows.tolist())
        arena, cells = self.values, self.offset_cells
        for slot, row in zip(slots_of(where), self._cut(rows, sizes), strict=True):
            start = cells[slot]
            if self.lengths is None:
                flat = np.ascontiguousarray(row).reshape(-1).view(np.uint8)
                arena[start : start + len(flat)] = flat
                continue
            for at, element in elements_of(row):
                arena[start : start + len(element)] = np.frombuffer(element, np.uint8)
                self.lengths[(slot, *at)] = len(element)
                start += len(element)

    def store(self, where: Where, rows: Array | PackedStrings | memoryview) -> None:
        assert not isinstance(rows, memoryview), "no fixed tensor of numbers stands in an arena"
        self.store_rows(where, rows)

    def load(self, where: Where, *, sizes: npt.NDArray[np.int64] | None = None) -> Array:
        """Read rows as [n, *row shape], cut to the largest of them and padded.

        A view of the arena where it is one row of numbers; else a copy.
        """
        if sizes is None:
            sizes = self.sizes_of(where)
        if self.lengths is not None:
            return self._load_bytes(where, sizes)
        assert sizes is not None
        slots = slots_of(where)
        if len(slots) == 1:
            return self._row(slots[0], sizes[0])[np.newaxis]
        shape = list(self.tensor.max_shape)
        for most, (_, dim) in zip(sizes.max(axis=0, initial=0).tolist(), self.places, strict=True):
            shape[dim] = most
        rows: Array = np.full((len(slots), *shape), self.tensor.stored_pad, self.tensor.np_dtype)
        self.copy_to(where, sizes, rows)
        return rows

    def copy_to(self, where: Where, sizes: npt.NDArray[np.int64], rows: Array) -> None:
        for i, slot in enumerate(slots_of(where)):
            row = self._row(slot, sizes[i])
            place: tuple[int | slice, ...] = (i, *(slice(0, m) for m in row.shape))
            rows[place] = row

    def _load_elements(self, slot: int, own: Sequence[int], rows: Array, i: int) -> None:
        assert self.lengths is not None
        assert self.tensor.max_bytes is not None
        start = self.offset_cells[slot]
        for at in np.ndindex(*own):
            length = min(int(self.lengths[(slot, *at)]), self.tensor.max_bytes)
            rows[(i, *at)] = self._run(start, length).tobytes()
            start += length

    def _starts(self, slots: Sequence[int], lengths: Sequence[int]) -> list[int]:
        """Where the byte strings stand, inside the arena whatever the offsets say."""
        most, cells = len(self.values), self.offset_cells
        return [
            max(0, min(cells[slot], most - length))
            for slot, length in zip(slots, lengths, strict=True)
        ]

    def are_inside(self, slots: Iterable[int]) -> bool:
        """False if a row in these slots reaches out of the arena, or does not begin at a multiple
        of ALIGN, as no correct client writes it."""
        most, cells = len(self.values), self.offset_cells
        for slot in slots:
            start, span = cells[slot], self._span(slot)
            if start < 0 or start % ALIGN or span < 0 or start + span > most:
                return False
        return True

    def _span(self, slot: int) -> int:
        """The bytes of a row by its sizes and lengths; -1 where an element is too long."""
        shape = list(self.tensor.max_shape)
        for k, dim in self.places:
            shape[dim] = min(int(self.sizes[slot, k]), shape[dim])
        if self.lengths is None:
            return math.prod(shape) * self.tensor.np_dtype.itemsize
        most = self.tensor.max_bytes or 0
        if not shape:
            length = int(self.lengths[slot])
            return length if length <= most else -1
        place: tuple[int | slice, ...] = (slot, *map(slice, shape))
        lengths = self.lengths[place]
        if int(np.max(lengths, initial=0)) > most:
            return -1
        return int(np.sum(lengths, dtype=np.int64))

    def _cut(self, rows: Array, sizes: npt.NDArray[np.int64] | None) -> Iterator[Array]:
        """Each row with its own sizes."""
        for i, row in enumerate(rows):
            if sizes is None:
                yield row
                continue
            tail: list[Any] = [slice(None)] * len(self.tensor.shape)
            for own, (_, dim) in zip(sizes[i].tolist(), self.places, strict=True):
                tail[dim] = slice(0, own)
            yield row[tuple(tail)]

    def _row(self, slot: int, sizes: npt.NDArray[np.int64]) -> Array:
        """A row of numbers as it stands in the arena."""
        shape = list(self.tensor.max_shape)
        for own, (_, dim) in zip(sizes.tolist(), self.places, strict=True):
            shape[dim] = own
        dtype = self.tensor.np_dtype
        start = self.offset_cells[slot] // ALIGN * ALIGN  # models may rely on it
        run = self._run(start, math.prod(shape) * dtype.itemsize)
        found: Array = run.view(dtype).reshape(shape)
        return found

    def _run(self, start: int, nbytes: int) -> Array:
        """Bytes of the arena, wherever a client says that they begin."""
        start = max(0, min(start, len(self.values) - nbytes))
        run: Array = self.values[start : start + nbytes]
        return run
