"""The stages of a declaration: what is checked, what each stage reads and writes, the wire form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from batchpool.core.errors import ConfigError
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.core.tensors.stages import Stage, fused_spec, stage_spec, stages_of, written_by

TEXT, K = Tensor("text", "bytes", max_bytes=9), Tensor("k", "int64", default=3)
TAG = Tensor("tag", "int64", default=7)
IDS, Y = Tensor("ids", "int32", (Dim(4, "n"),)), Tensor("y", "float32")
LOGITS = Tensor("logits", "float32", (Dim(4, "n"),))
SPEC = ModelSpec("m", "torch", (TEXT, TAG), (Y,), (K,), (IDS,), ("tag",))


def test_each_stage_has_its_own_tensors() -> None:
    assert stages_of(SPEC) == (Stage.PREPROCESS, Stage.INFER)
    first, second = (stage_spec(SPEC, stage) for stage in stages_of(SPEC))
    assert (first.inputs, first.outputs, first.parameters) == (SPEC.inputs, (IDS,), (K,))
    assert first.framework == "numpy", "preprocessing imports no framework"
    assert [tensor.name for tensor in second.inputs] == ["tag", "ids"]
    assert (second.outputs, second.parameters, second.framework) == ((Y,), (K,), "torch")
    assert second.inputs[0].default is None, "a default is for what callers leave out"


def test_postprocess_reads_predictions_and_what_is_kept_for_it() -> None:
    spec = replace(SPEC, predictions=(LOGITS,), kept_tensors=("ids", "text"))
    assert stages_of(spec) == (Stage.PREPROCESS, Stage.INFER, Stage.POSTPROCESS)
    assert [written_by(spec, stage) for stage in stages_of(spec)] == [
        "features", "predictions", "outputs",
    ]  # fmt: skip
    _, middle, last = (stage_spec(spec, stage) for stage in stages_of(spec))
    assert [tensor.name for tensor in middle.inputs] == ["tag", "ids"]
    assert (middle.outputs, middle.framework) == ((LOGITS,), "torch")
    assert [tensor.name for tensor in last.inputs] == ["text", "ids", "logits"]
    assert (last.outputs, last.parameters, last.framework) == ((Y,), (K,), "numpy")


def test_a_model_may_postprocess_only() -> None:
    spec = ModelSpec("m", "torch", (TEXT, TAG), (Y,), (K,), predictions=(LOGITS,))
    assert stages_of(spec) == (Stage.INFER, Stage.POSTPROCESS)
    first, last = (stage_spec(spec, stage) for stage in stages_of(spec))
    assert (first.inputs, first.outputs) == ((TEXT, TAG), (LOGITS,))
    assert (last.inputs, last.outputs) == ((LOGITS,), (Y,))
    assert ModelSpec.from_wire(spec.to_wire()) == spec
    assert "features" not in spec.to_wire()


def test_a_model_without_features_is_its_only_stage() -> None:
    plain = ModelSpec("m", "torch", (TEXT,), (Y,))
    assert stages_of(plain) == (Stage.INFER,)
    assert stage_spec(plain, Stage.INFER) is plain
    assert "features" not in plain.to_wire(), "as a client of an earlier version knows it"


def test_the_wire_form_keeps_features_and_kept_inputs() -> None:
    assert ModelSpec.from_wire(SPEC.to_wire()) == SPEC
    assert "predictions" not in SPEC.to_wire(), "as a client of an earlier version knows it"
    both = replace(SPEC, predictions=(LOGITS,), kept_tensors=("ids", "text"))
    assert ModelSpec.from_wire(both.to_wire()) == both


@pytest.mark.parametrize(
    ("features", "kept", "message"),
    [
        ((replace(IDS, name="text"),), (), "feature 'text' has the name of an input or parameter"),
        ((replace(IDS, name="k"),), (), "feature 'k' has the name of an input or parameter"),
        ((IDS, IDS), (), "'ids' stands twice in its features"),
        ((replace(Y, default=1.0),), (), "feature 'y' has a default or labels"),
        ((Tensor("p", "float32", (2,), labels=("a", "b")),), (), "has a default or labels"),
        ((IDS,), ("picture",), "'picture' among its features is no input; expected a bp.Tensor"),
        ((IDS,), ("tag", "tag"), "'tag' stands twice in its features"),
        ((), ("tag",), "its features name inputs only"),
    ],
)
def test_features_that_cannot_work(features: Any, kept: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelSpec("m", "numpy", (TEXT, TAG), (Y,), (K,), features, kept)


@pytest.mark.parametrize(
    ("predictions", "kept", "message"),
    [
        (
            (replace(LOGITS, name="text"),),
            (),
            "prediction 'text' has the name of an input, feature",
        ),
        (
            (replace(LOGITS, name="ids"),),
            (),
            "instead of the tensor if postprocess is to read that",
        ),
        ((replace(LOGITS, name="k"),), (), "prediction 'k' has the name of an input, feature or"),
        ((LOGITS, LOGITS), (), "'logits' stands twice in its predictions"),
        ((replace(Y, default=1.0),), (), "no caller sees a prediction"),
        ((LOGITS,), ("k",), "'k' among its predictions is no input or feature; expected a bp.Tens"),
        ((LOGITS,), ("ids", "ids"), "'ids' stands twice in its predictions"),
        ((), ("ids",), "its predictions name inputs and features only; expected a bp.Tensor that"),
    ],
)
def test_predictions_that_cannot_work(predictions: Any, kept: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(SPEC, predictions=predictions, kept_tensors=kept)


def test_a_prediction_may_have_the_name_of_an_output() -> None:
    """As scores that postprocess only rounds."""
    spec = replace(SPEC, predictions=(replace(LOGITS, name="y"),))
    assert stage_spec(spec, Stage.POSTPROCESS).inputs[0].name == "y"


def test_the_names_of_stages_and_their_workers() -> None:
    assert [stage.label for stage in Stage] == ["infer", "preprocess", "postprocess"]
    assert [stage.worker_noun for stage in Stage] == ["worker", "preprocess", "postprocess"]
    assert int(Stage.INFER) == 0, "the only stage of most models"


def test_where_the_stages_are_fused_the_length_of_texts_stands_for_what_they_are_made_into() -> (
    None
):
    fused = fused_spec(SPEC)
    assert (stages_of(fused), fused.sized_by_length) == ((Stage.INFER,), ("text",))
    assert stage_spec(fused, Stage.INFER) is fused
    assert ModelSpec.from_wire(fused.to_wire()) == fused
    pixels = replace(SPEC, features=(Tensor("pixels", "float32", (3, 8, 8)),))
    assert fused_spec(pixels).sized_by_length == (), "every picture is of one size there"
    later = ModelSpec("m", "torch", (TEXT,), (Y,), predictions=(LOGITS,))
    assert fused_spec(later).sized_by_length == (), "infer reads the text itself"
    assert "sized_by_length" not in SPEC.to_wire()
