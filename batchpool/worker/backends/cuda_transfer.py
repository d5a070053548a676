"""Memory and copies between the host and a CUDA device: pinned buffers and registered lanes.

The large columns of a lane are registered with CUDA, so that the device reads and writes them
itself, extent by extent, asynchronously, with no copy by the CPU: as fast as from an ordinary
pinned buffer, and four times as fast as from memory that is not registered. Each extent is
one copy of about COPY_NS; many scattered small rows are gathered in a pinned buffer first,
which costs the CPU HOST_NS_PER_KIB but needs one copy only. Both were measured by
bench/transfer.py on an H100; `direct_pays` compares them for every batch.

Lanes of front ends are registered when the worker maps them. A local client's lane is registered
if the client asked for it (`Client(pinned=True)`), since that costs about 0.2 ms a MiB.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.shm.columns import TensorColumn
from batchpool.shm.lane import Lane
from batchpool.worker.backends.backend import BatchPart, materialized, retype

_LOG = logging.getLogger("batchpool.worker")
DIRECT_ROW_BYTES = 16 * 1024  # columns of smaller rows are not registered
COPY_NS = 16_000  # the cost of one more asynchronous copy for the thread that starts it
HOST_NS_PER_KIB = 130  # copying rows between slots and a pinned buffer: 8 GB/s


class PinnedBuffer:
    """Page-locked host memory for up to `rows` rows of a numeric tensor.

    The device copies from and to it by itself. `array` and `tensor` are two views of the same
    memory. pin: False where there is no device. The content is zero at first.
    """

    def __init__(self, torch: Any, tensor: Tensor, rows: int, *, pin: bool) -> None:
        self._torch = torch
        self._tensor = tensor
        nbytes = max(1, tensor.row_bytes * rows)
        self._bytes = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=pin)
        self._host: Array = self._bytes.numpy()
        self._dtype = torch.from_numpy(np.empty(0, tensor.np_dtype)).dtype
        self._full = None
        if not tensor.dynamic:  # a new view costs 5 us, a slice of an existing one 0.2 us
            shape = (rows, *tensor.max_shape)
            self._full = self._view_array(shape), self._view_tensor(shape)

    def array(self, shape: tuple[int, ...]) -> Array:
        """The first rows, [n, *row shape], as a numpy array of the tensor's storage dtype."""
        return self._view_array(shape) if self._full is None else self._full[0][: shape[0]]

    def tensor(self, shape: tuple[int, ...]) -> Any:
        """The first rows, [n, *row shape], as a torch tensor of the declared dtype."""
        return self._view_tensor(shape) if self._full is None else self._full[1][: shape[0]]

    def _view_array(self, shape: tuple[int, ...]) -> Array:
        nbytes = math.prod(shape) * self._tensor.np_dtype.itemsize
        array: Array = self._host[:nbytes].view(self._tensor.np_dtype).reshape(shape)
        return array

    def _view_tensor(self, shape: tuple[int, ...]) -> Any:
        nbytes = math.prod(shape) * self._tensor.np_dtype.itemsize
        view = self._bytes[:nbytes].view(self._dtype).reshape(shape)
        return retype(self._torch, self._tensor, view)


def direct_pays(extents: int, nbytes: int) -> bool:
    """True if one copy per extent costs less than gathering the bytes for a single copy."""
    return extents == 1 or extents * COPY_NS < nbytes / 1024 * HOST_NS_PER_KIB


def is_large(tensor: Tensor) -> bool:
    """True if a tensor's columns are worth registering: fixed rows of 16 KiB or more."""
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
    """Copies of large tensors between registered lanes and one device, without the CPU.

    inputs, outputs: the large tensors by name. copies: started copies by kind ("in, direct",
    "in, gathered", "out, direct", "out, gathered"), those of the CUDA backend included.
    """

    def __init__(self, torch: Any, device: Any, spec: ModelSpec) -> None:
        self.inputs = {t.name: t for t in spec.inputs if is_large(t)}
        self.outputs = {t.name: t for t in spec.outputs if is_large(t)}
        self.copies: Counter[str] = Counter()
        self._torch = torch
        self._device = device
        # lane -> (direction, tensor name) -> torch tensor [slots, *row shape]
        self._lanes: dict[Lane, dict[tuple[str, str], Any]] = {}
        self._padding: dict[str, Any] = {}

    def pin(self, lane: Lane) -> None:
        """Register a lane's large columns; if CUDA refuses one, its rows are gathered instead."""
        registered: dict[tuple[str, str], Any] = {}
        for direction, names, columns in (
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
                    self._unregister(registered)
                    return
                registered[direction, name] = self._as_torch(columns[name])
        if registered:
            self._lanes[lane] = registered

    def unpin(self, lane: Lane) -> None:
        """Unregister a lane before it is unmapped; no copy of its rows may be under way."""
        self._unregister(self._lanes.pop(lane, {}))

    def _unregister(self, columns: dict[tuple[str, str], Any]) -> None:
        for column in columns.values():
            self._cudart().cudaHostUnregister(column.data_ptr())

    def _cudart(self) -> Any:
        return self._torch.cuda.cudart()

    def _as_torch(self, column: TensorColumn) -> Any:
        return retype(self._torch, column.tensor, self._torch.from_numpy(column.values))

    def fetch(
        self,
        tensor: Tensor,
        parts: Sequence[BatchPart],
        n: int,
        padding: Array | None,
        into: Any = None,
    ) -> Any | None:
        """Start copying a large input to the device: a tensor [n, *row shape].

        padding: [1, *row shape], repeated behind the rows of the parts. into: a device tensor
        [n or more, *row shape] to copy into, else a new one. Uses the current stream. Returns
        None where gathering costs less, or where a lane is not registered.
        """
        extents = self._extents("in", tensor, parts)
        if extents is None:
            return None
        self.copies["in, direct"] += len(extents)
        rows = parts[-1].stop
        if len(extents) == 1 and n == rows and into is None:
            column, slot, count, _ = extents[0]
            return column[slot : slot + count].to(self._device, non_blocking=True)
        dtype = extents[0][0].dtype
        if into is None:
            into = self._torch.empty((n, *tensor.max_shape), dtype=dtype, device=self._device)
        target = into[:n]
        for column, slot, count, row in extents:
            target[row : row + count].copy_(column[slot : slot + count], non_blocking=True)
        if n > rows:
            assert padding is not None
            target[rows:] = self._padding_row(tensor, padding, dtype)
        return target

    def _padding_row(self, tensor: Tensor, row: Array, dtype: Any) -> Any:
        if tensor.name not in self._padding:
            on_device = self._torch.from_numpy(row.copy()).to(self._device)
            self._padding[tensor.name] = on_device.view(dtype)
        return self._padding[tensor.name]

    def deliver(self, tensor: Tensor, parts: Sequence[BatchPart], value: Any, n: int) -> bool:
        """Start copying a large output [n, *row shape] into the slots, on the current stream.

        Returns False, with nothing started, where the value is not what was declared, where a
        lane is not registered, or where gathering costs less.
        """
        extents = self._extents("out", tensor, parts)
        if extents is None or tuple(value.shape) != (n, *tensor.max_shape):
            return False
        if value.dtype != extents[0][0].dtype:
            return False
        value = materialized(value).contiguous()
        for column, slot, count, row in extents:
            column[slot : slot + count].copy_(value[row : row + count], non_blocking=True)
        self.copies["out, direct"] += len(extents)
        return True

    def _extents(
        self, direction: str, tensor: Tensor, parts: Sequence[BatchPart]
    ) -> list[tuple[Any, int, int, int]] | None:
        """(column, first slot, rows, first row of the batch) of every extent, if that pays."""
        extents = []
        for part in parts:
            columns = self._lanes.get(part.lane)
            if columns is None:
                return None
            extents += [(columns[direction, tensor.name], *extent) for extent in extents_of(part)]
        return extents if direct_pays(len(extents), parts[-1].stop * tensor.row_bytes) else None
