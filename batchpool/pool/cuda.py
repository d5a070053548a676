"""How a worker runs a batch of a torch model on a CUDA device.

Two batches are in flight, each on its own stream, so that the copies of one overlap the kernels
of the other. Large rows are copied by the device straight out of and into registered lanes
(pool/transfer.py); the others are gathered by the CPU into a pinned buffer, one copy each way:

    input, large rows                 device reads the lane: no copy by the CPU, one per extent
    input, small, dynamic, scattered  one copy by the CPU, one by the device
    output, large rows                device writes the lane, one copy per extent
    output, other                     one copy by the device, one by the CPU
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from batchpool.core.tensors import Array, ModelSpec, Tensor
from batchpool.model import Model
from batchpool.pool.answers import IN_PLACE
from batchpool.pool.gather import Part
from batchpool.pool.padding import host_room
from batchpool.pool.runner import batch_of, call_model, retype, to_host
from batchpool.pool.transfer import Transfer
from batchpool.shm.lane import Lane


class CudaRunner:
    """Runs a torch model on one CUDA device: two batches in flight, each on its own stream."""

    depth = 2
    gathers = True

    def __init__(self, model: Model, spec: ModelSpec, device: str, max_batch: int) -> None:
        import torch

        self._torch = torch
        self._model = model
        self._device = torch.device(device)
        self._tensors = {t.name: t for t in (*spec.inputs, *spec.parameters)}
        self.transfer = Transfer(torch, self._device, spec)
        self.direct = frozenset(self.transfer.inputs)
        stream: Any = torch.cuda.Stream
        self._streams = [stream(device=self._device) for _ in range(self.depth)]
        self._pinned = [
            {name: self._buffer(tensor, max_batch) for name, tensor in self._tensors.items()}
            for _ in range(self.depth)
        ]
        self._outputs: list[dict[str, Any]] = [{} for _ in range(self.depth)]
        self._next = 0

    def _buffer(self, tensor: Tensor, max_batch: int) -> Any:
        if tensor.is_bytes:
            return None
        nbytes = max(1, tensor.row_bytes * max_batch)
        return self._torch.empty(nbytes, dtype=self._torch.uint8, pin_memory=True)

    def room(self, tensor: Tensor, shape: tuple[int, ...]) -> Array:
        """The pinned buffer of the next launch itself, so that the batch is copied once."""
        buffer = self._pinned[self._next][tensor.name]
        return host_room(tensor, shape) if buffer is None else _shaped(buffer, tensor, shape)

    def adopt(self, lane: Lane) -> None:
        self.transfer.adopt(lane)

    def release(self, lane: Lane) -> None:
        self.transfer.release(lane)

    def fetch(
        self, tensor: Tensor, parts: Sequence[Part], n: int, padding: Array | None
    ) -> Any | None:
        """A large input of the next launch on the device already, or None: gather it."""
        with self._torch.cuda.stream(self._streams[self._next]):
            return self.transfer.fetch(tensor, parts, n, padding)

    def launch(
        self,
        rows: int,
        inputs: dict[str, Any],
        sizes: dict[str, Array | None],
        views: bool,
        parts: Sequence[Part] = (),
    ) -> Any:
        torch, turn = self._torch, self._next
        self._next = (turn + 1) % self.depth
        stream = self._streams[turn]
        batch: dict[str, Any] = {}
        with torch.cuda.stream(stream), torch.inference_mode():
            for name, array in inputs.items():
                tensor = self._tensors[name]
                if tensor.is_bytes or not isinstance(array, np.ndarray):
                    batch[name] = array
                    continue
                batch[name] = self._to_device(self._pinned[turn][name], tensor, array)
            found = call_model(self._model, batch_of(rows, batch, sizes))
            host = found
            if isinstance(found, Mapping):
                n = len(next(iter(batch.values())))
                host = self._to_host(turn, found, parts, n)
            # Blocking: the thread sleeps in the driver instead of spinning on a core.
            event = torch.cuda.Event(blocking=True)
            event.record(stream)
        return event, host, batch

    def _to_device(self, buffer: Any, tensor: Tensor, array: Array) -> Any:
        """Gather into the pinned buffer, keep the dtype, copy asynchronously."""
        pinned = _shaped(buffer, tensor, array.shape)
        if pinned.ctypes.data != array.ctypes.data:  # else it was put together there
            pinned[...] = array
        loose = self._torch.from_numpy(np.empty(0, array.dtype)).dtype
        shaped = buffer[: array.nbytes].view(loose).reshape(array.shape)
        self.transfer.copies["in, gathered"] += 1
        return retype(self._torch, tensor, shaped.to(self._device, non_blocking=True))

    def _to_host(
        self, turn: int, found: Mapping[str, Any], parts: Sequence[Part], n: int
    ) -> dict[str, Any]:
        """Start copying outputs: large ones into their slots, others into pinned buffers kept
        for this turn."""
        host: dict[str, Any] = {}
        for name, value in found.items():
            if not (isinstance(value, self._torch.Tensor) and value.is_cuda):
                host[name] = value
                continue
            large = self.transfer.outputs.get(name) if parts else None
            if large is not None and self.transfer.deliver(large, parts, value, n):
                host[name] = IN_PLACE
                continue
            self.transfer.copies["out, gathered"] += 1
            value = value.detach().contiguous()
            nbytes = value.numel() * value.element_size()
            buffer = self._outputs[turn].get(name)
            if buffer is None or buffer.numel() < nbytes:
                buffer = self._torch.empty(max(1, nbytes), dtype=self._torch.uint8, pin_memory=True)
                self._outputs[turn][name] = buffer
            pinned = buffer[:nbytes].view(value.dtype).reshape(value.shape)
            pinned.copy_(value, non_blocking=True)
            host[name] = pinned
        return host

    def finish(self, flight: Any) -> Any:
        event, host, _ = flight
        event.synchronize()
        if not isinstance(host, Mapping):
            return host
        return {name: to_host(self._torch, value) for name, value in host.items()}


def _shaped(buffer: Any, tensor: Tensor, shape: tuple[int, ...]) -> Array:
    """The beginning of a pinned buffer as a host array of the tensor's storage dtype."""
    nbytes = math.prod(shape) * tensor.np_dtype.itemsize
    array: Array = buffer[:nbytes].numpy().view(tensor.np_dtype).reshape(shape)
    return array
