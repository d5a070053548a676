"""The stages of a model: the order in which a row takes them, and the tensors of each.

    stage        reads                                   writes       a model has it
    PREPROCESS   inputs                                  features     with features
    INFER        features and kept inputs, else inputs   predictions, always
                                                         else outputs
    POSTPROCESS  predictions and kept tensors            outputs      with predictions

All of them read the parameters. Rows stay in their slot from stage to stage; features and
predictions are columns of the lane between inputs and outputs. Where the workers of `infer` run all
stages themselves (fused), the pool knows one stage, and no features and predictions.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from batchpool.core.tensors.spec import ModelSpec, Tensor


class Stage(enum.IntEnum):
    """A stage of a model; the value stands in the slot's `stage` word.

    INFER is 0, since it is the only stage of most models.
    """

    INFER = 0
    PREPROCESS = 1
    POSTPROCESS = 2

    @property
    def label(self) -> str:
        """The stage in metrics, and in the names of processes."""
        return self.name.lower()

    @property
    def worker_noun(self) -> str:
        """A worker of the stage in names: "worker 0 of minilm", "preprocess 0 of minilm"."""
        return "worker" if self is Stage.INFER else self.label


CPU_STAGES = (Stage.PREPROCESS, Stage.POSTPROCESS)  # those whose processes never see a GPU


def stages_of(spec: ModelSpec) -> tuple[Stage, ...]:
    """The stages of a model in the order in which a row takes them."""
    before = (Stage.PREPROCESS,) if spec.features else ()
    after = (Stage.POSTPROCESS,) if spec.predictions else ()
    return (*before, Stage.INFER, *after)


def written_by(spec: ModelSpec, stage: Stage) -> Literal["features", "predictions", "outputs"]:
    """The list of the declaration that a stage writes."""
    if stage is Stage.PREPROCESS:
        return "features"
    return "predictions" if stage is Stage.INFER and spec.predictions else "outputs"


def fused_spec(spec: ModelSpec) -> ModelSpec:
    """The declaration of a model whose workers run all stages themselves, as everybody else knows
    it: one stage; features and predictions stay within a worker.

    Where the size of what `infer` reads is dynamic, it is made of the inputs of bytes, and nobody
    but the worker sees it: their length stands for it.
    """
    made = any(tensor.dynamic for tensor in spec.features)
    lengths = tuple(tensor.name for tensor in spec.inputs if made and tensor.is_bytes)
    return replace(
        spec, features=(), kept_inputs=(), predictions=(), kept_tensors=(), sized_by_length=lengths
    )


def stage_spec(spec: ModelSpec, stage: Stage) -> ModelSpec:
    """The declaration of one stage: `inputs` are what it reads, `outputs` what it writes.

    The spec itself where the model has one stage. The stages on the CPU are numpy's, whatever the
    framework: their processes import no other one by themselves. Kept inputs have lost their
    defaults, which concern what callers send.
    """
    if len(stages_of(spec)) == 1:
        return spec
    framework = spec.framework if stage is Stage.INFER else "numpy"
    kept = spec.kept_inputs if stage is Stage.INFER else spec.kept_tensors
    made = {
        Stage.PREPROCESS: (),
        Stage.INFER: spec.features,
        Stage.POSTPROCESS: spec.predictions,
    }[stage]
    inputs = (*_named(spec, kept), *made) if made else spec.inputs
    kind = written_by(spec, stage)
    outputs: tuple[Tensor, ...] = getattr(spec, kind)
    noun = kind.removesuffix("s")
    return ModelSpec(spec.name, framework, inputs, outputs, spec.parameters, output_noun=noun)


def _named(spec: ModelSpec, names: Sequence[str]) -> list[Tensor]:
    """The inputs and features of these names, in the order of the declaration."""
    return [replace(t, default=None) for t in (*spec.inputs, *spec.features) if t.name in names]
