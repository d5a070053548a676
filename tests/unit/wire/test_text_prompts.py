"""Prompts as text: which bodies are some, their options, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from batchpool.core.errors import InvalidRequest
from batchpool.core.tensors.spec import Dim, Tensor
from batchpool.wire.text_prompts import TextPrompt, may_be_text_prompt, read_text_prompt
from tests.unit.specs import STORY

SPEC = replace(STORY, parameters=(*STORY.parameters, Tensor("temperature", "float32", default=0.0)))


def read(**members: Any) -> TextPrompt:
    found = read_text_prompt(json.dumps({"text_input": "Once", **members}).encode())
    assert found is not None
    return found


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_look_at_the_bytes_tells_most_bodies_apart(kind: Any) -> None:
    def may_be(body: bytes, headers: dict[bytes, bytes] | None = None) -> bool:
        return may_be_text_prompt(STORY, headers or {}, kind(body))

    assert may_be(b' {"text_input": "a"}')
    assert not may_be(b'{"prompt": [1]}')
    assert not may_be(b'["text_input"]')
    assert not may_be(b'{"text_input": "a"}', {b"inference-header-content-length": b"9"})


def test_a_generator_whose_tensor_has_the_name_takes_tokens_under_it() -> None:
    spec = replace(STORY, inputs=(Tensor("text_input", "int32", (Dim(4),)),))
    assert not may_be_text_prompt(spec, {}, b'{"text_input": [1]}')


def test_a_body_with_the_name_elsewhere_is_no_text_prompt() -> None:
    assert read_text_prompt(b'{"prompt": [1], "id": "text_input"}') is None


def test_options_stand_beside_the_text_or_in_parameters() -> None:
    for options in (
        {"max_tokens": 3, "temperature": 0.5, "stop": "x"},
        {"parameters": {"max_tokens": 3, "temperature": 0.5, "stop": ["x"]}},
        {"max_new_tokens": 3, "parameters": {"temperature": 0.5, "stop_words": ["x"]}},
    ):
        found = read(**options)
        assert (found.prompt, found.id, found.streams) == ("Once", None, None)
        assert found.options.stops == ("x",)
        values = found.options.parameters(SPEC)
        assert (values["max_tokens"], values["temperature"]) == (3, 0.5)


def test_without_a_number_it_is_the_generators_own() -> None:
    values = read().options.parameters(SPEC)
    assert values["max_tokens"] == STORY.parameters[0].default


def test_members_of_other_servers_are_taken_where_they_ask_for_nothing() -> None:
    found = read(
        id="one", bad_words="", stop_words="", exclude_input_in_output=True,
        parameters={"stream": True, "n": 1, "seed": 7},
    )  # fmt: skip
    assert (found.id, found.streams, found.options.stops) == ("one", True, ())
    assert found.options.parameters(SPEC)["temperature"] == 0.0
    assert read(id="").id is None


@pytest.mark.parametrize(
    ("members", "param", "text"),
    [
        ({"text_input": ["a"]}, "text_input", "a text was expected"),
        ({"bad_words": ["x"]}, "bad_words", "bad_words are not offered here"),
        ({"exclude_input_in_output": False}, "exclude_input_in_output", "true was expected"),
        ({"stop": "a", "stop_words": "b"}, "stop_words", "came together"),
        ({"stop": "a", "parameters": {"stop": "b"}}, "stop", "in the request and in its param"),
        ({"parameters": [1]}, "parameters", "an object was expected"),
        ({"stream": True, "stream_options": {}}, "stream_options", "belongs to /v1/completions"),
        ({"max_tokens": 0}, "max_tokens", "at least 1 was expected"),
        ({"max_new_tokens": 0}, "max_new_tokens", "max_new_tokens is 0"),
    ],
)
def test_a_refusal_names_the_member(members: dict[str, Any], param: str, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text) as caught:
        read(**members)
    assert caught.value.param == param


def test_a_member_that_nobody_knows_is_refused_with_the_parameters_that_there_are() -> None:
    with pytest.raises(InvalidRequest, match=r"unknown member 'prompt'.*temperature"):
        read(prompt=[1]).options.parameters(SPEC)
