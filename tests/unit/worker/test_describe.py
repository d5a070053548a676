"""The description of a generator with a text: front ends will be able to read it."""

from __future__ import annotations

from pathlib import Path

import pytest

import batchpool as bp
from batchpool.core.errors import ConfigError
from batchpool.core.tensors.spec import ModelSpec
from batchpool.core.tensors.text import Text
from batchpool.worker.describe import describe
from tests.lazy import library
from tests.unit.frontend.story_double import Story
from tests.unit.text.tokenizers_made import byte_level, saved

library("tokenizers")


class Told(Story):
    """A generator whose text its options say."""

    def __init__(self, tokenizer: str, template: str = "") -> None:
        self.text = Text(tokenizer, template)


NAME = f"{__name__}:Told"


def test_a_text_is_part_of_the_description(tmp_path: Path) -> None:
    path = str(saved(byte_level(), tmp_path))
    spec = ModelSpec.from_wire(describe(NAME, "", {"tokenizer": path})["spec"])
    assert spec.text == Text(path, "")


def test_a_text_that_cannot_be_read_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'missing\.json' is no file"):
        describe(NAME, "", {"tokenizer": "missing.json"})
    path = str(saved(byte_level(), tmp_path))
    with pytest.raises(ConfigError, match="chat template cannot be read"):
        describe(NAME, "", {"tokenizer": path, "template": "{% for"})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"prompt": bp.Tensor("p", "float32", (bp.Dim(4),))}, "prompt is float32"),
        ({"prompt": bp.Tensor("p", "int32", (bp.Dim(4), 2))}, "prompt is int32"),
        ({"prompt": bp.Tensor("p", "bfloat16", (bp.Dim(4),))}, "prompt is bfloat16"),
        ({"token": bp.Tensor("t", "int32", (8,))}, "token is int32"),
        ({"text": "tokenizer.json"}, "a bp.Text was expected"),
    ],
)
def test_a_text_needs_whole_numbers(changes: dict[str, object], text: str) -> None:
    from batchpool.model import spec_of

    with pytest.raises(ConfigError, match=text):
        spec_of(type("Wrong", (Story,), {"text": Text("tokenizer.json"), **changes}))
