"""How a worker runs a batch: numpy, torch on the CPU, torch on a CUDA device.

Every runner takes host arrays [n, ...] and gives host arrays back; what happens between is
its own. `room` is where a batch that needs padding is put together. The CUDA runner keeps two
batches in flight, each on its own stream, so that the copies of one overlap the kernels of the
other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from batchpool.core.errors import ModelError
from batchpool.core.tensors import Array, ModelSpec, Tensor
from batchpool.model import Batch, Model
from batchpool.pool.padding import host_room
from batchpool.pool.worker import describe_error


def _locked(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def _infer(model: Model, batch: Batch) -> Any:
    """What the model answers. What it raises fails the batch and never ends the worker, be it
    no Exception at all: asyncio.CancelledError, KeyboardInterrupt."""
    try:
        return model.infer(batch)
    except Exception:
        raise
    except BaseException as exc:
        raise ModelError(describe_error(exc)) from exc


class NumpyRunner:
    """Runs a numpy model in the worker's thread.

    Inputs are read-only, views of the lane where the batch is one extent; a model with
    `writable = True` gets copies of its own, so that a retry sees the original rows.
    """

    depth = 1
    room = staticmethod(host_room)

    def __init__(self, model: Model) -> None:
        self._model = model

    def launch(
        self, rows: int, inputs: dict[str, Array], sizes: dict[str, Array | None], views: bool
    ) -> Any:
        if not self._model.writable:
            inputs = {name: _locked(array) for name, array in inputs.items()}
        elif views:
            inputs = {name: array.copy() for name, array in inputs.items()}
        return _infer(self._model, _batch(rows, inputs, sizes))

    def finish(self, flight: Any) -> Any:
        return flight


class TorchRunner:
    """Runs a torch model on the CPU. Each input is copied once: a retry must see the original."""

    depth = 1
    room = staticmethod(host_room)

    def __init__(self, model: Model, spec: ModelSpec) -> None:
        import torch

        self._torch = torch
        self._model = model
        self._tensors = {t.name: t for t in (*spec.inputs, *spec.parameters)}

    def launch(
        self, rows: int, inputs: dict[str, Array], sizes: dict[str, Array | None], views: bool
    ) -> Any:
        batch: dict[str, Any] = {}
        for name, array in inputs.items():
            tensor = self._tensors[name]
            if tensor.is_bytes:
                batch[name] = array
                continue
            owned = array.copy() if views or array.base is not None else array
            batch[name] = _retype(self._torch, tensor, self._torch.from_numpy(owned))
        with self._torch.inference_mode():
            return _infer(self._model, _batch(rows, batch, sizes))

    def finish(self, flight: Any) -> Any:
        if not isinstance(flight, Mapping):
            return flight
        return {name: to_host(self._torch, value) for name, value in flight.items()}


class CudaRunner:
    """Runs a torch model on one CUDA device through pinned buffers and two streams."""

    depth = 2

    def __init__(self, model: Model, spec: ModelSpec, device: str, max_batch: int) -> None:
        import torch

        self._torch = torch
        self._model = model
        self._device = torch.device(device)
        self._tensors = {t.name: t for t in (*spec.inputs, *spec.parameters)}
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

    def launch(
        self, rows: int, inputs: dict[str, Array], sizes: dict[str, Array | None], views: bool
    ) -> Any:
        torch, turn = self._torch, self._next
        self._next = (turn + 1) % self.depth
        stream = self._streams[turn]
        batch: dict[str, Any] = {}
        with torch.cuda.stream(stream), torch.inference_mode():
            for name, array in inputs.items():
                tensor = self._tensors[name]
                if tensor.is_bytes:
                    batch[name] = array
                    continue
                batch[name] = self._to_device(self._pinned[turn][name], tensor, array)
            found = _infer(self._model, _batch(rows, batch, sizes))
            host = self._to_host(turn, found) if isinstance(found, Mapping) else found
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
        return _retype(self._torch, tensor, shaped.to(self._device, non_blocking=True))

    def _to_host(self, turn: int, found: Mapping[str, Any]) -> dict[str, Any]:
        """Start copying outputs into pinned buffers kept for this turn."""
        host: dict[str, Any] = {}
        for name, value in found.items():
            if not (isinstance(value, self._torch.Tensor) and value.is_cuda):
                host[name] = value
                continue
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


def _batch(rows: int, tensors: dict[str, Any], sizes: Mapping[str, Array | None]) -> Batch:
    n = len(next(iter(tensors.values())))
    return Batch(n, tensors, {k: own for k, own in sizes.items() if own is not None}, rows)


def _shaped(buffer: Any, tensor: Tensor, shape: tuple[int, ...]) -> Array:
    """The beginning of a pinned buffer as a host array of the tensor's storage dtype."""
    nbytes = math.prod(shape) * tensor.np_dtype.itemsize
    array: Array = buffer[:nbytes].numpy().view(tensor.np_dtype).reshape(shape)
    return array


def _retype(torch: Any, tensor: Tensor, value: Any) -> Any:
    """bfloat16 travels as uint16 bit patterns; give the model the real thing."""
    return value.view(torch.bfloat16) if tensor.dtype == "bfloat16" else value


def to_host(torch: Any, value: Any) -> Any:
    """A tensor (or a list of them) as numpy in storage dtype; anything else unchanged."""
    if isinstance(value, (list, tuple)):
        return [to_host(torch, row) for row in value]
    if not isinstance(value, torch.Tensor):
        return value
    host = value.detach().cpu().contiguous()
    if host.dtype == torch.bfloat16:
        host = host.view(torch.uint16)
    return host.numpy()


def make_runner(model: Model, spec: ModelSpec, device: str, max_batch: int) -> Any:
    """The runner for a loaded model."""
    if spec.framework == "numpy":
        return NumpyRunner(model)
    if device.startswith("cuda"):
        return CudaRunner(model, spec, device, max_batch)
    return TorchRunner(model, spec)
