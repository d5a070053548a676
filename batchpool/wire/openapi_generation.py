"""The paths and schemas of generators in the OpenAPI document."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from batchpool.core.tensors.spec import ModelSpec
from batchpool.wire.curl_samples import plain_sample
from batchpool.wire.generation_options import MAX_TOKENS
from batchpool.wire.openapi_routes import JSON, response_ref
from batchpool.wire.openapi_texts import count_schema, option_schemas
from batchpool.wire.plain_schemas import row_schema
from batchpool.wire.schemas import Json
from batchpool.wire.text_prompts import TEXT_INPUT, TEXT_OUTPUT

EVENTS = "text/event-stream"


def generation_schemas(spec: ModelSpec) -> Json:
    """The schemas of a generator's answers, by name; none for other models."""
    if not spec.generates:
        return {}
    tokens, reason = spec.outputs
    named: Json = {
        "model_name": {"const": spec.name},
        "model_version": {"type": "string"},
        "id": {"type": "string"},
    }
    ended: Json = {reason.name: {"enum": ["stop", "length"]}}
    found: Json = {}
    forms = [("Generation", tokens.name, row_schema(tokens))]
    if spec.text is not None:
        forms.append(("TextGeneration", TEXT_OUTPUT, {"type": "string"}))
        found["TextPrompt"] = _text_prompt(spec)
    for form, member, schema in forms:
        properties = {**named, member: schema, **ended}
        part = ["model_name", "model_version", member]
        found[form] = _object(properties, [*part, reason.name])
        found[f"{form}Part"] = _object(properties, part)
    return found


def _text_prompt(spec: ModelSpec) -> Json:
    options = {MAX_TOKENS: count_schema(spec, None), **option_schemas(spec)}
    own: Json = {TEXT_INPUT: {"type": "string"}, "id": {"type": "string"}}
    beside: Json = {"parameters": {"type": "object", "properties": options}}
    return {
        "type": "object",
        "required": [TEXT_INPUT],
        "properties": {**own, **beside, **options},
        "description": "A prompt as text. Its options stand beside it or in `parameters`.",
    }


def _object(properties: Json, required: Sequence[str]) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def generation_routes(
    spec: ModelSpec, server_url: str, parameters: list[Json], errors: Sequence[int]
) -> Json:
    """The paths of generate, of a model that is a generator; none for others.

    parameters: of the headers. errors: the statuses of an infer request that is refused.
    """
    if not spec.generates:
        return {}
    name, path = spec.name, f"/v2/models/{spec.name}"
    takes_text = spec.text is not None

    def schema_of(of_tokens: str, of_text: str) -> Json:
        refs = [{"$ref": f"#/components/schemas/{name}.{of_tokens}"}]
        if takes_text:
            refs.append({"$ref": f"#/components/schemas/{name}.{of_text}"})
        return {"anyOf": refs} if takes_text else refs[0]

    body: dict[str, Any] = {"schema": schema_of("PlainRequest", "TextPrompt"), "examples": {}}
    if plain := plain_sample(spec):
        body["examples"]["plain"] = {"value": json.loads(plain)}
    if takes_text:
        body["examples"]["text"] = {"value": {TEXT_INPUT: "Once upon a time"}}
    text_note = f" Or a prompt as text, in {TEXT_INPUT!r}." if takes_text else ""

    def operation(verb: str, summary: str, description: str, answer: Json) -> Json:
        found: Json = {
            "tags": [name],
            "operationId": f"{verb}_{name}",
            "summary": summary,
            "description": (
                f"{description} The body is that of infer with one row, in any form.{text_note}"
            ),
            "parameters": parameters,
            "requestBody": {"required": True, "content": {JSON: body}},
            "responses": {
                "200": answer,
                **{f"{status}": response_ref(status) for status in errors},
            },
        }
        if plain:
            target = shlex.quote(f"{server_url}{path}/{verb}")
            source = f"curl -sN {target} -d {shlex.quote(plain)}"
            found["x-codeSamples"] = [{"lang": "Shell", "label": "curl", "source": source}]
        return {"post": found}

    whole: Json = {
        "description": "All tokens.",
        "content": {JSON: {"schema": schema_of("Generation", "TextGeneration")}},
    }
    events: Json = {
        "description": (
            "Events `data: {...}`, each with what is new, as the schema"
            f" {name}.GenerationPart tells; the last has the finish reason. An error within the"
            " stream is one event `data: {error, code}`, the last."
        ),
        "content": {EVENTS: {"schema": {"type": "string"}}},
    }
    return {
        f"{path}/generate": operation(
            "generate", f"Tokens of {name} for one prompt", "One answer with all tokens.", whole
        ),
        f"{path}/generate_stream": operation(
            "generate_stream",
            f"Tokens of {name} for one prompt, as they are made",
            "The status goes out with the first token, or with the error.",
            events,
        ),
    }
