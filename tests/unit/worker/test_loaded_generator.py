"""A generator is loaded and warmed up before it serves, and what it sets is checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

import batchpool as bp
from batchpool.core.errors import ModelError
from batchpool.core.tensors.spec import ModelSpec
from batchpool.model import Model, spec_of
from batchpool.worker.loaded_generator import LoadedGenerator, load_generator
from batchpool.worker.loaded_model import Unload
from tests.unit.worker.toy_generator import Toy


class Warmed(Toy):
    """Its parameters besides: one with a default and one without."""

    parameters = [
        bp.Tensor("stop_at", "int32", default=0),
        bp.Tensor("name", "bytes", max_bytes=4),
    ]
    seen: ClassVar[list[Any]] = []

    def join(self, sequences: Sequence[bp.JoiningSequence]) -> None:  # type: ignore[override]
        self.seen.extend((s.prompt.tolist(), dict(s.parameters)) for s in sequences)
        super().join(sequences)


class Few(Toy):
    """Takes fewer sequences than it may."""

    def load(self, device: str) -> None:
        self.sequences, self.kv_tokens = 2, 999


class Wrong(Toy):
    """Sets what a test says."""

    limits: ClassVar[dict[str, Any]] = {}

    def load(self, device: str) -> None:
        for name, value in self.limits.items():
            setattr(self, name, value)


class Silent(Toy):
    """Makes no token, ever."""

    def step(self) -> bp.StepTokens:
        return bp.StepTokens((), ())


class Refusing(Toy):
    """Refuses its own warm-up."""

    def join(self, sequences: Sequence[bp.JoiningSequence]) -> Any:
        return {0: bp.InvalidInput("too short")}


class PlainModel(Model):
    framework = "numpy"
    inputs = [bp.Tensor("x", "float32")]
    outputs = [bp.Tensor("y", "float32")]

    def infer(self, batch: bp.Batch) -> Any:
        raise NotImplementedError


def loaded(
    cls: type[Model], unloads: list[Unload] | None = None, spec: ModelSpec | None = None
) -> LoadedGenerator:
    keep: list[Unload] = [] if unloads is None else unloads
    name = f"{cls.__module__}:{cls.__name__}"
    return load_generator(spec or spec_of(cls), name, "cpu", 4, {}, keep.append)


def test_it_is_loaded_with_its_most_sequences_and_warmed_up_twice() -> None:
    Warmed.seen.clear()
    unloads: list[Unload] = []
    found = loaded(Warmed, unloads)
    toy = found.generator
    assert isinstance(toy, Toy)
    assert toy.log == [("load", "cpu", 4)] + [("join", [0]), ("leave", [0])] * 2
    assert unloads == [toy.unload]
    parameters = {"stop_at": 0, "name": b"warm", "max_tokens": 2}
    assert Warmed.seen == [([0] * 8, parameters)] * 2
    assert found.slowest.rows == 1
    found.run_warm_up()
    assert toy.log[-1] == ("leave", [0])
    assert toy.running == {}


def test_it_may_take_fewer_sequences_and_say_how_many_tokens_fit() -> None:
    found = loaded(Few)
    assert (found.generator.sequences, found.generator.kv_tokens) == (2, 999)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("sequences", 5, "set sequences to 5; a whole number from 1 to max_batch = 4"),
        ("sequences", 0, "set sequences to 0"),
        ("sequences", 2.0, "set sequences to 2.0"),
        ("kv_tokens", -1, "set kv_tokens to -1; a whole number of tokens"),
        ("kv_tokens", np.int64(8), "set kv_tokens to"),
    ],
)
def test_what_load_sets_is_checked(
    name: str, value: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Wrong, "limits", {name: value})
    with pytest.raises(ModelError, match=text):
        loaded(Wrong)


def test_a_generator_that_makes_no_token_is_not_served() -> None:
    with pytest.raises(ModelError, match="made no token in 1009 steps") as caught:
        loaded(Silent)
    assert "warm_up_prompt" in caught.value.__notes__[0]


def test_the_refusal_of_the_warm_up_names_it() -> None:
    with pytest.raises(bp.InvalidInput, match="too short") as caught:
        loaded(Refusing)
    assert "warm_up_prompt" in caught.value.__notes__[0]


def test_code_that_is_no_generator_any_more_is_not_loaded() -> None:
    with pytest.raises(ModelError, match=r"among its kinds bp\.Model; bp\.Generator was expected"):
        loaded(PlainModel, spec=spec_of(Toy))
