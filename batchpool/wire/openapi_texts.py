"""The paths of OpenAI's completions and chats in the OpenAPI document."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.wire.chats import MOST_MESSAGES
from batchpool.wire.completions import DEFAULT_MAX_TOKENS, MOST_PROMPTS
from batchpool.wire.generation_options import LONGEST_STOP, MAX_TOKENS, MOST_STOPS
from batchpool.wire.openapi_openai import (
    ERRORS,
    INTEGER,
    NULL,
    STRING,
    object_of,
    operation_of,
)
from batchpool.wire.openapi_routes import JSON
from batchpool.wire.schemas import Json

_EVENTS = "text/event-stream"
_REASON: Json = {"enum": ["stop", "length"]}


def text_routes(specs: Sequence[ModelSpec], server_url: str, parameters: list[Json]) -> Json:
    """The paths of completions where a generator has a text, and of chats where it has a template.

    parameters: of the headers.
    """
    texts = [(spec, spec.text) for spec in specs if spec.text is not None]
    routes: Json = {}
    if texts:
        name = texts[0][0].name
        sample = {"model": name, "prompt": "Once upon a time", "stream": True}
        schema = {"anyOf": [_request(spec, **_prompts(spec)) for spec, _ in texts]}
        choice = _choice(text=STRING)
        operation = operation_of("openai_completions", "Complete texts", _answer(choice), ERRORS)
        call = f"completions.create(model={name!r}, prompt={sample['prompt']!r})"
        routes["/v1/completions"] = {"post": {**operation, "parameters": parameters}}
        _describe(routes, server_url, "completions", schema, sample, call)
    chats = [spec for spec, text in texts if text.chat_template]
    if chats:
        name = chats[0].name
        messages = [{"role": "user", "content": "Hello"}]
        chat = {"model": name, "messages": messages, "stream": True}
        schema = {"anyOf": [_request(spec, **_messages(spec)) for spec in chats]}
        message = object_of(role={"enum": ["assistant"]}, content=STRING, refusal=NULL)
        answer = _answer(_choice(message=message))
        operation = operation_of("openai_chats", "Answer the messages of a chat", answer, ERRORS)
        call = f"chat.completions.create(model={name!r}, messages={messages!r})"
        routes["/v1/chat/completions"] = {"post": {**operation, "parameters": parameters}}
        _describe(routes, server_url, "chat/completions", schema, chat, call)
    return routes


def _describe(
    routes: Json, server_url: str, tail: str, schema: Json, sample: Json, call: str
) -> None:
    """Add the body, the events and the samples of a call to its path."""
    operation = routes[f"/v1/{tail}"]["post"]
    target = shlex.quote(f"{server_url}/v1/{tail}")
    python = (
        "from openai import OpenAI\n\n"
        f'client = OpenAI(base_url="{server_url}/v1", api_key="none")\n'
        f"client.{call}"
    )
    operation["description"] = (
        "What OpenAI's clients send, unmodified. With `stream` the answer is events `data: {...}`"
        " with parts of the text, and `data: [DONE]` at the end; the status goes out with the first"
        " part, and an error behind it is one event `data: {error}`, the last."
    )
    operation["requestBody"] = {
        "required": True,
        "content": {JSON: {"schema": schema, "examples": {"text": {"value": sample}}}},
    }
    operation["responses"]["200"]["content"][_EVENTS] = {"schema": STRING}
    operation["x-codeSamples"] = [
        {
            "lang": "Shell",
            "label": "curl",
            "source": f"curl -sN {target} -d {shlex.quote(json.dumps(sample))}",
        },
        {"lang": "Python", "label": "openai", "source": python},
    ]


def option_schemas(spec: ModelSpec) -> Json:
    """The members of a request for a text that all its routes share, by name: stop strings,
    `stream`, and the generator's parameters but the number of tokens."""
    stop: Json = {"type": "string", "minLength": 1, "maxLength": LONGEST_STOP}
    stops: Json = {"type": "array", "items": stop, "maxItems": MOST_STOPS}
    return {
        "stop": {"anyOf": [stop, stops, NULL]},
        "stream": {"type": ["boolean", "null"]},
        **{p.name: _parameter(p) for p in spec.parameters if p.name != MAX_TOKENS},
    }


def _request(spec: ModelSpec, required: str, properties: Json) -> Json:
    options: Json = {"type": "object", "properties": {"include_usage": {"type": "boolean"}}}
    names = ", ".join(p.name for p in spec.parameters if p.name != MAX_TOKENS) or "none"
    return {
        "type": "object",
        "required": ["model", required],
        "properties": {
            "model": {"enum": [spec.name]},
            **properties,
            "stream_options": {"anyOf": [options, NULL]},
            **option_schemas(spec),
        },
        "description": f"The parameters of the model stand beside the rest: {names}.",
    }


def _parameter(parameter: Tensor) -> Json:
    if parameter.is_bytes:
        return {"type": ["string", "null"], "default": parameter.default_in_json}
    kind = {"f": "number", "b": "boolean"}.get(parameter.np_dtype.kind, "integer")
    return {"type": [kind, "null"], "default": parameter.default_in_json}


def _prompts(spec: ModelSpec) -> Json:
    tokens: Json = {
        "type": "array", "items": INTEGER,
        "minItems": max(1, spec.inputs[0].min_shape[0]), "maxItems": spec.inputs[0].max_shape[0],
    }  # fmt: skip
    several = {"minItems": 1, "maxItems": MOST_PROMPTS}
    texts: Json = {"type": "array", "items": STRING, **several}
    lists: Json = {"type": "array", "items": tokens, **several}
    prompt: Json = {"anyOf": [STRING, texts, tokens, lists]}
    count = count_schema(spec, DEFAULT_MAX_TOKENS)
    return {"required": "prompt", "properties": {"prompt": prompt, MAX_TOKENS: count}}


def _messages(spec: ModelSpec) -> Json:
    parts: Json = {"type": "array", "items": object_of(type={"enum": ["text"]}, text=STRING)}
    message = object_of(role=STRING, content={"anyOf": [STRING, parts]})
    messages: Json = {
        "type": "array", "items": message, "minItems": 1, "maxItems": MOST_MESSAGES,
    }  # fmt: skip
    count = count_schema(spec, None)
    properties = {"messages": messages, "max_completion_tokens": count, MAX_TOKENS: count}
    return {"required": "messages", "properties": properties}


def count_schema(spec: ModelSpec, default: int | None) -> Json:
    """The schema of a number of tokens. default: where that is not the generator's own."""
    most = spec.outputs[0].max_shape[0]
    found: Json = {"type": ["integer", "null"], "minimum": 1, "maximum": most}
    return found if default is None else {**found, "default": min(default, most)}


def _choice(**member: Json) -> Json:
    return object_of(index=INTEGER, **member, logprobs=NULL, finish_reason=_REASON)


def _answer(choice: Json) -> Json:
    usage = object_of(prompt_tokens=INTEGER, completion_tokens=INTEGER, total_tokens=INTEGER)
    return object_of(
        id=STRING,
        object=STRING,
        created=INTEGER,
        model=STRING,
        choices={"type": "array", "items": choice},
        usage=usage,
    )
