"""Tensors in a lane: rows of arrays written into slots and read back out of them.

The same code serves the client's inputs and the worker's outputs (store), and the worker's
inputs and the client's outputs (load). `where` is a slice for neighbouring slots, which makes
a view or one copy, or an index array for scattered ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.packed_strings import PackedStrings
from batchpool.core.tensors.spec import Tensor
from batchpool.shm.segment import Octets

_FEW_SLOTS = 64  # up to this, plain numbers are cheaper than arrays
_WIDTH_BYTES = 512  # of strings that are copied together: the processor's caches hold a batch

Where: TypeAlias = "slice | npt.NDArray[Any]"


def where_of(slots: Sequence[int] | npt.NDArray[Any]) -> Where:
    """A slice if the slots are neighbours in rising order, else an index array."""
    if type(slots) is range and slots.step == 1:
        return slice(slots.start, slots.stop)
    n = len(slots)
    first = int(slots[0])
    if n == 1:
        return slice(first, first + 1)
    if int(slots[-1]) - first == n - 1:
        array = np.asarray(slots)
        if n <= _FEW_SLOTS:
            are_neighbours = array.tolist() == list(range(first, first + n))
        else:  # in a third of the time that `all` takes
            are_neighbours = np.count_nonzero(array[1:] - array[:-1] == 1) == n - 1
        return slice(first, first + n) if are_neighbours else array
    return np.asarray(slots)


def slots_of(where: Where) -> Sequence[int]:
    """The slots one by one."""
    if isinstance(where, slice):
        return range(where.start, where.stop)
    slots: list[int] = where.tolist()
    return slots


@dataclass(frozen=True)
class TensorColumn:
    """One tensor's column: values [slots, *max row shape], sizes and lengths beside it.

    sizes: u32 [slots, k] of the whole road; places: (its column there, row dimension).
    lengths: of a bytes tensor's elements, u32 [slots, *max row shape]. octets: the bytes of the
    values, of a fixed tensor of numbers and of a tensor with a single string a row. row_bytes: of
    the former; 0 for others.
    """

    tensor: Tensor
    values: Array
    sizes: Array
    places: tuple[tuple[int, int], ...]
    lengths: Array | None
    octets: Octets | None
    row_bytes: int

    def store(self, where: Where, rows: Array | PackedStrings | memoryview) -> None:
        """Write rows [n, *row shape] (all of one size) into n slots. A memoryview holds their
        bytes one row behind the other, of a fixed tensor of numbers."""
        if isinstance(rows, memoryview):
            return self._store_octets(where, rows)
        tail = tuple(slice(0, m) for m in rows.shape[1:]) if self.places else ()
        for k, dim in self.places:
            self.sizes[where, k] = rows.shape[1 + dim]
        if self.lengths is None:
            if tail:
                self.values[(where, *tail)] = rows
            else:
                self.values[where] = rows
        else:
            self._store_bytes(where, rows)

    def _store_octets(self, where: Where, rows: memoryview) -> None:
        """Copy the bytes of rows as they are: in a third of the time that an array takes."""
        if not isinstance(where, slice):
            array: Array = np.frombuffer(rows, self.values.dtype)
            self.values[where] = array.reshape(len(where), *self.values.shape[1:])
            return
        octets, width = self.octets, self.row_bytes
        assert octets is not None
        octets[where.start * width : where.stop * width] = rows

    def octets_of(self, where: Where) -> Any:
        """The bytes of these rows of a fixed tensor of numbers, as a buffer: a view of the lane
        where they are neighbours, else a copy."""
        if not isinstance(where, slice):
            return self.values[where]
        octets, width = self.octets, self.row_bytes
        assert octets is not None
        return octets[where.start * width : where.stop * width]

    def store_sizes(self, where: Where, sizes: npt.NDArray[np.int64]) -> None:
        """Write each row's own sizes, [n, dynamic dimensions], over those that `store` wrote."""
        for at, (k, _) in enumerate(self.places):
            self.sizes[where, k] = sizes[:, at]

    def _store_bytes(self, where: Where, rows: Array | PackedStrings) -> None:
        assert self.lengths is not None
        if isinstance(rows, PackedStrings):
            return self._store_packed(where, rows)
        if rows.ndim == 1:
            return self._store_strings(where, rows.tolist())
        for slot, row in zip(slots_of(where), rows, strict=True):
            for at, element in elements_of(row):
                place = (slot, *at)
                self.values[place][: len(element)] = np.frombuffer(element, np.uint8)
                self.lengths[place] = len(element)

    def _store_strings(self, where: Where, elements: Sequence[Any]) -> None:
        """Write one byte string, or a view of one, a slot. Through a memoryview: an array takes
        five times as long."""
        assert self.lengths is not None
        assert self.octets is not None
        octets, lengths = self.octets, list(map(len, elements))
        self._check_length(max(lengths, default=0))
        starts = self._starts(slots_of(where), lengths)
        for start, element, length in zip(starts, elements, lengths, strict=True):
            octets[start : start + length] = element
        self.lengths[where] = lengths

    def _store_packed(self, where: Where, strings: PackedStrings) -> None:
        """Write one string of a buffer a slot. They are copied together, each with what stands
        behind it in the buffer up to one width, in a third of the time; longer ones follow."""
        assert self.lengths is not None
        lengths, starts = strings.lengths, strings.offsets[:-1]
        self._check_length(int(lengths.max(initial=0)))
        width = min(int(lengths.max(initial=0)), _WIDTH_BYTES)
        longer = np.flatnonzero(lengths > width)
        end = int(starts[-1]) + width if len(starts) else 0
        if not width or end > len(strings.content) or 2 * len(longer) > len(lengths):
            return self._store_strings(where, strings.pieces())
        shape = (len(strings.content) - width + 1, width)
        at_each_byte = np.ndarray(shape, np.uint8, strings.content, strides=(1, 1))
        self.values[where, :width] = at_each_byte[starts]
        self.lengths[where] = lengths
        if len(longer):
            slots = slots_of(where)
            for at in longer.tolist():
                string = strings.content[starts[at] : strings.offsets[at + 1]]
                self.values[slots[at], : len(string)] = string

    def _check_length(self, length: int) -> None:
        """Raise ValueError for a string that is longer than a row takes."""
        most = self.tensor.max_bytes or 0
        if length > most:
            raise ValueError(f"a byte string of {length} bytes came; at most {most} fit")

    def store_ragged(self, slots: Sequence[int], rows: Sequence[Array]) -> None:
        """Write rows of different sizes, one array [*row shape] a slot."""
        if len(self.tensor.shape) == 1 and self.places and self.lengths is None:
            return self._store_runs(slots, rows)
        for slot, row in zip(slots, rows, strict=True):
            self.store(slice(slot, slot + 1), row[np.newaxis])

    def _store_runs(self, slots: Sequence[int], rows: Sequence[Array]) -> None:
        """`store_ragged` of rows of one dimension, as token ids are: in a fifth of the time."""
        values, lengths = self.values, list(map(len, rows))
        for slot, row, length in zip(slots, rows, lengths, strict=True):
            values[slot, :length] = row
        self.sizes[slots, self.places[0][0]] = lengths

    def sizes_of(
        self, where: Where, most: npt.NDArray[np.int64] | None = None
    ) -> npt.NDArray[np.int64] | None:
        """The rows' dynamic sizes, [n, dynamic dimensions] clipped to the maximum; None if fixed.

        Clipped, since the other side wrote them: nobody may be led out of the column. most: a lower
        maximum, [dynamic dimensions]; None for the declared one.
        """
        if not self.places:
            return None
        found = self.sizes[where][:, [k for k, _ in self.places]].astype(np.int64)
        if most is None:
            declared = [self.tensor.max_shape[dim] for _, dim in self.places]
            most = np.array(declared, dtype=np.int64)
        return np.minimum(found, most)

    def load(self, where: Where, *, sizes: npt.NDArray[np.int64] | None = None) -> Array:
        """Read rows as [n, *row shape], cut to the largest of them and padded.

        A view of the column itself where `where` is a slice and the tensor fixed; else a copy.
        """
        if sizes is None:
            sizes = self.sizes_of(where)
        if self.lengths is not None:
            return self._load_bytes(where, sizes)
        if sizes is None:
            array: Array = self.values[where]
            return array
        largest = sizes.max(axis=0, initial=0)
        tail = [slice(0, m) for m in self.tensor.max_shape]
        for most, (_, dim) in zip(largest.tolist(), self.places, strict=True):
            tail[dim] = slice(0, most)
        rows = np.array(self.values[(where, *tail)])
        if (sizes != largest).any():
            pad_rows(rows, sizes, [dim for _, dim in self.places], self.tensor.stored_pad)
        return rows

    def _load_bytes(self, where: Where, sizes: npt.NDArray[np.int64] | None) -> Array:
        if not self.tensor.shape:
            return self._load_strings(where)
        slots = (
            np.arange(where.start, where.stop, dtype=np.int64)
            if isinstance(where, slice)
            else where
        )
        shape = list(self.tensor.max_shape)
        if sizes is not None:
            for most, (_, dim) in zip(
                sizes.max(axis=0, initial=0).tolist(), self.places, strict=True
            ):
                shape[dim] = most
        rows = np.full((len(slots), *shape), b"", dtype=object)
        for i, slot in enumerate(slots.tolist()):
            own = list(shape)
            if sizes is not None:
                for k, (_, dim) in enumerate(self.places):
                    own[dim] = int(sizes[i, k])
            self._load_elements(slot, own, rows, i)
        return rows

    def _load_strings(self, where: Where) -> Array:
        found = self.strings(where)
        rows = np.empty(len(found), object)
        rows[:] = found
        return rows

    def strings(self, where: Where) -> list[bytes]:
        """One byte string a slot, of a tensor with a single one a row. Each is cut to the maximum:
        the other side wrote its length."""
        assert self.lengths is not None
        assert self.octets is not None
        octets, most = self.octets, self.tensor.max_bytes or 0
        lengths = [min(length, most) for length in self.lengths[where].tolist()]
        starts = self._starts(slots_of(where), lengths)
        return [
            octets[start : start + length].tobytes()
            for start, length in zip(starts, lengths, strict=True)
        ]

    def _starts(self, slots: Sequence[int], lengths: Sequence[int]) -> list[int]:
        """The places in the octets of byte strings of these lengths, one a slot."""
        width = self.values.shape[1]
        return [slot * width for slot in slots]

    def _load_elements(self, slot: int, own: Sequence[int], rows: Array, i: int) -> None:
        """Read the byte strings of one slot, which has its own shape, into row i."""
        assert self.lengths is not None
        assert self.tensor.max_bytes is not None
        for at in np.ndindex(*own):
            length = min(int(self.lengths[(slot, *at)]), self.tensor.max_bytes)
            rows[(i, *at)] = self.values[(slot, *at)][:length].tobytes()

    def copy_to(self, where: Where, sizes: npt.NDArray[np.int64], rows: Array) -> None:
        """Copy rows of a dynamic tensor into `rows` [n, *row shape], which is cut to the largest.

        What stands behind a shorter row is undefined.
        """
        rows[...] = self.values[(where, *(slice(0, m) for m in rows.shape[1:]))]


def elements_of(row: Any) -> list[tuple[tuple[int, ...], Any]]:
    """The byte strings of one row with their places; a row of shape () is one itself."""
    if isinstance(row, np.ndarray):
        return [(at, row[at]) for at in np.ndindex(*row.shape)]
    return [((), row)]


def pad_rows(rows: Array, sizes: npt.NDArray[np.int64], dims: Sequence[int], pad: Any) -> None:
    """Overwrite in place what lies beyond each row's own sizes. rows: [n, *row shape]."""
    for k, dim in enumerate(dims):
        length = rows.shape[1 + dim]
        beyond = np.arange(length) >= sizes[:, k, np.newaxis]  # [n, length]
        if rows.ndim == 2:  # as token ids are: in a third of the time
            np.putmask(rows, beyond, pad)
        else:
            np.moveaxis(rows, 1 + dim, 1)[beyond] = pad
