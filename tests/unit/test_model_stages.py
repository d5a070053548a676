"""Model classes with stages around `infer`: what their declaration must be."""

from __future__ import annotations

from typing import Any

import pytest

import batchpool as bp
from batchpool.core.errors import ConfigError
from batchpool.core.tensors.stages import Stage, stage_spec
from batchpool.model import Batch, spec_of


class Plain(bp.Model):
    framework = "numpy"
    inputs = [bp.Tensor("text", "bytes", max_bytes=9), bp.Tensor("tag", "int64")]
    outputs = [bp.Tensor("y", "float32")]

    def infer(self, batch: Batch) -> dict[str, Any]:
        return {}


class Staged(Plain):
    features = [bp.Tensor("ids", "int32", (4,)), "tag"]

    def preprocess(self, batch: Batch) -> dict[str, Any]:
        return {}


class Answered(Staged):
    predictions = [bp.Tensor("logits", "float32", (3,)), "tag", "ids"]

    def postprocess(self, batch: Batch) -> dict[str, Any]:
        return {}


def test_names_among_the_features_are_inputs_that_infer_reads_too() -> None:
    spec = spec_of(Staged)
    assert [tensor.name for tensor in spec.features] == ["ids"]
    assert spec.kept_inputs == ("tag",)


def test_features_without_preprocess_are_refused() -> None:
    class Forgot(Plain):
        features = Staged.features

    with pytest.raises(ConfigError, match="Forgot has features and does not define preprocess"):
        spec_of(Forgot)


def test_names_among_the_predictions_are_what_postprocess_reads_too() -> None:
    spec = spec_of(Answered)
    assert [tensor.name for tensor in spec.predictions] == ["logits"]
    assert spec.kept_tensors == ("tag", "ids")

    class Alone(Plain):
        predictions = [bp.Tensor("logits", "float32", (3,)), "ids"]
        postprocess = Answered.postprocess

    with pytest.raises(ConfigError, match="'ids' among its predictions is no input; expected"):
        spec_of(Alone)


def test_predictions_without_postprocess_are_refused() -> None:
    class Forgot(Plain):
        predictions = [bp.Tensor("logits", "float32", (3,))]

    with pytest.raises(ConfigError, match="Forgot has predictions and does not define postproces"):
        spec_of(Forgot)


@pytest.mark.parametrize("method", ["", "load_", "unload_"])
@pytest.mark.parametrize(
    ("stage", "kind"), [("preprocess", "features"), ("postprocess", "predictions")]
)
def test_a_stage_without_its_tensors_is_refused(method: str, stage: str, kind: str) -> None:
    name = method + stage
    lonely = type("Lonely", (Plain,), {name: lambda self, *given: {}})
    with pytest.raises(ConfigError, match=f"defines {name} and has no {kind}: expected {kind} = "):
        spec_of(lonely)


def test_an_instance_may_set_its_predictions() -> None:
    class Late(Answered):
        def __init__(self, classes: int) -> None:
            self.predictions = [bp.Tensor("logits", "float32", (classes,))]

    assert spec_of(Late(7)).predictions[0].shape == (7,)


def test_what_is_no_tensor_and_no_name_is_refused() -> None:
    class Odd(Staged):
        features = [3]  # type: ignore[list-item]

    with pytest.raises(ConfigError, match=r"features must be bp\.Tensor or names of inputs, not 3"):
        spec_of(Odd)


def test_a_submodule_called_features_stays_what_an_instance_has() -> None:
    """As torch.nn.Module looks it up: only where the class has no attribute of the name."""

    class Net(Plain):
        def __getattr__(self, name: str) -> str:
            return f"submodule {name}"

    assert Net().features == "submodule features"
    assert spec_of(Net).features == ()


def test_graphs_are_for_what_infer_reads() -> None:
    class Graphs(Staged):
        framework = "torch"
        cuda_graphs = True

    assert spec_of(Graphs).features, "its text does not reach the GPU"
    Graphs.features = [bp.Tensor("ids", "bytes", max_bytes=4)]
    with pytest.raises(ConfigError, match="needs numbers; 'ids' is a bytes tensor"):
        spec_of(Graphs)


def test_graphs_are_for_what_infer_makes() -> None:
    class Graphs(Answered):
        framework = "torch"
        cuda_graphs = True
        outputs = [bp.Tensor("label", "bytes", max_bytes=9)]

    assert spec_of(Graphs).predictions, "its label is made elsewhere"
    Graphs.predictions = [bp.Tensor("logits", "float32", (bp.Dim(4),))]
    with pytest.raises(ConfigError, match=r"needs outputs of fixed shapes.*'logits' is"):
        spec_of(Graphs)


def test_a_model_that_does_not_define_it_says_so() -> None:
    with pytest.raises(NotImplementedError, match="Plain does not define preprocess"):
        Plain().preprocess(Batch(0, {}))
    with pytest.raises(NotImplementedError, match="Plain does not define postprocess"):
        Plain().postprocess(Batch(0, {}))
    assert stage_spec(spec_of(Plain), Stage.INFER) == spec_of(Plain)
