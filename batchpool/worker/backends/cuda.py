"""The backend that runs a batch of a torch model on a CUDA device.

Two batches are in flight, each on its own stream, so that the copies of one overlap the kernels
of the other. The device copies large rows directly between it and registered lanes
(worker/backends/cuda_transfer.py); the CPU gathers the others in a pinned buffer:

    input, large rows                 device reads the lane: no copy by the CPU, one per extent
    input, small, dynamic, scattered  one copy by the CPU, one by the device
    output, large rows                device writes the lane, one copy per extent
    output, other                     one copy by the device, one by the CPU

A model with `cuda_graphs = True` is captured (worker/backends/cuda_graphs.py) and copied alike.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from batchpool.core.scheduler.graph_shapes import GraphShapes
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.model import Model
from batchpool.shm.lane import Lane
from batchpool.worker.backends.backend import (
    IN_PLACE,
    BatchPart,
    batch_of,
    call_model,
    host_array,
    materialized,
    to_host,
)
from batchpool.worker.backends.cuda_graphs import CudaGraphs, capture_on, graph_sizes
from batchpool.worker.backends.cuda_transfer import LaneTransfer, PinnedBuffer

_POLL_NS = 100_000  # how long a thread polls for the end of a batch before it sleeps


@dataclass
class BatchStream:
    """A CUDA stream, and the memory that its batch in flight uses.

    inputs: a pinned buffer for each numeric input and parameter. gathered: the arrays of them
    that `allocate` gave out for the next launch. outputs: pinned memory (uint8) by output name,
    as large as the largest batch so far needed.
    """

    stream: Any
    event: Any
    inputs: dict[str, PinnedBuffer]
    graphs: CudaGraphs | None
    gathered: dict[str, Array] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)


class CudaBackend:
    """Runs a torch model on one CUDA device: two batches in flight, each on its own stream.

    batch_sizes: the sizes that the model allows; () for any up to max_batch. max_elements: of each
    input of a batch, padded; 0 for any number.
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
        max_elements: int = 0,
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
        self._max_elements = max_elements
        self._streams = [self._make_stream(max_batch) for _ in range(self.depth)]
        self._next = self._streams[0]

    def _make_stream(self, max_batch: int) -> BatchStream:
        torch: Any = self._torch
        inputs = {
            name: PinnedBuffer(torch, tensor, max_batch, pin=True)
            for name, tensor in self._tensors.items()
            if not tensor.is_bytes
        }
        graphs = None
        if sizes := self.graph_sizes:
            # Graphs of two streams run at the same time, so they must not share a memory pool.
            capture = capture_on(torch, torch.cuda.graph_pool_handle())
            large = self.transfer.inputs, self.transfer.outputs
            shapes = GraphShapes(self._spec, self._model.graph_sizes, self._max_elements)
            graphs = CudaGraphs(
                torch, self._model, self._spec, self._device, inputs, *large, sizes, shapes, capture
            )
        # Blocking: the thread sleeps in the driver instead of spinning on a core.
        event = torch.cuda.Event(blocking=True)
        return BatchStream(torch.cuda.Stream(device=self._device), event, inputs, graphs)

    def allocate(self, tensor: Tensor, shape: tuple[int, ...]) -> Array:
        """A view of the next launch's pinned buffer, so that the rows are copied only once."""
        if tensor.name not in self._next.inputs:
            return host_array(tensor, shape)
        array = self._next.gathered[tensor.name] = _room(self._next, tensor.name, shape)
        return array

    def pin(self, lane: Lane) -> None:
        self.transfer.pin(lane)

    def unpin(self, lane: Lane) -> None:
        self.transfer.unpin(lane)

    def fetch(
        self, tensor: Tensor, parts: Sequence[BatchPart], n: int, padding: Array | None
    ) -> Any | None:
        own = self._next
        self._torch.cuda.set_stream(own.stream)
        into = None if own.graphs is None else own.graphs.inputs[tensor.name]
        return self.transfer.fetch(tensor, parts, n, padding, into)

    def launch(
        self,
        rows: int,
        inputs: dict[str, Any],
        sizes: dict[str, Array | None],
        views: bool,
        parts: Sequence[BatchPart] = (),
    ) -> Any:
        torch, own = self._torch, self._next
        self._next = self._streams[self._streams[0] is own]
        # Set and left set: entering and leaving a stream's context takes torch 20 us.
        torch.cuda.set_stream(own.stream)
        try:
            with torch.inference_mode():
                if own.graphs is None:
                    kept, host = self._call(own, rows, inputs, sizes, parts)
                else:
                    kept, host = None, self._replay(own, own.graphs, inputs, sizes, parts)
                own.event.record(own.stream)
        except BaseException:
            with contextlib.suppress(RuntimeError):  # of a broken device: the first error counts
                # A copy may be under way into slots that are given to other requests next.
                own.stream.synchronize()
            raise
        finally:
            own.gathered = {}
        return own, host, kept

    def _call(
        self,
        own: BatchStream,
        rows: int,
        inputs: dict[str, Any],
        sizes: dict[str, Array | None],
        parts: Sequence[BatchPart],
    ) -> tuple[Any, Any]:
        """Run the model. Returns the tensors to keep alive until it is done, and its outputs,
        whose copies to the host have been started."""
        batch: dict[str, Any] = {}
        for name, array in inputs.items():
            if self._tensors[name].is_bytes or not isinstance(array, np.ndarray):
                batch[name] = array
            else:
                pinned = self._pinned(own, name, array)
                batch[name] = pinned.to(self._device, non_blocking=True)
        found = call_model(self._model, batch_of(rows, batch, sizes))
        if not isinstance(found, Mapping):
            return batch, found
        return batch, self._to_host(own, found, parts, len(next(iter(batch.values()))))

    def _replay(
        self,
        own: BatchStream,
        graphs: CudaGraphs,
        inputs: dict[str, Any],
        sizes: dict[str, Array | None],
        parts: Sequence[BatchPart],
    ) -> dict[str, Any]:
        """Run the model's graph. Returns its outputs, whose copies have been started."""
        n = len(next(iter(inputs.values())))
        for name, array in inputs.items():
            if not isinstance(array, np.ndarray):
                continue
            self._gather(own, name, array)
            if name in self.direct:
                self.transfer.upload(graphs.inputs[name], own.inputs[name].tensor(array.shape))
        captured = graphs.launch(n, sizes)
        large = {name: value[:n] for name, value in captured.on_device.items()}
        host = self._to_host(own, large, parts, n)
        for name, array in captured.on_host.items():
            host[name] = array[:n]
        if captured.on_host:
            self.transfer.copies["out, gathered"] += len(captured.on_host)
        return host

    def _pinned(self, own: BatchStream, name: str, array: Array) -> Any:
        """The rows as a tensor in pinned memory; copied there unless `allocate` gave `array`."""
        self._gather(own, name, array)
        return own.inputs[name].tensor(array.shape)

    def _gather(self, own: BatchStream, name: str, array: Array) -> None:
        """Copy the rows into pinned memory, unless `allocate` gave `array`, which is there."""
        if own.gathered.get(name) is not array:
            _room(own, name, array.shape)[...] = array
        self.transfer.copies["in, gathered"] += 1

    def _to_host(
        self, own: BatchStream, found: Mapping[str, Any], parts: Sequence[BatchPart], n: int
    ) -> dict[str, Any]:
        """Start copying outputs: large ones into their slots, others into pinned memory."""
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
            value = materialized(value).contiguous()
            nbytes = value.numel() * value.element_size()
            buffer = own.outputs.get(name)
            if buffer is None or buffer.numel() < nbytes:
                buffer = self._torch.empty(max(1, nbytes), dtype=self._torch.uint8, pin_memory=True)
                own.outputs[name] = buffer
            pinned = buffer[:nbytes].view(value.dtype).reshape(value.shape)
            pinned.copy_(value, non_blocking=True)
            host[name] = pinned
        return host

    def _await(self, event: Any) -> None:
        """Poll briefly before sleeping: a wake-up by the driver takes as long as a small batch."""
        until_ns = time.perf_counter_ns() + _POLL_NS
        while not event.query():
            if time.perf_counter_ns() > until_ns:
                event.synchronize()
                return

    def finish(self, handle: Any) -> Any:
        own, host, _ = handle
        self._await(own.event)
        if not isinstance(host, Mapping):
            return host
        return {name: to_host(self._torch, value) for name, value in host.items()}


def _room(own: BatchStream, name: str, shape: tuple[int, ...]) -> Array:
    """The pinned memory for the rows of an input, [n, *row shape]."""
    if own.graphs is not None and own.graphs.is_dynamic(name):
        return own.graphs.room_for(name, shape)
    return own.inputs[name].array(shape)
