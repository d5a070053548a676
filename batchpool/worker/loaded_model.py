"""A model that is loaded on its device and warm, and what its slowest batch took."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from batchpool.core.errors import ModelError
from batchpool.core.scheduler.element_budget import BucketRows, rows_within
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec
from batchpool.core.tensors.stages import Stage, fused_spec, stage_spec, stages_of
from batchpool.model import Model, make_instance, spec_of
from batchpool.worker.backends.backend import Backend
from batchpool.worker.backends.cpu_stage import CpuStageBackend
from batchpool.worker.backends.preprocess import PreprocessBackend
from batchpool.worker.backends.select import make_backend, prepare_process
from batchpool.worker.fused import FusedBackend
from batchpool.worker.load import check_declaration, load_class
from batchpool.worker.options import converted_options
from batchpool.worker.padding import Padding
from batchpool.worker.warm_up import (
    BatchTime,
    WarmUpRowFailed,
    largest_input,
    warm_up,
    warm_up_rows,
)

Unload: TypeAlias = Callable[[], None]  # undoes one load

_IN_WARM_UP = "it was the warm-up"
_NOT_THE_ROW = (
    f"{_IN_WARM_UP}, whose row is what warm_up_row gives, and pad values for the rest: define"
    " warm_up_row where the model does not take those"
)
_READ_ONLY = (
    f"{_IN_WARM_UP}; arrays of a numpy model are read-only views of shared memory: writable = True"
    " in its class gives copies that it may change"
)


@dataclass(frozen=True)
class LoadedModel:
    """A model as its worker runs it.

    spec: of what it runs: a stage, or all as one.  padding: to the accepted sizes of a batch, None
    where any will do.  slowest: of the batches of the warm-up, each at its last run.
    run_warm_up_row: raises what the model raises.
    """

    spec: ModelSpec
    backend: Backend
    padding: Padding | None
    slowest: BatchTime
    run_warm_up_row: Callable[[], None]


def load_model(
    spec: ModelSpec,
    import_name: str,
    device: str,
    max_batch: int,
    sizes: Sequence[int],
    options: Mapping[str, Any] | None = None,
    loaded: Callable[[Unload], None] = lambda unload: None,
    stage: Stage = Stage.INFER,
    max_elements: int = 0,
    fused_rows: Mapping[str, int] | None = None,
) -> LoadedModel:
    """Import, load and warm up one stage of a model; its exceptions are the caller's.

    spec: as it was declared before. sizes: the allowed sizes of a batch, () for any up to
    `max_batch`. options: arguments of the model's `__init__`. loaded: called between a load and
    the warm-up, with what undoes that load. max_elements: of each input of a batch of `infer`,
    padded; 0 for any number. Larger batches are not warmed up, since none will come.
    fused_rows: the most rows of a call of each other stage, by its label, where all stages are to
    run here; None or none where this stage is alone.
    """
    if stage is Stage.INFER:
        prepare_process(spec, device)
    cls = load_class(import_name)
    arguments = converted_options(cls, options or {})
    found: dict[Stage, _LoadedStage] = {}
    for each in stages_of(spec) if fused_rows else (stage,):
        # An instance for each, as if it had a process of its own.
        model = make_instance(cls, spec.name, arguments)
        check_declaration(spec, spec_of(model))
        is_infer = each is Stage.INFER
        accepted, budget = (tuple(sizes), max_elements) if is_infer else ((), 0)
        found[each] = _load_stage(model, spec, each, device, max_batch, accepted, budget, loaded)
    slowest = {each: one.warm_up(2) for each, one in found.items()}

    def run_warm_up_row() -> None:
        for one in found.values():
            one.warm_up(1, smallest=True)

    if not fused_rows:
        own = found[stage]
        return LoadedModel(own.spec, own.backend, own.padding, slowest[stage], run_warm_up_row)
    infer, bucket_rows = found[Stage.INFER], None
    if max_elements:
        bucket_rows = BucketRows.of_stage(infer.spec, max_elements, max_batch, tuple(sizes))
    backends = {each: one.backend for each, one in found.items()}
    backend = FusedBackend(spec, backends, fused_rows, infer.padding, bucket_rows)
    return LoadedModel(fused_spec(spec), backend, None, _sum_of(slowest), run_warm_up_row)


@dataclass(frozen=True)
class _LoadedStage:
    """One stage of a model, with the row and the sizes of the batches that warm it up."""

    spec: ModelSpec
    backend: Backend
    rows: dict[str, Array]
    batch_sizes: tuple[int, ...]
    padding: Padding | None
    max_elements: int

    def warm_up(self, times: int, *, smallest: bool = False) -> BatchTime:
        sizes = (min(self.batch_sizes),) if smallest else self.batch_sizes
        try:
            most = self.max_elements
            return warm_up(self.spec, self.backend, self.rows, sizes, times, max_elements=most)
        except Exception as exc:
            if not smallest:
                # Another ModelError is about outputs, which no other row would mend.
                of_row = isinstance(exc, WarmUpRowFailed) or not isinstance(exc, ModelError)
                is_written = isinstance(exc, ValueError) and "read-only" in str(exc)
                exc.add_note(_READ_ONLY if is_written else _NOT_THE_ROW if of_row else _IN_WARM_UP)
            raise


def _load_stage(
    model: Model,
    declared: ModelSpec,
    stage: Stage,
    device: str,
    max_batch: int,
    sizes: tuple[int, ...],
    max_elements: int,
    loaded: Callable[[Unload], None],
) -> _LoadedStage:
    spec = stage_spec(declared, stage)
    backend: Backend
    match stage:
        case Stage.PREPROCESS:
            model.load_preprocess()
            loaded(model.unload_preprocess)
            backend = PreprocessBackend(model)
        case Stage.INFER:
            model.load(device)
            loaded(model.unload)
            backend = make_backend(model, spec, device, max_batch, sizes, max_elements)
        case Stage.POSTPROCESS:
            model.load_postprocess()
            loaded(model.unload_postprocess)
            backend = CpuStageBackend(model.postprocess, writable=model.writable)
    rows = warm_up_rows(model, spec)
    batch_sizes = tuple(backend.graph_sizes or sizes)
    if not batch_sizes:
        longest = rows_within(max_elements, largest_input(spec, rows), max_batch)
        batch_sizes = tuple(sorted({1, longest, max_batch}))
    padding = Padding(spec, sizes, rows) if sizes else None
    return _LoadedStage(spec, backend, rows, batch_sizes, padding, max_elements)


def _sum_of(slowest: Mapping[Stage, BatchTime]) -> BatchTime:
    """The time of a batch that takes all stages. The slowest batches of the others may have had
    fewer rows than that of `infer`."""
    rows = slowest[Stage.INFER].rows
    seconds = (-(-rows // max(1, own.rows)) * own.seconds for own in slowest.values())
    return BatchTime(rows, sum(seconds))
