"""Memory and copies between the host and a CUDA device: pinned buffers and registered lanes.

The large columns of a lane are registered with CUDA, so that the device reads and writes them
itself, extent by extent, asynchronously, with no copy by the CPU: as fast as from an ordinary
pinned buffer, and four times as fast as from memory that is not registered. Each extent is
one copy of about COPY_NS; many scattered small rows are gathered in a pinned buffer first,
which costs the CPU HOST_NS_PER_KIB but needs one copy only. Both were measured by
bench/transfer.py on an H200; `direct_pays` compares them for every batch.

Lanes of front ends are registered when the worker maps them. A local client's lane is registered
if the client asked for it (`Client(pinned=True)`), since that costs about 0.2 ms a MiB.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.shm.lane import Lane
from batchpool.worker.backends.backend import BatchPart, materialized, retype
from batchpool.worker.backends.driver_copy import StartCopies, driver_copies

_LOG = logging.getLogger("batchpool.worker")
DIRECT_ROW_BYTES = 2 * 1024  # columns of smaller rows are not registered
COPY_NS = 5_000  # the cost of one more asynchronous copy for the thread that starts it
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
        self._dtype = torch.from_numpy(_none_of(tensor)).dtype
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


def _none_of(tensor: Tensor) -> Array:
    return np.empty(0, tensor.np_dtype)


def direct_pays(extents: int, nbytes: int) -> bool:
    """True if one copy per extent costs less than gathering the bytes for a single copy."""
    return extents == 1 or extents * COPY_NS < nbytes / 1024 * HOST_NS_PER_KIB


def is_large(tensor: Tensor) -> bool:
    """True if a tensor's columns are worth registering: fixed rows of DIRECT_ROW_BYTES or more."""
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

    start: the driver's copies. worth: whether a tensor's columns are registered. inputs, outputs:
    those that are, by name. copies: started copies by kind ("in, direct",
    "in, gathered", "out, direct", "out, gathered"), those of the CUDA backend included.
    """

    def __init__(
        self,
        torch: Any,
        device: Any,
        spec: ModelSpec,
        start: StartCopies | None = None,
        worth: Callable[[Tensor], bool] = is_large,
    ) -> None:
        self._start = start or driver_copies(torch, device)
        able = self._start is not None  # without a driver that copies, all rows are gathered
        self.inputs = {t.name: t for t in spec.inputs if able and worth(t)}
        self.outputs = {t.name: t for t in spec.outputs if able and worth(t)}
        self.copies: Counter[str] = Counter()
        self._torch = torch
        self._device = device
        # lane -> (direction, tensor name) -> the column's address
        self._lanes: dict[Lane, dict[tuple[str, str], int]] = {}
        self._dtypes = {  # torch's
            (direction, name): retype(torch, tensor, torch.from_numpy(_none_of(tensor))).dtype
            for direction, tensors in (("in", self.inputs), ("out", self.outputs))
            for name, tensor in tensors.items()
        }
        self._padding: dict[str, Any] = {}

    def pin(self, lane: Lane) -> None:
        """Register a lane's large columns; if CUDA refuses one, its rows are gathered instead."""
        registered: dict[tuple[str, str], int] = {}
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
                registered[direction, name] = array.ctypes.data
        if registered:
            self._lanes[lane] = registered

    def unpin(self, lane: Lane) -> None:
        """Unregister a lane before it is unmapped; no copy of its rows may be under way."""
        self._unregister(self._lanes.pop(lane, {}))

    def _unregister(self, columns: dict[tuple[str, str], int]) -> None:
        for address in columns.values():
            self._cudart().cudaHostUnregister(address)

    def _cudart(self) -> Any:
        return self._torch.cuda.cudart()

    def fetch(
        self,
        tensor: Tensor,
        parts: Sequence[BatchPart],
        n: int,
        padding: Array | None,
        into: Any = None,
    ) -> Any | None:
        """Start copying a large input to the device: a tensor [n, *row shape].

        padding: [1, *row shape], repeated behind the rows of the parts. into: a contiguous device
        tensor [n or more, *row shape] to copy into, else a new one. Uses the current stream.
        Returns None where gathering costs less, or where a lane is not registered.
        """
        extents = self._extents("in", tensor, parts)
        if extents is None:
            return None
        self.copies["in, direct"] += len(extents)
        rows, row_bytes = parts[-1].stop, tensor.row_bytes
        if into is None:
            into = self._torch.empty(
                (n, *tensor.max_shape), dtype=self._dtypes["in", tensor.name], device=self._device
            )
        target = into[:n]
        at = into.data_ptr()
        assert self._start is not None
        self._start([(at + row * row_bytes, slot, nbytes) for slot, nbytes, row in extents])
        if n > rows:
            assert padding is not None
            target[rows:] = self._padding_row(tensor, padding, target.dtype)
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
        if value.dtype != self._dtypes["out", tensor.name]:
            return False
        value = materialized(value).contiguous()
        at, row_bytes = value.data_ptr(), tensor.row_bytes
        assert self._start is not None
        self._start([(slot, at + row * row_bytes, nbytes) for slot, nbytes, row in extents])
        self.copies["out, direct"] += len(extents)
        return True

    def upload(self, target: Any, source: Any) -> None:
        """Start copying a contiguous tensor in pinned memory into one on the device, on the current
        stream."""
        nbytes = source.numel() * source.element_size()
        assert self._start is not None
        self._start([(target.data_ptr(), source.data_ptr(), nbytes)])

    def _extents(
        self, direction: str, tensor: Tensor, parts: Sequence[BatchPart]
    ) -> list[tuple[int, int, int]] | None:
        """(address of the first slot, bytes, first row of the batch) of every extent, if copying
        each of them pays."""
        row_bytes = tensor.row_bytes
        if not direct_pays(sum([part.extents for part in parts]), parts[-1].stop * row_bytes):
            return None
        extents = []
        for part in parts:
            columns = self._lanes.get(part.lane)
            if columns is None:
                return None
            column = columns[direction, tensor.name]
            extents += [
                (column + slot * row_bytes, count * row_bytes, row)
                for slot, count, row in extents_of(part)
            ]
        return extents
