"""The OpenAPI document on completions and chats."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from openapi_spec_validator import validate

from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.core.tensors.text import Text
from batchpool.wire.chats import read_chat_request
from batchpool.wire.completions import read_completion_request
from batchpool.wire.generation import GenerationAnswers
from batchpool.wire.openai_texts import CHAT, COMPLETION, TextAnswer, Usage, WholeText
from batchpool.wire.openapi import document
from batchpool.wire.text_prompts import read_text_prompt
from tests.unit.specs import STORY

TALE = replace(
    STORY,
    text=Text("tokenizer.json", "{{ messages }}"),
    parameters=(*STORY.parameters, Tensor("temperature", "float32", default=0.0)),
)
READ = {"/v1/completions": read_completion_request, "/v1/chat/completions": read_chat_request}


def made(*specs: ModelSpec) -> Any:
    return document(specs, "1", "http://127.0.0.1:8000", {spec.name: 0 for spec in specs})


def test_only_generators_with_a_text_have_these_paths() -> None:
    assert not set(READ) & set(made(STORY)["paths"])
    plain = replace(TALE, text=Text("tokenizer.json"))
    assert set(READ) & set(made(plain)["paths"]) == {"/v1/completions"}
    assert set(READ) <= set(made(STORY, TALE)["paths"])
    validate(made(TALE))


@pytest.mark.parametrize("path", list(READ))
def test_the_sample_of_each_path_is_a_request_by_its_schema(path: str) -> None:
    content = made(TALE)["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    sample = content["examples"]["text"]["value"]
    jsonschema.validate(sample, content["schema"])
    request = READ[path](json.dumps(sample).encode())
    assert request.options.parameters(TALE)["temperature"] == 0.0
    for wrong in ({**sample, "max_tokens": 0}, {"model": TALE.name}, {**sample, "stop": ["a"] * 5}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, content["schema"])


@pytest.mark.parametrize(("path", "form"), list(zip(READ, (COMPLETION, CHAT), strict=True)))
def test_answers_are_as_their_schema_says(path: str, form: Any) -> None:
    answer = made(TALE)["paths"][path]["post"]["responses"]["200"]["content"]
    whole = TextAnswer(form, "x", 1, "m").whole([WholeText("a", "stop")], Usage(1, 2))
    jsonschema.validate(json.loads(whole), answer["application/json"]["schema"])
    assert "text/event-stream" in answer


def test_generate_takes_and_gives_text_where_there_is_one() -> None:
    schemas = made(TALE)["components"]["schemas"]
    post = made(TALE)["paths"][f"/v2/models/{TALE.name}/generate"]["post"]
    sample = post["requestBody"]["content"]["application/json"]["examples"]["text"]["value"]
    jsonschema.validate(sample, schemas["m.TextPrompt"])
    prompt = read_text_prompt(json.dumps(sample).encode())
    assert prompt is not None
    assert prompt.options.parameters(TALE)["temperature"] == 0.0
    whole = json.loads(GenerationAnswers(TALE, "1").text_answer("x", "a", "stop"))
    jsonschema.validate(whole, schemas["m.TextGeneration"])
    assert not [name for name in made(STORY)["components"]["schemas"] if "Text" in name]
