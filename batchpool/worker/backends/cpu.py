"""The backends that run a batch on the CPU, with numpy or torch.

Both read inputs and write outputs through host arrays, one batch at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.model import Batch, Model
from batchpool.shm.lane import Lane
from batchpool.worker.backends.backend import (
    BatchPart,
    batch_of,
    call_method,
    call_model,
    host_array,
    retype,
    to_host,
)


def _locked(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def as_arguments(inputs: dict[str, Array], *, views: bool, writable: bool) -> dict[str, Array]:
    """The arrays that a model's method gets: read-only ones, or with `writable` its own.

    views: they are views of a lane, which the method must not change.
    """
    if not writable:
        return {name: _locked(array) for name, array in inputs.items()}
    if views:
        return {name: array.copy() for name, array in inputs.items()}
    return inputs


class CpuBackend:
    """The part of `Backend` that all backends on the CPU share: nothing to pin or to fetch."""

    depth = 1
    gathers = False
    graph_sizes: tuple[int, ...] = ()
    direct: frozenset[str] = frozenset()
    allocate = staticmethod(host_array)

    def pin(self, lane: Lane) -> None:
        pass

    def unpin(self, lane: Lane) -> None:
        pass

    def fetch(
        self, tensor: Tensor, parts: Sequence[BatchPart], n: int, padding: Array | None
    ) -> Any:
        return None


class NumpyMethodBackend(CpuBackend):
    """Runs one method of a model, which takes numpy arrays, in the worker's thread.

    Inputs are read-only, and views of the lane where the batch is one extent; a model with
    `writable = True` gets copies, so that a retry reads the original rows.
    """

    def __init__(self, method: Callable[[Batch], Any], *, writable: bool) -> None:
        self._method = method
        self._writable = writable

    def launch(
        self,
        rows: int,
        inputs: dict[str, Any],
        sizes: dict[str, Array | None],
        views: bool,
        parts: Sequence[BatchPart] = (),
    ) -> Any:
        inputs = as_arguments(inputs, views=views, writable=self._writable)
        return call_method(self._method, batch_of(rows, inputs, sizes))

    def finish(self, handle: Any) -> Any:
        return handle


class NumpyBackend(NumpyMethodBackend):
    """Runs `infer` of a numpy model."""

    def __init__(self, model: Model) -> None:
        super().__init__(model.infer, writable=model.writable)


class TorchCpuBackend(CpuBackend):
    """Runs a torch model on the CPU. Views are copied, so that a retry reads the original rows."""

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

    def finish(self, handle: Any) -> Any:
        if not isinstance(handle, Mapping):
            return handle
        return {name: to_host(self._torch, value) for name, value in handle.items()}
