"""The interface between the worker and the backends that run its batches on a device.

A backend takes host arrays [n, ...] (or fetches inputs from a lane itself), calls the model, and
returns host arrays [n, ...]. The worker sees no difference between numpy, torch on the CPU and
torch on a CUDA device; worker/backends/select.py makes the backend for a model.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np

from batchpool.core.errors import ModelError, PoolError
from batchpool.core.few_rows import FEW_ROWS
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import Tensor
from batchpool.model import Batch, Model
from batchpool.process.own_process import end_if_forked
from batchpool.shm.columns import Where
from batchpool.shm.lane import Lane

_MESSAGE_CHARS = 2000

# Stands for an output that the backend has checked and written into its slots.
IN_PLACE = object()

# The key under which a backend returns the rows that the model failed, {row: exception}, beside the
# outputs. It is no name, so that no output can have it.
FAILED_ROWS = object()

# Allocates an array of a tensor's storage dtype and of a shape [n, *row shape] for one batch.
Allocate: TypeAlias = Callable[[Tensor, tuple[int, ...]], Array]


@dataclass(frozen=True)
class BatchPart:
    """The rows start..stop of a batch, all from one lane; `where` indexes their slots."""

    lane: Lane
    slots: Array
    where: Where
    start: int
    stop: int

    @cached_property
    def extents(self) -> int:
        """The number of runs of neighbouring slots."""
        if isinstance(self.where, slice):
            return 1
        if self.stop - self.start <= FEW_ROWS:
            slots: list[int] = self.slots.tolist()
            return 1 + sum([b != a + 1 for a, b in itertools.pairwise(slots)])
        return 1 + int(np.count_nonzero(self.slots[1:] != self.slots[:-1] + 1))


class Backend(Protocol):
    """Runs batches of one model on one device. `launch` may return before the work is done.

    depth: the most batches in flight. gathers: the worker copies the rows of each batch into
    arrays from `allocate`; False: it may pass views of a lane. direct: the inputs that `fetch`
    may read from the lanes. graph_sizes: the batch sizes that are captured when they are first
    launched, all of which the warm-up therefore launches; () where nothing is captured.
    """

    depth: int
    gathers: bool
    direct: frozenset[str]
    graph_sizes: tuple[int, ...]

    def pin(self, lane: Lane) -> None:
        """Pin the memory of a lane, so that the device can transfer its rows by itself."""

    def unpin(self, lane: Lane) -> None:
        """Undo `pin`; the lane is unmapped afterwards."""

    def allocate(self, tensor: Tensor, shape: tuple[int, ...]) -> Array:
        """An array [n, *row shape] for an input of the next launch; its content is undefined."""

    def fetch(
        self, tensor: Tensor, parts: Sequence[BatchPart], n: int, padding: Array | None
    ) -> Any:
        """An input [n, *row shape] of the next launch, read from the lanes by the device.

        padding: [1, *row shape], repeated behind the rows of the parts; None if there are n.
        Returns None where gathering the rows on the host costs less.
        """

    def launch(
        self,
        rows: int,
        inputs: dict[str, Any],
        sizes: dict[str, Array | None],
        views: bool,
        parts: Sequence[BatchPart],
    ) -> Any:
        """Start a batch and return its handle for `finish`.

        inputs: {name: [n, ...]}, of which the first `rows` rows are no padding. sizes: the rows'
        dynamic sizes [n, dynamic dimensions]. views: the inputs are views of a lane. parts: the
        slots that the outputs are written to; () if there are none, as during the warm-up.
        """

    def finish(self, handle: Any) -> Any:
        """Wait for a batch and return its outputs {name: host array [n, ...]}.

        Raises the error of the model or of the device.
        """


def host_array(tensor: Tensor, shape: tuple[int, ...]) -> Array:
    """Allocate ordinary host memory."""
    return np.empty(shape, dtype=tensor.np_dtype)


def call_model(model: Model, batch: Batch) -> Any:
    """Call `infer`, as `call_method` does."""
    return call_method(model.infer, batch)


def call_method(method: Callable[[Batch], Any], batch: Batch) -> Any:
    """Call a model's method and return its result, with FAILED_ROWS where `Batch.fail` was called.

    Turns every exception that is not an `Exception` (asyncio.CancelledError, KeyboardInterrupt)
    into a ModelError, so that it fails the batch and does not end the worker.
    """
    try:
        found = method(batch)
    except Exception:
        raise
    except BaseException as exc:
        raise ModelError(describe_error(exc)) from exc
    finally:
        end_if_forked()
    if batch.failed and isinstance(found, Mapping):
        return {**found, FAILED_ROWS: batch.failed}
    return found


def batch_of(rows: int, tensors: dict[str, Any], sizes: Mapping[str, Array | None]) -> Batch:
    """The argument of `infer`: tensors [n, ...], of which the first `rows` rows are no padding."""
    n = len(next(iter(tensors.values())))
    return Batch(n, tensors, {k: own for k, own in sizes.items() if own is not None}, rows)


def retype(torch: Any, tensor: Tensor, value: Any) -> Any:
    """View a torch tensor of storage dtype as the declared dtype: bfloat16 is stored as uint16."""
    return value.view(torch.bfloat16) if tensor.dtype == "bfloat16" else value


def materialized(value: Any) -> Any:
    """A torch tensor outside autograd, with a lazy negation or conjugation carried out.

    numpy has no such views, and an asynchronous copy to the host would be negated before it is
    there.
    """
    return value.detach().resolve_conj().resolve_neg()


def to_host(torch: Any, value: Any) -> Any:
    """A torch tensor (or a list of them) as numpy in storage dtype; anything else unchanged."""
    if isinstance(value, (list, tuple)):
        return [to_host(torch, row) for row in value]
    if not isinstance(value, torch.Tensor):
        return value
    host = materialized(value).cpu().contiguous()
    if host.dtype == torch.bfloat16:
        host = host.view(torch.uint16)
    return host.numpy()


def describe_error(exc: BaseException) -> str:
    """One line of bounded length for the caller; an exception's own `__str__` may raise."""
    if isinstance(exc, PoolError):
        return exc.message[:_MESSAGE_CHARS]
    try:
        text = str(exc)
    except BaseException:
        text = "(its message cannot be shown)"
    text = " ".join(text[:_MESSAGE_CHARS].split())
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__
