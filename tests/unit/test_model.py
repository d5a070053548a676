"""The declaration of a model class, also of one with another parent class."""

from __future__ import annotations

import re
from typing import Any

import pytest

from batchpool.core.errors import ConfigError
from batchpool.core.tensors.spec import Tensor
from batchpool.model import Batch, Model, spec_of

X, Y = Tensor("x", "float32", (2,)), Tensor("y", "float32", (2,))
K = Tensor("k", "int64", default=1)


class Declared(Model):
    inputs = [X]
    outputs = [Y]
    parameters = [K]

    def infer(self, batch: Batch) -> dict[str, Any]:
        return {"y": batch["x"]}


def test_a_subclass_has_the_tensors_of_its_parent_or_its_own() -> None:
    class Heir(Declared):
        pass

    class Other(Declared):
        parameters = ()

    assert spec_of(Heir).parameters == spec_of(Declared).parameters == (K,)
    assert spec_of(Other).parameters == ()
    Heir.parameters = [Tensor("later", "int8", default=1)]
    assert [p.name for p in spec_of(Heir).parameters] == ["later"]


class Layer:
    """A class like torch.nn.Module: its `parameters` is a method."""

    def parameters(self) -> list[str]:
        return ["weight"]


class LayerFirst(Layer, Model):  # type: ignore[misc]
    inputs = [X]
    outputs = [Y]
    parameters = [K]  # type: ignore[assignment]
    infer = Declared.infer


class LayerLast(Model, Layer):  # type: ignore[misc]
    inputs = [X]
    outputs = [Y]
    parameters = [K]  # type: ignore[assignment]
    infer = Declared.infer


class LayerAndModel(Layer, Declared):  # type: ignore[misc]
    pass


class ModelAndLayer(Declared, Layer):  # type: ignore[misc]
    pass


class HeirOfBoth(LayerLast):
    pass


@pytest.mark.parametrize("kind", [LayerFirst, LayerLast, LayerAndModel, ModelAndLayer, HeirOfBoth])
def test_the_list_is_declared_and_the_method_of_the_other_parent_is_called(kind: Any) -> None:
    assert spec_of(kind).parameters == (K,)
    assert kind().parameters() == ["weight"]


def test_a_method_alone_declares_nothing() -> None:
    class Undeclared(Layer, Model):  # type: ignore[misc]
        inputs = [X]
        outputs = [Y]
        infer = Declared.infer

    assert spec_of(Undeclared).parameters == ()
    assert Undeclared().parameters() == ["weight"]


def test_a_torch_module_may_be_a_model() -> None:
    torch = pytest.importorskip("torch")

    for parents in ((torch.nn.Module, Model), (Model, torch.nn.Module)):

        def load(self: Any, device: str) -> None:
            self.layer = torch.nn.Linear(2, 2).to(device)

        body = {"inputs": [X], "outputs": [Y], "parameters": [K], "load": load}
        kind: Any = type("Net", parents, {**body, "infer": Declared.infer})
        assert spec_of(kind).parameters == (K,)
        net = kind()
        net.load("cpu")
        assert [tuple(p.shape) for p in net.parameters()] == [(2, 2), (2,)]
        assert sum(p.numel() for p in net.eval().float().parameters()) == 6


@pytest.mark.parametrize("wrong", [K, "k", 5, {"k": K}])
def test_what_is_no_list_of_tensors_is_named(wrong: Any) -> None:
    kind = type("Wrong", (Declared,), {"parameters": wrong})
    text = f"model 'wrong': parameters must be a list of bp.Tensor, not {wrong!r}"
    with pytest.raises(ConfigError, match=re.escape(text)):
        spec_of(kind)
