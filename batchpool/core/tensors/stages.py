"""The stages of a model: the order in which a row takes them, and the tensors of each.

    stage        reads                                  writes     a model without features
    PREPROCESS   inputs, parameters                     features   does not have it
    INFER        features, kept inputs, parameters      outputs    reads its inputs

Rows stay in their slot from stage to stage; the features are columns of the lane between inputs
and outputs. Where the workers of `infer` call `preprocess` themselves (fused), the pool knows one
stage and no features.
"""

from __future__ import annotations

import enum
from dataclasses import replace

from batchpool.core.tensors.spec import ModelSpec


class Stage(enum.IntEnum):
    """A stage of a model; the value stands in the slot's `stage` word.

    INFER is 0, since it is the only stage of most models.
    """

    INFER = 0
    PREPROCESS = 1

    @property
    def label(self) -> str:
        """The stage in metrics, and in the names of processes."""
        return self.name.lower()

    @property
    def worker_noun(self) -> str:
        """A worker of the stage in names: "worker 0 of minilm", "preprocess 0 of minilm"."""
        return "worker" if self is Stage.INFER else self.label


def stages_of(spec: ModelSpec) -> tuple[Stage, ...]:
    """The stages of a model in the order in which a row takes them."""
    return (Stage.PREPROCESS, Stage.INFER) if spec.features else (Stage.INFER,)


def fused_spec(spec: ModelSpec) -> ModelSpec:
    """The declaration of a model whose workers run `preprocess` themselves, as everybody else knows
    it: one stage, and no features, which stay within a worker."""
    return replace(spec, features=(), kept_inputs=())


def stage_spec(spec: ModelSpec, stage: Stage) -> ModelSpec:
    """The declaration of one stage: `inputs` are what it reads, `outputs` what it writes.

    The spec itself where the model has one stage. Preprocessing is numpy's, whatever the
    framework: its process imports no other one by itself. Kept inputs have lost their defaults,
    which concern what callers send.
    """
    if not spec.features:
        return spec
    if stage is Stage.PREPROCESS:
        outputs, noun = spec.features, "feature"
        return ModelSpec(
            spec.name, "numpy", spec.inputs, outputs, spec.parameters, output_noun=noun
        )
    kept = [replace(t, default=None) for t in spec.inputs if t.name in spec.kept_inputs]
    inputs = (*kept, *spec.features)
    return ModelSpec(spec.name, spec.framework, inputs, spec.outputs, spec.parameters)
