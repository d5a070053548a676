"""The layers of a decoder are compiled once for all of them, and give what they gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchpool.model import make_instance
from tests.lazy import library
from tests.unit.models.decoder.test_packed import Packed
from tests.unit.models.decoder_folders import LENGTH, Loop, gpt2, llama, sequence

torch = library("torch")
fusion = library("batchpool.models.decoder.fusion")
slot_check = library("batchpool.models.decoder.slot_check")


def make_layers(n: int) -> Any:
    """A model whose layers read their numbers, and stop to do what is not compiled."""

    class Layer(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number
            self.product = torch.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return x + notes(torch.relu(self.product(x)), self.number)

    class Layers(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.few = torch.nn.ModuleList([torch.nn.Linear(4, 4)])
            self.layers = torch.nn.ModuleList(map(Layer, range(n)))

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return x

    seen: list[int] = []

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def notes(x: Any, number: int) -> Any:
        seen.append(number)
        return x

    model = Layers().eval()
    model.seen = seen
    return model


def test_layers_are_compiled_once_for_all_of_them_and_for_all_numbers_of_tokens() -> None:
    compiled = []

    def backend(graph: Any, examples: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    model = make_layers(6)
    inputs = [torch.randn(n, 4) for n in (3, 5, 9, 17)]
    with torch.inference_mode():
        expected = [model(x) for x in inputs]
        model.seen.clear()
        fusion.fuse(model, 6, backend)
        found = [model(x) for x in inputs]
    for wanted, got in zip(expected, found, strict=True):
        torch.testing.assert_close(got, wanted)
    assert model.seen == [*range(6)] * 4
    assert len(compiled) <= 4  # two parts of a layer, by the first number and by any


def test_a_model_whose_layers_are_not_found_is_named() -> None:
    with pytest.raises(ValueError, match="Layers has no list of its 7 layers"):
        fusion.fuse(make_layers(6), 7)


class Fused(Packed):
    """fused: does what torch.compile would do."""

    fused: Any = None

    def _fuse(self, model: Any, layers: int) -> None:
        self.fused(model, layers)


def made(folder: Path, fused: Any) -> Fused:
    values = {"path": folder, "max_length": LENGTH, "compile": True}
    model = make_instance(Fused, "m", values)
    assert isinstance(model, Fused)
    model.fused, model.sequences = staticmethod(fused), 2
    return model


def test_a_compiled_model_is_tried_again_before_it_serves(tmp_path: Path) -> None:
    """Against the logits of the model as it was."""
    folder, given = llama(tmp_path), []
    model = made(folder, lambda model, layers: given.append(layers))
    model.load("cpu")
    assert given == [2]
    assert len(Loop(model, [sequence(0, [3, 4], 5)]).run()[0]) == 5

    def spoil(model: Any, layers: int) -> None:
        model.model.norm.weight.mul_(-1)

    with pytest.raises(slot_check.UnfitModelError, match="without the option compile it may"):
        made(folder, spoil).load("cpu")


def test_what_is_not_compiled_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Here for want of attention that takes sequences one behind another."""
    model = made(gpt2(tmp_path), pytest.fail)
    model.attention = None
    model.load("cpu")
    assert "option compile is left out" in caplog.text
