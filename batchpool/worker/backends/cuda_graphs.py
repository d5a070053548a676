"""A model's call as CUDA graphs, one for each batch size: for models with `cuda_graphs = True`.

For a small model, starting the kernels takes the CPU longer than running them takes the device. A
graph is started by one call. It is captured from one call of `infer` on memory with fixed
addresses, including the copies of small inputs and outputs, and then replayed for every batch of
that size; a batch of a size that was not captured is padded to the next larger one. The padding is
what the memory held before: rows of earlier batches, which the model has accepted, or of the
warm-up.

    https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from batchpool.core.errors import ModelError
from batchpool.core.scheduler.batch_sizes import padded_size
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec
from batchpool.model import Model
from batchpool.worker.backends.backend import (
    FAILED_ROWS,
    batch_of,
    call_model,
    materialized,
    to_host,
)
from batchpool.worker.backends.cuda_transfer import PinnedBuffer

# Records the device work that a function starts; the returned function starts it again.
Capture: TypeAlias = Callable[[Callable[[], None]], Callable[[], None]]


def graph_sizes(max_batch: int, batch_sizes: Sequence[int]) -> tuple[int, ...]:
    """The sizes to capture: those that the model allows, else powers of two up to max_batch."""
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
            with contextlib.suppress(RuntimeError):  # the capture is broken: `call` raised why
                graph.capture_end()
            raise
        graph.capture_end()
        replay: Callable[[], None] = graph.replay
        return replay

    return capture


@dataclass
class CapturedGraph:
    """One batch size that can be replayed.

    on_host: outputs [size, ...] that the graph copies into pinned memory. on_device: outputs
    [size, ...] that the caller copies from the device.
    """

    replay: Callable[[], None] = lambda: None
    on_host: dict[str, Array] = field(default_factory=dict)
    on_device: dict[str, Any] = field(default_factory=dict)


class CudaGraphs:
    """The captured batch sizes of a model on one stream, for one batch in flight at a time.

    buffers: the pinned buffers in which the worker gathers inputs. large_inputs, large_outputs:
    the tensors that the graph does not copy. inputs: {name: device tensor [largest size, *row
    shape]}.
    """

    def __init__(
        self,
        torch: Any,
        model: Model,
        spec: ModelSpec,
        device: Any,
        buffers: Mapping[str, PinnedBuffer],
        large_inputs: Collection[str],
        large_outputs: Collection[str],
        sizes: Sequence[int],
        capture: Capture,
    ) -> None:
        self._torch = torch
        self._model = model
        self._name = spec.name
        self._device = device
        self._buffers = buffers
        self._small = [name for name in buffers if name not in large_inputs]
        self._large_outputs = large_outputs
        self._sizes = tuple(sizes)
        self._capture = capture
        self.inputs = {
            t.name: buffers[t.name].tensor((sizes[-1], *t.max_shape)).to(device)
            for t in (*spec.inputs, *spec.parameters)
        }
        self._padding: dict[str, Any] = {}  # an accepted row [1, *row shape] of each large input
        self._captured: dict[int, CapturedGraph] = {}

    def launch(self, n: int) -> CapturedGraph:
        """Run the n rows in the pinned buffers and in `inputs`, on the current stream."""
        size = padded_size(self._sizes, n)
        captured = self._captured.get(size)
        if captured is None:
            captured = self._captured[size] = self._capture_size(size)
        for name, row in self._padding.items() if n < size else ():
            self.inputs[name][n:size].copy_(row.expand_as(self.inputs[name][n:size]))
        captured.replay()
        return captured

    def _capture_size(self, size: int) -> CapturedGraph:
        """Run the model uncaptured, so that it allocates what it allocates once and shows its
        outputs; then run it again into a graph."""
        captured = CapturedGraph()
        for name in self.inputs.keys() - set(self._small) - self._padding.keys():
            self._padding[name] = self.inputs[name][:1].clone()
        try:
            found = self._call(size)
            pinned = {}
            pin = self._device.type == "cuda"
            for name, value in found.items():
                if name not in self._large_outputs:
                    buffer = self._torch.empty(value.shape, dtype=value.dtype, pin_memory=pin)
                    captured.on_host[name], pinned[name] = to_host(self._torch, buffer), buffer

            def call() -> None:
                for name, value in self._call(size).items():
                    if name in pinned:
                        pinned[name].copy_(value, non_blocking=True)
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
            on_device = self.inputs[name][:size]
            on_device.copy_(self._buffers[name].tensor(on_device.shape), non_blocking=True)
        batch = {name: on_device[:size] for name, on_device in self.inputs.items()}
        found = call_model(self._model, batch_of(size, batch, {}))
        if not isinstance(found, Mapping):
            raise ModelError(
                f"model {self._name!r} returned a {type(found).__name__};"
                " a dict of its outputs was expected"
            )
        if FAILED_ROWS in found:
            raise ModelError(
                f"model {self._name!r} has cuda_graphs = True, so infer runs while it is captured"
                " and cannot fail rows; take batch.fail out of it, or cuda_graphs"
            )
        for name, value in found.items():
            where = value.device if isinstance(value, self._torch.Tensor) else type(value).__name__
            if where != self._device:
                raise ModelError(
                    f"model {self._name!r} has cuda_graphs = True, so output {name!r} must be a"
                    f" tensor on {self._device}; it is a {where}"
                )
        return {name: materialized(value).contiguous() for name, value in found.items()}
