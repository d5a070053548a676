"""The generator of docs/generation.md runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

import batchpool as bp
from batchpool.model import make_instance, spec_of

PAGE = Path(__file__).parents[3] / "docs/generation.md"


def counter(sequences: int) -> Any:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = [block for block in blocks if "bp.Generator)" in block]
    names: dict[str, Any] = {"__name__": "counter"}
    exec(compile(code, str(PAGE), "exec"), names)
    model = make_instance(names["Counter"], "counter", {})
    assert isinstance(model, bp.Generator)
    model.sequences = sequences
    model.load("cpu")
    return model


def joining(number: int, prompt: list[int], tokens: tuple[int, ...] = (), by: int = 1) -> Any:
    arrays = np.array(prompt, np.int32), np.array(tokens, np.int32)
    return bp.JoiningSequence(number, *arrays, 9, {"by": by, "max_tokens": 9})


def test_the_generator_of_the_page_runs_several_sequences() -> None:
    model = counter(4)
    spec = spec_of(model)
    assert [tensor.name for tensor in spec.parameters] == ["by", "max_tokens"]
    assert spec.outputs[0].max_shape == (256,)
    refused = model.join([joining(0, [5]), joining(3, [1, 16], (17, 18)), joining(2, [1], by=0)])
    assert list(refused) == [2]
    assert isinstance(refused[2], bp.InvalidInput)
    found = model.step()
    assert (found.numbers.tolist(), found.tokens.tolist()) == ([0, 3], [6, 19])
    assert found.stopped.tolist() == []
    model.join([joining(1, [30], by=5)])
    found = model.step()
    assert (found.numbers.tolist(), found.tokens.tolist()) == ([0, 1, 3], [7, 35, 20])
    assert found.stopped.tolist() == [3]
    model.leave([3])
    assert model.step().numbers.tolist() == [0, 1]
