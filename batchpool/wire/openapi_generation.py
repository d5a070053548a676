"""The paths and schemas of generators in the OpenAPI document."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from batchpool.core.tensors.spec import ModelSpec
from batchpool.wire.curl_samples import plain_sample
from batchpool.wire.openapi_routes import JSON, response_ref
from batchpool.wire.plain_schemas import row_schema
from batchpool.wire.schemas import Json

EVENTS = "text/event-stream"


def generation_schemas(spec: ModelSpec) -> Json:
    """The schemas of a generator's answers, by name; none for other models."""
    if not spec.generates:
        return {}
    tokens, reason = spec.outputs
    properties: Json = {
        "model_name": {"const": spec.name},
        "model_version": {"type": "string"},
        "id": {"type": "string"},
        tokens.name: row_schema(tokens),
        reason.name: {"enum": ["stop", "length"]},
    }
    part = ["model_name", "model_version", tokens.name]
    return {
        "Generation": _object(properties, [*part, reason.name]),
        "GenerationPart": _object(properties, part),
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
    body: dict[str, Any] = {"schema": {"$ref": f"#/components/schemas/{name}.PlainRequest"}}
    if plain := plain_sample(spec):
        body["examples"] = {"plain": {"value": json.loads(plain)}}

    def operation(verb: str, summary: str, description: str, answer: Json) -> Json:
        found: Json = {
            "tags": [name],
            "operationId": f"{verb}_{name}",
            "summary": summary,
            "description": f"{description} The body is that of infer with one row, in any form.",
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
        "content": {JSON: {"schema": {"$ref": f"#/components/schemas/{name}.Generation"}}},
    }
    events: Json = {
        "description": (
            "Events `data: {...}`, each with the tokens that are new, as the schema"
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
