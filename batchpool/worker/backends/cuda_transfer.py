"""Copies between lanes and a CUDA device, for tensors whose rows are large.

The large columns of a lane are registered with CUDA, so that the device reads and writes them
itself, extent by extent, asynchronously, with no copy by the CPU: as fast as from an ordinary
pinned buffer, and four times as fast as from memory that is not registered. Each extent is
one copy of about COPY_NS; many scattered small rows are put together in a pinned buffer first,
which costs the CPU HOST_NS_PER_KIB but needs one copy only. Both were measured by
bench/transfer.py on an H100; `pays` compares them for every batch.

Front ends' lanes are registered when the worker maps them. A local client's are where it asked
for that (`Client(pinned=True)`), since it costs about 0.2 ms a MiB.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.shm.columns import TensorColumn
from batchpool.shm.lane import Lane
from batchpool.worker.gather import BatchPart

_LOG = logging.getLogger("batchpool.worker")
DIRECT_ROW_BYTES = 16 * 1024  # columns of smaller rows are not registered
COPY_NS = 16_000  # what one more asynchronous copy costs the thread that starts it
HOST_NS_PER_KIB = 130  # copying rows between slots and a pinned buffer: 8 GB/s


def pays(extents: int, nbytes: int) -> bool:
    """Whether so many copies cost less than gathering the bytes and copying once."""
    return extents == 1 or extents * COPY_NS < nbytes / 1024 * HOST_NS_PER_KIB


def is_large(tensor: Tensor) -> bool:
    """Whether a tensor's columns are worth registering: fixed rows of 16 KiB or more."""
    return not (tensor.is_bytes or tensor.dynamic) and tensor.row_bytes >= DIRECT_ROW_BYTES


def extents_of(part: BatchPart) -> Iterator[tuple[int, int, int]]:
    """The runs of neighbouring slots of a part: (first slot, rows, first row of the batch)."""
    if isinstance(part.where, slice):
        yield part.where.start, part.stop - part.start, part.start
        return
    slots = part.slots
    starts = np.concatenate([[0], np.flatnonzero(slots[1:] != slots[:-1] + 1) + 1])
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(slots)], strict=True):
        yield int(slots[start]), stop - start, part.start + start


class LaneTransfer:
    """One worker's direct copies. copies: how many of each kind were started, for tests."""

    def __init__(self, torch: Any, device: Any, spec: ModelSpec) -> None:
        self.inputs = {t.name: t for t in spec.inputs if is_large(t)}
        self.outputs = {t.name: t for t in spec.outputs if is_large(t)}
        self.copies: Counter[str] = Counter()
        self._torch = torch
        self._device = device
        self._lanes: dict[Lane, dict[tuple[str, str], Any]] = {}  # road, name -> [slots, ...]
        self._padding: dict[str, Any] = {}

    def adopt(self, lane: Lane) -> None:
        """Register a lane's large columns; without that its rows are gathered as others are."""
        known: dict[tuple[str, str], Any] = {}
        for road, names, columns in (
            ("in", self.inputs, lane.inputs),
            ("out", self.outputs, lane.outputs),
        ):
            for name in names:
                array = columns[name].values
                if int(self._cudart().cudaHostRegister(array.ctypes.data, array.nbytes, 0)) != 0:
                    _LOG.warning(
                        "%d bytes of a lane could not be registered with CUDA; its rows are"
                        " copied by the CPU first", array.nbytes,
                    )  # fmt: skip
                    self._unregister(known)
                    return
                known[road, name] = self._as_torch(columns[name])
        if known:
            self._lanes[lane] = known

    def release(self, lane: Lane) -> None:
        """Before the lane is unmapped; none of its rows is under way."""
        self._unregister(self._lanes.pop(lane, {}))

    def _unregister(self, columns: dict[tuple[str, str], Any]) -> None:
        for column in columns.values():
            self._cudart().cudaHostUnregister(column.data_ptr())

    def _cudart(self) -> Any:
        return self._torch.cuda.cudart()

    def _as_torch(self, column: TensorColumn) -> Any:
        view = self._torch.from_numpy(column.values)
        return view.view(self._torch.bfloat16) if column.tensor.dtype == "bfloat16" else view

    def fetch(
        self,
        tensor: Tensor,
        parts: Sequence[BatchPart],
        n: int,
        padding: Array | None,
        into: Any = None,
    ) -> Any | None:
        """A large input as a tensor [n, *row shape] on the device, on the current stream.

        padding: [1, *row shape], for the rows beyond those of the parts. into: [n or more, *row
        shape], where they are to lie. None: gather instead.
        """
        moves = self._moves("in", tensor, parts)
        if moves is None:
            return None
        self.copies["in, direct"] += len(moves)
        rows = parts[-1].stop
        if len(moves) == 1 and n == rows and into is None:
            column, slot, count, _ = moves[0]
            return column[slot : slot + count].to(self._device, non_blocking=True)
        dtype = moves[0][0].dtype
        if into is None:
            into = self._torch.empty((n, *tensor.max_shape), dtype=dtype, device=self._device)
        there = into[:n]
        for column, slot, count, row in moves:
            there[row : row + count].copy_(column[slot : slot + count], non_blocking=True)
        if n > rows:
            assert padding is not None
            there[rows:] = self._padding_row(tensor, padding, dtype)
        return there

    def _padding_row(self, tensor: Tensor, row: Array, dtype: Any) -> Any:
        if tensor.name not in self._padding:
            there = self._torch.from_numpy(row.copy()).to(self._device)
            self._padding[tensor.name] = there.view(dtype)
        return self._padding[tensor.name]

    def deliver(self, tensor: Tensor, parts: Sequence[BatchPart], value: Any, n: int) -> bool:
        """Copy a large output [n, *row shape] into the slots, on the current stream.

        False where it must go the common way: it is not what was declared, or its lanes are not
        registered.
        """
        moves = self._moves("out", tensor, parts)
        if moves is None or tuple(value.shape) != (n, *tensor.max_shape):
            return False
        if value.dtype != moves[0][0].dtype:
            return False
        value = value.detach().contiguous()
        for column, slot, count, row in moves:
            column[slot : slot + count].copy_(value[row : row + count], non_blocking=True)
        self.copies["out, direct"] += len(moves)
        return True

    def _moves(
        self, road: str, tensor: Tensor, parts: Sequence[BatchPart]
    ) -> list[tuple[Any, int, int, int]] | None:
        """(column, first slot, rows, first row of the batch) of every extent, if that pays."""
        moves = []
        for part in parts:
            known = self._lanes.get(part.lane)
            if known is None:
                return None
            moves += [(known[road, tensor.name], *extent) for extent in extents_of(part)]
        return moves if pays(len(moves), parts[-1].stop * tensor.row_bytes) else None
