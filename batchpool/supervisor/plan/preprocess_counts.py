"""Where `preprocess` runs, of each model that defines it: in how many processes, or in the workers.

Processes of its own keep a GPU busy while the next rows are prepared. Where `infer` runs on the
CPU, both take the same cores, and a second process costs each row another pair of wake-ups: the
workers run `preprocess` themselves then (fused), unless preprocess_workers says a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from batchpool.core.config.schema import ModelConfig
from batchpool.core.errors import ConfigError
from batchpool.core.tensors.spec import ModelSpec

AUTO_MOST = 32  # of one model: each loads a tokenizer, say, and takes a place in every table


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
        """The cores for preprocessing; 0 or less where there are none."""
        if self.workers_on_cpu:
            return 0
        return self.cores - self.frontends - 1 - self.workers_on_gpus


def is_fused(model: ModelConfig, spec: ModelSpec, devices: Sequence[str | None]) -> bool:
    """True if the workers of a model run `preprocess` themselves. devices: its GPUs, or [None] for
    the CPU."""
    return bool(spec.features) and not model.preprocess_workers and list(devices) == [None]


def preprocess_place(processes: int) -> str:
    """Where `preprocess` runs, in words. processes: of its own; 0 for none."""
    if not processes:
        return "in the workers"
    return f"in {processes} process{'es' * (processes > 1)} of its own"


def preprocess_counts(
    models: Sequence[ModelConfig],
    specs: Sequence[ModelSpec],
    share: CpuShare,
    fused: Sequence[bool],
) -> tuple[list[int], int]:
    """([processes of each model, 0 for none], threads of each such process).

    fused: whether the model's workers preprocess themselves. Where preprocess_workers is "auto" the
    other models share what is left of the cores; each has at least one process. A number that all
    models have, as a flag gives it to them, is for those that preprocess. ConfigError for a number
    of processes of a model that does not define preprocess.
    """
    pairs = list(zip(models, specs, strict=True))
    asked_of_all = len({model.preprocess_workers for model in models}) == 1
    by_flag = asked_of_all and any(spec.features for spec in specs)
    for model, spec in pairs:
        if model.preprocess_workers and not spec.features and not by_flag:
            raise ConfigError(
                f"model {spec.name}: preprocess_workers = {model.preprocess_workers}, and its class"
                " defines no preprocess and features; leave the key out, or give it in a file to"
                " the models that preprocess"
            )
    apart = [bool(s.features) and not own for s, own in zip(specs, fused, strict=True)]
    staged = [model for model, own in zip(models, apart, strict=True) if own]
    asked = sum(model.preprocess_workers for model in staged)
    autos = sum(not model.preprocess_workers for model in staged)
    each = max(1, min(AUTO_MOST, (share.left - asked) // max(1, autos)))
    counts = [
        (model.preprocess_workers or each) if own else 0
        for model, own in zip(models, apart, strict=True)
    ]
    return counts, max(1, share.left // max(1, sum(counts)))
