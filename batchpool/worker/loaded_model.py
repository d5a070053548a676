"""A model that is loaded on its device and warm, and what its slowest batch took."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec
from batchpool.core.tensors.stages import Stage, stage_spec
from batchpool.model import Model, make_instance, spec_of
from batchpool.worker.backends.backend import Backend
from batchpool.worker.backends.cpu_stage import CpuStageBackend
from batchpool.worker.backends.preprocess import PreprocessBackend
from batchpool.worker.backends.select import make_backend, prepare_process
from batchpool.worker.load import check_declaration, load_class
from batchpool.worker.options import converted_options
from batchpool.worker.warm_up import BatchTime, warm_up, warm_up_rows

_IN_WARM_UP = (
    "it was the warm-up, whose row is what warm_up_row gives, and pad values for the rest: define"
    " warm_up_row where the model does not take those"
)


def unload_model(model: Model, stage: Stage) -> None:
    """Undo what was loaded for this stage."""
    match stage:
        case Stage.PREPROCESS:
            model.unload_preprocess()
        case Stage.INFER:
            model.unload()
        case Stage.POSTPROCESS:
            model.unload_postprocess()


@dataclass(frozen=True)
class LoadedModel:
    """A model, its backend, the row that it was warmed up with, and the sizes of those batches.

    spec: of the stage that it was loaded for.  slowest: of the batches, each at its last run.
    """

    spec: ModelSpec
    backend: Backend
    rows: dict[str, Array]
    batch_sizes: tuple[int, ...]
    slowest: BatchTime


def load_model(
    spec: ModelSpec,
    import_name: str,
    device: str,
    max_batch: int,
    sizes: Sequence[int],
    options: Mapping[str, Any] | None = None,
    loaded: Callable[[Model], None] = lambda model: None,
    stage: Stage = Stage.INFER,
) -> LoadedModel:
    """Import, load and warm up one stage of a model; its exceptions are the caller's.

    spec: as it was declared before. sizes: the allowed sizes of a batch, () for any up to
    `max_batch`. options: arguments of the model's `__init__`. loaded: called with the model
    between its `load` and the warm-up.
    """
    served, spec = spec, stage_spec(spec, stage)
    if stage is Stage.INFER:
        prepare_process(spec, device)
    cls = load_class(import_name)
    model = make_instance(cls, spec.name, converted_options(cls, options or {}))
    check_declaration(served, spec_of(model))
    backend: Backend
    match stage:
        case Stage.PREPROCESS:
            model.load_preprocess()
            loaded(model)
            backend = PreprocessBackend(model)
        case Stage.INFER:
            model.load(device)
            loaded(model)
            backend = make_backend(model, spec, device, max_batch, tuple(sizes))
        case Stage.POSTPROCESS:
            model.load_postprocess()
            loaded(model)
            backend = CpuStageBackend(model.postprocess, writable=model.writable)
    rows = warm_up_rows(model, spec)
    batch_sizes = tuple(backend.graph_sizes or sizes or (1, max_batch))
    try:
        slowest = warm_up(spec, backend, rows, batch_sizes)
    except Exception as exc:
        exc.add_note(_IN_WARM_UP)
        raise
    return LoadedModel(spec, backend, rows, batch_sizes, slowest)
