"""A model's call as CUDA graphs, one for each batch size: for models with `cuda_graphs = True`.

Starting the kernels of a small model takes the CPU longer than running them takes the device. A
graph is started in one go. It is captured from one call of `infer` on memory that stays where
it is, with the copies of small inputs and outputs in it, and then replayed for every batch of
that size; a batch in between goes with the next larger one. Its last rows are then what was
there before: rows of earlier batches, which the model has accepted, or of the warm-up.

    https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from batchpool.core.errors import ModelError
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec
from batchpool.model import Model
from batchpool.worker.backends.cpu import batch_of, call_model, to_host
from batchpool.worker.backends.pinned import PinnedBuffer

# Records what a function has the device do; what it returns does the same again.
Capture: TypeAlias = Callable[[Callable[[], None]], Callable[[], None]]


def graph_sizes(max_batch: int, batch_sizes: Sequence[int]) -> tuple[int, ...]:
    """What is captured: the sizes that the model allows, else powers of two up to max_batch."""
    if batch_sizes:
        return tuple(batch_sizes)
    powers = [1 << k for k in range(max_batch.bit_length()) if 1 << k < max_batch]
    return (*powers, max_batch)


def capture_on(torch: Any, pool: Any) -> Capture:
    """Capture on the current stream, which must not be the default one, into a memory pool."""

    def capture(call: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            call()
        except BaseException:
            with contextlib.suppress(RuntimeError):  # the capture is broken: that is being told
                graph.capture_end()
            raise
        graph.capture_end()
        replay: Callable[[], None] = graph.replay
        return replay

    return capture


@dataclass
class CapturedGraph:
    """A batch size that can be replayed. on_host: outputs [size, ...] that the graph itself
    copies into pinned memory; on_device: those that are copied by others, from the device."""

    replay: Callable[[], None] = lambda: None
    on_host: dict[str, Array] = field(default_factory=dict)
    on_device: dict[str, Any] = field(default_factory=dict)


class CudaGraphs:
    """One batch in flight at a time: its inputs on the device, and the captured sizes.

    rooms: where the worker puts inputs together. large_inputs, large_outputs: those that the graph
    does not copy. inputs: {name: [largest size, *row shape]} on the device.
    """

    def __init__(
        self,
        torch: Any,
        model: Model,
        spec: ModelSpec,
        device: Any,
        rooms: Mapping[str, PinnedBuffer],
        large_inputs: Collection[str],
        large_outputs: Collection[str],
        sizes: Sequence[int],
        capture: Capture,
    ) -> None:
        self._torch = torch
        self._model = model
        self._name = spec.name
        self._device = device
        self._rooms = rooms
        self._small = [name for name in rooms if name not in large_inputs]
        self._large_outputs = large_outputs
        self._sizes = tuple(sizes)
        self._capture = capture
        self.inputs = {
            t.name: rooms[t.name].tensor((sizes[-1], *t.max_shape)).to(device)
            for t in (*spec.inputs, *spec.parameters)
        }
        self._spare: dict[str, Any] = {}  # one row of each large input, which the model accepts
        self._captured: dict[int, CapturedGraph] = {}

    def launch(self, n: int) -> CapturedGraph:
        """Run the n rows that stand in `rooms` and `inputs`, on the current stream."""
        size = self._sizes[bisect_left(self._sizes, n)]
        captured = self._captured.get(size)
        if captured is None:
            captured = self._captured[size] = self._captured_at(size)
        for name, row in self._spare.items() if n < size else ():
            self.inputs[name][n:size].copy_(row.expand_as(self.inputs[name][n:size]))
        captured.replay()
        return captured

    def _captured_at(self, size: int) -> CapturedGraph:
        """Run the model once as it is, for what it makes at its first call and to see its outputs;
        then once more into a graph."""
        captured = CapturedGraph()
        for name in self.inputs.keys() - set(self._small) - self._spare.keys():
            self._spare[name] = self.inputs[name][:1].clone()
        try:
            found = self._call(size)
            to_hosts = {}
            pin = self._device.type == "cuda"
            for name, value in found.items():
                if name not in self._large_outputs:
                    room = self._torch.empty(value.shape, dtype=value.dtype, pin_memory=pin)
                    captured.on_host[name], to_hosts[name] = to_host(self._torch, room), room

            def call() -> None:
                for name, value in self._call(size).items():
                    if name in to_hosts:
                        to_hosts[name].copy_(value, non_blocking=True)
                    else:
                        captured.on_device[name] = value

            captured.replay = self._capture(call)
        except ModelError:
            raise
        except Exception as exc:
            raise ModelError(
                f"model {self._name!r} has cuda_graphs = True, but its call with {size} rows cannot"
                f" be captured: {type(exc).__name__}: {exc}"
            ) from exc
        return captured

    def _call(self, size: int) -> dict[str, Any]:
        """Copy small inputs in and run the model: its outputs {name: [size, ...]}, contiguous."""
        for name in self._small:
            there = self.inputs[name][:size]
            there.copy_(self._rooms[name].tensor(there.shape), non_blocking=True)
        batch = {name: there[:size] for name, there in self.inputs.items()}
        found = call_model(self._model, batch_of(size, batch, {}))
        if not isinstance(found, Mapping):
            raise ModelError(
                f"model {self._name!r} returned a {type(found).__name__};"
                " a dict of its outputs was expected"
            )
        for name, value in found.items():
            where = value.device if isinstance(value, self._torch.Tensor) else type(value).__name__
            if where != self._device:
                raise ModelError(
                    f"model {self._name!r} has cuda_graphs = True, so output {name!r} must be a"
                    f" tensor on {self._device}; it is a {where}"
                )
        return {name: value.detach().contiguous() for name, value in found.items()}
