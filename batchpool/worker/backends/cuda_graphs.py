"""A model's call as CUDA graphs, one for each shape: for models with `cuda_graphs = True`.

For a small model, starting the kernels takes the CPU longer than running them takes the device. A
graph is started by one call. It is captured from one call of `infer` on memory with fixed
addresses, including the copies of small inputs and outputs, and then replayed for every batch of
that size; a batch of a size that was not captured is padded to the next larger one. The padding is
what the memory held before: rows of earlier batches, which the model has accepted, or of the
warm-up.

Where rows have dynamic dimensions there is a graph for each batch size and each of the shapes of
`GraphShapes` that so many rows can have within the element budget; any other one that comes all the
same runs uncaptured. Rows and the rest of a batch are padded with the tensor's `pad`, and the model
finds the sizes of the rows in `Batch.sizes` as tensors on the device, 1 for rows that are none.

    https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from batchpool.core.errors import ModelError
from batchpool.core.scheduler.batch_sizes import doubling_sizes, padded_size
from batchpool.core.scheduler.graph_shapes import GraphShapes
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
    return tuple(batch_sizes) or doubling_sizes(1, max_batch)


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


class RowSizes:
    """The sizes of the rows of one dynamic input, [rows, dynamic dimensions], in memory that a
    graph copies from the host to the device. on_device: the copy."""

    def __init__(self, torch: Any, device: Any, rows: int, dimensions: int) -> None:
        shape = (rows, dimensions)
        self._pinned = torch.ones(shape, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._host: Array = self._pinned.numpy()
        self.on_device = torch.ones(shape, dtype=torch.int64, device=device)

    def set(self, sizes: Array, size: int) -> None:
        """Set the sizes of the rows of a batch, and 1 for those behind them up to `size`."""
        self._host[: len(sizes)] = sizes
        self._host[len(sizes) : size] = 1

    def all(self, size: int) -> Array:
        """A copy of what is set for the first `size` rows."""
        return self._host[:size].copy()

    def copy(self, size: int) -> Any:
        """Start the copy of the first `size` rows; returns them on the device."""
        on_device = self.on_device[:size]
        on_device.copy_(self._pinned[:size], non_blocking=True)
        return on_device


@dataclass
class CapturedGraph:
    """One shape that can be replayed.

    on_host: outputs [size, ...] that the graph copies into pinned memory. on_device: outputs
    [size, ...] that the caller copies from the device.
    """

    replay: Callable[[], None] = lambda: None
    on_host: dict[str, Array] = field(default_factory=dict)
    on_device: dict[str, Any] = field(default_factory=dict)


class CudaGraphs:
    """The captured shapes of a model on one stream, for one batch in flight at a time.

    buffers: the pinned buffers in which the worker gathers inputs. large_inputs, large_outputs:
    the tensors that the graph does not copy. shapes: of the dynamic inputs. inputs: {name: device
    tensor [largest size, *largest row shape]}.
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
        shapes: GraphShapes,
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
        self._shapes = shapes
        dynamic = {t.name: t for t in spec.inputs if t.dynamic}
        self._pads = {name: tensor.stored_pad for name, tensor in dynamic.items()}
        self._row_shapes = {name: tensor.max_shape for name, tensor in dynamic.items()}
        self._row_sizes = {
            name: RowSizes(torch, device, sizes[-1], len(tensor.dynamic))
            for name, tensor in dynamic.items()
        }
        self.inputs = {
            t.name: buffers[t.name].tensor((sizes[-1], *t.max_shape)).to(device)
            for t in (*spec.inputs, *spec.parameters)
        }
        self._padding: dict[str, Any] = {}  # an accepted row [1, *row shape] of each large input
        self._captured: dict[tuple[Any, ...], CapturedGraph] = {}
        self._captured_sizes: set[int] = set()

    def is_dynamic(self, name: str) -> bool:
        """True for an input whose rows are gathered by `room_for`."""
        return name in self._pads

    def room_for(self, name: str, shape: Sequence[int]) -> Array:
        """Room [n, *row shape] for the rows of a dynamic input within its pinned buffer, where all
        around them is padding."""
        size = padded_size(self._sizes, shape[0])
        rows = self._row_shapes[name] = self._shapes.padded(name, shape[1:])
        padded = self._buffers[name].array((size, *rows))
        padded[...] = self._pads[name]
        return padded[tuple(slice(0, length) for length in shape)]

    def launch(self, n: int, sizes: Mapping[str, Array | None]) -> CapturedGraph:
        """Run the n rows in the pinned buffers and in `inputs`, on the current stream.

        sizes: of the rows of the dynamic inputs, [n, dynamic dimensions].
        """
        size = padded_size(self._sizes, n)
        for name, own in self._row_sizes.items():
            rows = sizes[name]
            assert rows is not None  # as of every dynamic input
            own.set(rows, size)
        key = size, *self._row_shapes.values()
        if size not in self._captured_sizes:
            self._capture_all(size)
            self._captured_sizes.add(size)
        if key not in self._captured:
            self._captured[key] = self._capture_size(size, lambda call: call)
        captured = self._captured[key]
        for name, row in self._padding.items() if n < size else ():
            self.inputs[name][n:size].copy_(row.expand_as(self.inputs[name][n:size]))
        captured.replay()
        return captured

    def _capture_all(self, size: int) -> None:
        """Capture this batch size for all row shapes that it can have. The batch that stands in the
        buffers stays there."""
        rows = dict(self._row_shapes)
        kept = {name: self._buffers[name].array((size, *own)).copy() for name, own in rows.items()}
        kept_sizes = {name: own.all(size) for name, own in self._row_sizes.items()}
        for shapes in self._shapes.all_rows():
            if size > padded_size(self._sizes, self._shapes.most_rows(shapes, self._sizes[-1])):
                continue
            for name, shape in shapes.items():
                self.room_for(name, (size, *shape))
                dynamic = [shape[at] for at in self._shapes.dynamic(name)]
                self._row_sizes[name].set(np.tile(np.array(dynamic), (size, 1)), size)
            key = size, *self._row_shapes.values()
            self._captured[key] = self._capture_size(size, self._capture)
        for name, array in kept.items():
            self._row_shapes[name] = rows[name]
            self._buffers[name].array(array.shape)[...] = array
            self._row_sizes[name].set(kept_sizes[name], size)

    def _capture_size(self, size: int, capture: Capture) -> CapturedGraph:
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

            captured.replay = capture(call)
        except ModelError:
            raise
        except Exception as exc:
            shapes = [f" of {name!r} {list(rows)}" for name, rows in self._row_shapes.items()]
            raise ModelError(
                f"model {self._name!r} has cuda_graphs = True, but its call with {size} rows"
                f"{','.join(shapes)} cannot be captured: {type(exc).__name__}: {exc}"
            ) from exc
        return captured

    def _call(self, size: int) -> dict[str, Any]:
        """Copy small inputs in and run the model: its outputs {name: [size, ...]}, contiguous."""
        batch = {name: self._on_device(name, size) for name in self.inputs}
        for name in self._small:
            batch[name].copy_(self._buffers[name].tensor(batch[name].shape), non_blocking=True)
        row_sizes = {name: own.copy(size) for name, own in self._row_sizes.items()}
        found = call_model(self._model, batch_of(size, batch, row_sizes))
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

    def _on_device(self, name: str, size: int) -> Any:
        """The memory of an input's rows on the device, [size, *row shape], contiguous."""
        whole = self.inputs[name]
        shape = self._row_shapes.get(name)
        if shape is None:
            return whole[:size]
        return whole.view(-1)[: size * math.prod(shape)].view(size, *shape)
