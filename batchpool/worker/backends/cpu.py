"""How a worker runs a batch on the CPU, with numpy or torch; worker/backends/cuda.py is the GPU's.

Every runner takes host arrays [n, ...] and gives host arrays back; what happens between is
its own. `room` is where a batch is put together that needs padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from batchpool.core.errors import ModelError
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.model import Batch, Model
from batchpool.shm.lane import Lane
from batchpool.worker.gather import BatchPart
from batchpool.worker.padding import host_room
from batchpool.worker.worker import describe_error


def _locked(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def call_model(model: Model, batch: Batch) -> Any:
    """What the model answers. What it raises fails the batch and never ends the worker, be it
    no Exception at all: asyncio.CancelledError, KeyboardInterrupt."""
    try:
        return model.infer(batch)
    except Exception:
        raise
    except BaseException as exc:
        raise ModelError(describe_error(exc)) from exc


class CpuBackend:
    """What runners on the CPU have in common: they read the lanes themselves."""

    depth = 1
    gathers = False
    graph_sizes: tuple[int, ...] = ()
    direct: frozenset[str] = frozenset()
    room = staticmethod(host_room)

    def adopt(self, lane: Lane) -> None:
        pass

    def release(self, lane: Lane) -> None:
        pass

    def fetch(
        self, tensor: Tensor, parts: Sequence[BatchPart], n: int, padding: Array | None
    ) -> Any:
        return None


class NumpyBackend(CpuBackend):
    """Runs a numpy model in the worker's thread.

    Inputs are read-only, views of the lane where the batch is one extent; a model with
    `writable = True` gets copies of its own, so that a retry sees the original rows.
    """

    def __init__(self, model: Model) -> None:
        self._model = model

    def launch(
        self,
        rows: int,
        inputs: dict[str, Any],
        sizes: dict[str, Array | None],
        views: bool,
        parts: Sequence[BatchPart] = (),
    ) -> Any:
        if not self._model.writable:
            inputs = {name: _locked(array) for name, array in inputs.items()}
        elif views:
            inputs = {name: array.copy() for name, array in inputs.items()}
        return call_model(self._model, batch_of(rows, inputs, sizes))

    def finish(self, flight: Any) -> Any:
        return flight


class TorchCpuBackend(CpuBackend):
    """Runs a torch model on the CPU. Each input is copied once: a retry must see the original."""

    def __init__(self, model: Model, spec: ModelSpec) -> None:
        import torch

        self._torch = torch
        self._model = model
        self._tensors = {t.name: t for t in (*spec.inputs, *spec.parameters)}

    def launch(
        self,
        rows: int,
        inputs: dict[str, Any],
        sizes: dict[str, Array | None],
        views: bool,
        parts: Sequence[BatchPart] = (),
    ) -> Any:
        batch: dict[str, Any] = {}
        for name, array in inputs.items():
            tensor = self._tensors[name]
            if tensor.is_bytes:
                batch[name] = array
                continue
            owned = array.copy() if views or array.base is not None else array
            batch[name] = retype(self._torch, tensor, self._torch.from_numpy(owned))
        with self._torch.inference_mode():
            return call_model(self._model, batch_of(rows, batch, sizes))

    def finish(self, flight: Any) -> Any:
        if not isinstance(flight, Mapping):
            return flight
        return {name: to_host(self._torch, value) for name, value in flight.items()}


def batch_of(rows: int, tensors: dict[str, Any], sizes: Mapping[str, Array | None]) -> Batch:
    n = len(next(iter(tensors.values())))
    return Batch(n, tensors, {k: own for k, own in sizes.items() if own is not None}, rows)


def retype(torch: Any, tensor: Tensor, value: Any) -> Any:
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


def make_runner(
    model: Model, spec: ModelSpec, device: str, max_batch: int, batch_sizes: Sequence[int] = ()
) -> Any:
    """The runner for a loaded model. batch_sizes: those it allows; () for any up to max_batch."""
    if spec.framework == "numpy":
        return NumpyBackend(model)
    if device.startswith("cuda"):
        from batchpool.worker.backends.cuda import CudaBackend

        return CudaBackend(model, spec, device, max_batch, batch_sizes)
    return TorchCpuBackend(model, spec)
