"""Where `preprocess` and `postprocess` run, of each model with these: in how many processes of
their own, or in the workers.

Processes of its own for a stage keep a GPU busy while other rows are prepared. Where `infer` runs
on the CPU all stages take the same cores, and further processes cost each row further pairs of
wake-ups: the workers run them all then (fused), unless the configuration has a number for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from batchpool.core.config.schema import ModelConfig
from batchpool.core.errors import ConfigError
from batchpool.core.tensors.spec import ModelSpec
from batchpool.core.tensors.stages import CPU_STAGES, Stage, stages_of

AUTO_MOST = 32  # of one stage: each loads a tokenizer, say, and takes a place in every table
# The list of tensors that a model with the stage declares.
_TENSORS = {Stage.PREPROCESS: "features", Stage.POSTPROCESS: "predictions"}


@dataclass(frozen=True)
class CpuShare:
    """The cores of the machine, and who takes them: a front end, the batcher and a worker with a
    GPU one each; workers on the CPU all that are left."""

    cores: int
    frontends: int
    workers_on_gpus: int
    workers_on_cpu: int

    @property
    def left(self) -> int:
        """The cores for the stages on the CPU; 0 or less where there are none."""
        if self.workers_on_cpu:
            return 0
        return self.cores - self.frontends - 1 - self.workers_on_gpus


def is_fused(model: ModelConfig, spec: ModelSpec, devices: Sequence[str | None]) -> bool:
    """True if the workers of a model run all its stages. devices: its GPUs, or [None] for the
    CPU."""
    asked = model.preprocess_workers or model.postprocess_workers
    return len(stages_of(spec)) > 1 and not asked and list(devices) == [None]


def stage_place(processes: int) -> str:
    """Where a stage on the CPU runs, in words. processes: of its own; 0 for none."""
    if not processes:
        return "in the workers"
    return f"in {processes} process{'es' * (processes > 1)} of its own"


def cpu_stage_counts(
    models: Sequence[ModelConfig],
    specs: Sequence[ModelSpec],
    share: CpuShare,
    fused: Sequence[bool],
) -> tuple[list[dict[Stage, int]], int]:
    """([processes by stage, of each model: its stages on the CPU], threads of each such process).

    fused: whether the model's workers run its stages themselves. Stages of other models whose
    number is "auto" share what is left of the cores, whatever their model; each has at least one
    process. A number that all models have, as a flag gives it to them, is for those that have the
    stage. ConfigError for a number of processes of a stage that a model does not define.
    """
    for stage in CPU_STAGES:
        _check_numbers(stage, models, specs)
    asked = [
        {} if own else _asked(model, spec)
        for model, spec, own in zip(models, specs, fused, strict=True)
    ]
    numbers = [number for of_model in asked for number in of_model.values()]
    each = max(1, min(AUTO_MOST, (share.left - sum(numbers)) // max(1, numbers.count(0))))
    counts = [{stage: number or each for stage, number in of_model.items()} for of_model in asked]
    processes = sum(sum(of_model.values()) for of_model in counts)
    return counts, max(1, share.left // max(1, processes))


def _number(model: ModelConfig, stage: Stage) -> int:
    """The configured processes of a stage on the CPU; 0 where that is "auto"."""
    is_first = stage is Stage.PREPROCESS
    return model.preprocess_workers if is_first else model.postprocess_workers


def _check_numbers(stage: Stage, models: Sequence[ModelConfig], specs: Sequence[ModelSpec]) -> None:
    with_stage = [stage in stages_of(spec) for spec in specs]
    if any(with_stage) and len({_number(model, stage) for model in models}) == 1:
        return
    for model, spec, has_it in zip(models, specs, with_stage, strict=True):
        if _number(model, stage) and not has_it:
            label = stage.label
            raise ConfigError(
                f"model {spec.name}: {label}_workers = {_number(model, stage)}, and its class"
                f" defines no {label} and {_TENSORS[stage]}; leave the key out, or give it in a"
                f" file to the models that {label}"
            )


def _asked(model: ModelConfig, spec: ModelSpec) -> dict[Stage, int]:
    """The configured processes of the model's stages on the CPU; 0 where that is "auto"."""
    return {stage: _number(model, stage) for stage in CPU_STAGES if stage in stages_of(spec)}
