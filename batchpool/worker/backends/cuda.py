"""How a worker runs a batch of a torch model on a CUDA device.

Two batches are in flight, each on its own stream, so that the copies of one overlap the kernels
of the other. Large rows are copied by the device straight out of and into registered lanes
(worker/backends/cuda_transfer.py); the others are gathered by the CPU into a pinned buffer, one copy each way:

    input, large rows                 device reads the lane: no copy by the CPU, one per extent
    input, small, dynamic, scattered  one copy by the CPU, one by the device
    output, large rows                device writes the lane, one copy per extent
    output, other                     one copy by the device, one by the CPU

A model with `cuda_graphs = True` is captured (worker/backends/cuda_graphs.py); its copies are the same.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.model import Model
from batchpool.shm.lane import Lane
from batchpool.worker.backends.cpu import batch_of, call_model, to_host
from batchpool.worker.backends.cuda_graphs import CudaGraphs, capture_on, graph_sizes
from batchpool.worker.backends.cuda_transfer import LaneTransfer
from batchpool.worker.backends.pinned import PinnedBuffer
from batchpool.worker.gather import BatchPart
from batchpool.worker.outputs import IN_PLACE
from batchpool.worker.padding import host_room

_LOOK_NS = 100_000  # what a thread that looks whether a batch is done may use of its core


@dataclass
class StreamBuffers:
    """What one of the batches in flight has for itself. given: the arrays in `rooms` that were
    handed out for the next launch; outputs: pinned buffers, kept as large as they were needed."""

    stream: Any
    event: Any
    rooms: dict[str, PinnedBuffer]
    graphs: CudaGraphs | None
    given: dict[str, Array] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)


class CudaBackend:
    """Runs a torch model on one CUDA device: two batches in flight, each on its own stream.

    batch_sizes: the sizes that the model allows; () for any up to max_batch.
    """

    depth = 2
    gathers = True

    def __init__(
        self,
        model: Model,
        spec: ModelSpec,
        device: str,
        max_batch: int,
        batch_sizes: Sequence[int] = (),
    ) -> None:
        import torch

        self._torch = torch
        self._model = model
        self._spec = spec
        self._device = torch.device(device)
        self._tensors = {t.name: t for t in (*spec.inputs, *spec.parameters)}
        self.transfer = LaneTransfer(torch, self._device, spec)
        self.direct = frozenset(self.transfer.inputs)
        self.graph_sizes = graph_sizes(max_batch, batch_sizes) if model.cuda_graphs else ()
        self._turns = [self._turn(max_batch) for _ in range(self.depth)]
        self._next = self._turns[0]

    def _turn(self, max_batch: int) -> StreamBuffers:
        torch: Any = self._torch
        rooms = {
            name: PinnedBuffer(torch, tensor, max_batch, pin=True)
            for name, tensor in self._tensors.items()
            if not tensor.is_bytes
        }
        graphs = None
        if sizes := self.graph_sizes:
            # A memory pool for each turn, since the turns' graphs run at the same time.
            capture = capture_on(torch, torch.cuda.graph_pool_handle())
            large = self.transfer.inputs, self.transfer.outputs
            graphs = CudaGraphs(
                torch, self._model, self._spec, self._device, rooms, *large, sizes, capture
            )
        # Blocking: the thread sleeps in the driver instead of spinning on a core.
        event = torch.cuda.Event(blocking=True)
        return StreamBuffers(torch.cuda.Stream(device=self._device), event, rooms, graphs)

    def room(self, tensor: Tensor, shape: tuple[int, ...]) -> Array:
        """The pinned memory of the next launch itself, so that the batch is copied once."""
        room = self._next.rooms.get(tensor.name)
        if room is None:
            return host_room(tensor, shape)
        array = self._next.given[tensor.name] = room.array(shape)
        return array

    def adopt(self, lane: Lane) -> None:
        self.transfer.adopt(lane)

    def release(self, lane: Lane) -> None:
        self.transfer.release(lane)

    def fetch(
        self, tensor: Tensor, parts: Sequence[BatchPart], n: int, padding: Array | None
    ) -> Any | None:
        """A large input of the next launch on the device already, or None: gather it."""
        turn = self._next
        self._torch.cuda.set_stream(turn.stream)
        into = None if turn.graphs is None else turn.graphs.inputs[tensor.name]
        return self.transfer.fetch(tensor, parts, n, padding, into)

    def launch(
        self,
        rows: int,
        inputs: dict[str, Any],
        sizes: dict[str, Array | None],
        views: bool,
        parts: Sequence[BatchPart] = (),
    ) -> Any:
        torch, turn = self._torch, self._next
        self._next = self._turns[self._turns[0] is turn]
        # For good: entering and leaving a stream's context takes torch 20 us.
        torch.cuda.set_stream(turn.stream)
        try:
            with torch.inference_mode():
                if turn.graphs is None:
                    kept, host = self._call(turn, rows, inputs, sizes, parts)
                else:
                    kept, host = None, self._replay(turn, turn.graphs, inputs, parts)
                turn.event.record(turn.stream)
        except BaseException:
            with contextlib.suppress(RuntimeError):  # of a broken device: the first error counts
                turn.stream.synchronize()  # a copy into slots may be under way that others get next
            raise
        finally:
            turn.given = {}
        return turn, host, kept

    def _call(
        self,
        turn: StreamBuffers,
        rows: int,
        inputs: dict[str, Any],
        sizes: dict[str, Array | None],
        parts: Sequence[BatchPart],
    ) -> tuple[Any, Any]:
        """Run the model; what must live until it is done, and its outputs on their way."""
        batch: dict[str, Any] = {}
        for name, array in inputs.items():
            if self._tensors[name].is_bytes or not isinstance(array, np.ndarray):
                batch[name] = array
            else:
                here = self._gathered(turn, name, array)
                batch[name] = here.to(self._device, non_blocking=True)
        found = call_model(self._model, batch_of(rows, batch, sizes))
        if not isinstance(found, Mapping):
            return batch, found
        return batch, self._to_host(turn, found, parts, len(next(iter(batch.values()))))

    def _replay(
        self,
        turn: StreamBuffers,
        graphs: CudaGraphs,
        inputs: dict[str, Any],
        parts: Sequence[BatchPart],
    ) -> dict[str, Any]:
        """Run the model's graph; its outputs on their way."""
        n = len(next(iter(inputs.values())))
        for name, array in inputs.items():
            if isinstance(array, np.ndarray):
                here = self._gathered(turn, name, array)
                if name in self.direct:
                    graphs.inputs[name][:n].copy_(here, non_blocking=True)
        captured = graphs.launch(n)
        large = {name: value[:n] for name, value in captured.on_device.items()}
        host = self._to_host(turn, large, parts, n)
        for name, array in captured.on_host.items():
            host[name] = array[:n]
        if captured.on_host:
            self.transfer.copies["out, gathered"] += len(captured.on_host)
        return host

    def _gathered(self, turn: StreamBuffers, name: str, array: Array) -> Any:
        """The rows in pinned memory, put there unless they were put together there."""
        room = turn.rooms[name]
        if turn.given.get(name) is not array:
            room.array(array.shape)[...] = array
        self.transfer.copies["in, gathered"] += 1
        return room.tensor(array.shape)

    def _to_host(
        self, turn: StreamBuffers, found: Mapping[str, Any], parts: Sequence[BatchPart], n: int
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
            buffer = turn.outputs.get(name)
            if buffer is None or buffer.numel() < nbytes:
                buffer = self._torch.empty(max(1, nbytes), dtype=self._torch.uint8, pin_memory=True)
                turn.outputs[name] = buffer
            pinned = buffer[:nbytes].view(value.dtype).reshape(value.shape)
            pinned.copy_(value, non_blocking=True)
            host[name] = pinned
        return host

    def _await(self, event: Any) -> None:
        """Look for a moment first: being woken by the driver takes a small batch's whole time."""
        until_ns = time.perf_counter_ns() + _LOOK_NS
        while not event.query():
            if time.perf_counter_ns() > until_ns:
                event.synchronize()
                return

    def finish(self, flight: Any) -> Any:
        turn, host, _ = flight
        self._await(turn.event)
        if not isinstance(host, Mapping):
            return host
        return {name: to_host(self._torch, value) for name, value in host.items()}
