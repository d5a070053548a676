"""An instance knows its served name, and may declare its tensors in `__init__`."""

from __future__ import annotations

from typing import Any

import pytest

from batchpool.core.errors import ConfigError
from batchpool.core.tensors.spec import Tensor
from batchpool.model import Batch, Model, make_instance, spec_of

X, Y = Tensor("x", "float32", (2,)), Tensor("y", "float32", (2,))
K = Tensor("k", "int64", default=1)


class Wide(Model):
    framework = "numpy"
    outputs = [Y]

    def __init__(self, width: int = 3) -> None:
        self.named = self.name
        self.inputs = [Tensor("x", "float32", (width,))]

    def infer(self, batch: Batch) -> dict[str, Any]:
        return {"y": batch["x"]}


class Named(Wide):
    name = "of_class"


def test_an_instance_knows_its_name_within_init() -> None:
    assert make_instance(Wide, "served", {}).named == "served"  # type: ignore[attr-defined]
    for cls, name in ((Wide, "wide"), (Named, "of_class")):
        model = make_instance(cls, "", {})
        assert (model.named, model.name) == (name, name)  # type: ignore[attr-defined]
        assert spec_of(model).name == name
    assert Wide.name == ""


def test_tensors_of_an_instance_go_before_those_of_the_class() -> None:
    spec = spec_of(make_instance(Wide, "w", {"width": 7}))
    assert spec.inputs == (Tensor("x", "float32", (7,)),)
    assert spec.outputs == (Y,)
    with pytest.raises(ConfigError, match="needs at least one input"):
        spec_of(Wide)


def test_a_property_declares_too() -> None:
    class Derived(Wide):
        @property
        def outputs(self) -> list[Tensor]:  # type: ignore[override]
            return [Tensor("y", *((self.inputs[0].dtype, self.inputs[0].shape)))]

    assert spec_of(make_instance(Derived, "d", {})).outputs[0].shape == (3,)


@pytest.mark.parametrize("attribute", ["framework", "cuda_graphs"])
def test_other_attributes_of_an_instance_count_as_well(attribute: str) -> None:
    class Sets(Wide):
        def __init__(self) -> None:
            super().__init__()
            self.framework = "torch"
            self.cuda_graphs = attribute == "cuda_graphs"
            self.outputs = [Y, Tensor("text", "bytes", max_bytes=9)]

    model = make_instance(Sets, "s", {})
    if attribute == "framework":
        assert spec_of(model).framework == "torch"
    else:
        with pytest.raises(ConfigError, match="cuda_graphs = True, which needs numbers; 'text'"):
            spec_of(model)


def test_a_list_does_not_take_the_place_of_another_parents_method() -> None:
    torch = pytest.importorskip("torch")

    for parents in ((torch.nn.Module, Model), (Model, torch.nn.Module)):

        def __init__(self: Any) -> None:
            assert self.name == "net"
            torch.nn.Module.__init__(self)
            self.layer = torch.nn.Linear(2, 2)
            self.inputs, self.outputs, self.parameters = [X], [Y], [K]

        kind: Any = type("Net", parents, {"__init__": __init__, "infer": Wide.infer})
        net: Any = make_instance(kind, "net", {})
        assert spec_of(net).parameters == (K,)
        assert [tuple(p.shape) for p in net.parameters()] == [(2, 2), (2,)]
        assert net.name == "net"
