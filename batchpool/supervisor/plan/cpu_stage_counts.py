"""The number of processes that run `preprocess` and `postprocess`, of each model with these."""

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


def cpu_stage_counts(
    models: Sequence[ModelConfig], specs: Sequence[ModelSpec], share: CpuShare
) -> tuple[list[dict[Stage, int]], int]:
    """([processes by stage, of each model: its stages on the CPU], threads of each such process).

    Stages whose number is "auto" share what is left of the cores, whatever their model; each has at
    least one process. ConfigError for a number of processes of a stage that a model does not
    define.
    """
    asked = [_asked(model, spec) for model, spec in zip(models, specs, strict=True)]
    numbers = [number for of_model in asked for number in of_model.values()]
    each = max(1, min(AUTO_MOST, (share.left - sum(numbers)) // max(1, numbers.count(0))))
    counts = [{stage: number or each for stage, number in of_model.items()} for of_model in asked]
    processes = sum(sum(of_model.values()) for of_model in counts)
    return counts, max(1, share.left // max(1, processes))


def _asked(model: ModelConfig, spec: ModelSpec) -> dict[Stage, int]:
    """The configured processes of the model's stages on the CPU; 0 where that is "auto"."""
    configured = {
        Stage.PREPROCESS: model.preprocess_workers,
        Stage.POSTPROCESS: model.postprocess_workers,
    }
    for stage in CPU_STAGES:
        if configured[stage] and stage not in stages_of(spec):
            label = stage.label
            raise ConfigError(
                f"model {spec.name}: {label}_workers = {configured[stage]}, and its class defines"
                f" no {label} and {_TENSORS[stage]}; leave the key out, or give it in a file to the"
                f" models that {label}"
            )
    return {stage: configured[stage] for stage in CPU_STAGES if stage in stages_of(spec)}
