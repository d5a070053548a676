"""The paths and schemas of OpenAI's API in the OpenAPI document."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from batchpool.core.errors import Retryable
from batchpool.core.tensors.spec import ModelSpec
from batchpool.wire.embeddings import MOST_INPUTS, EmbeddingModel
from batchpool.wire.openapi_routes import JSON
from batchpool.wire.schemas import Json

TAG: Json = {"name": "OpenAI", "description": "OpenAI's API, for its clients."}
STRING: Json = {"type": "string"}
NULL: Json = {"type": "null"}  # as if the member were absent
INTEGER: Json = {"type": "integer", "minimum": 0}
ERRORS = (400, 401, 403, 404, 405, 408, 413, 415, 500, 503, 504)


def openai_routes(specs: Sequence[ModelSpec], server_url: str, parameters: list[Json]) -> Json:
    """The paths: of embeddings only where a model makes some. parameters: of the headers."""
    routes: Json = {
        "/v1/models": {"get": operation_of("openai_models", "The models", _list_of(_model()), ())},
    }
    for spec in specs:
        summary = f"The model {spec.name}"
        operation = operation_of(f"openai_model_{spec.name}", summary, _model(), (404,))
        routes[f"/v1/models/{spec.name}"] = {"get": operation}
    models = [model for spec in specs if (model := EmbeddingModel.of(spec)) is not None]
    if not models:
        return routes
    sample = {"model": models[0].spec.name, "input": ["Hello", "World"]}
    target = shlex.quote(f"{server_url}/v1/embeddings")
    operation = operation_of("openai_embeddings", "Embed texts", _answer(), ERRORS)
    operation |= {
        "description": "What OpenAI's clients call `embeddings.create`, unmodified.",
        "parameters": parameters,
        "requestBody": {
            "required": True,
            "content": {
                JSON: {
                    "schema": {"anyOf": [_request(model) for model in models]},
                    "examples": {"texts": {"value": sample}},
                }
            },
        },
        "x-codeSamples": [
            {
                "lang": "Shell",
                "label": "curl",
                "source": f"curl -s {target} -d {shlex.quote(json.dumps(sample))}",
            },
            {"lang": "Python", "label": "openai", "source": _python(server_url, sample)},
        ],
    }
    return {**routes, "/v1/embeddings": {"post": operation}}


def _python(server_url: str, sample: Json) -> str:
    return (
        "from openai import OpenAI\n\n"
        f'client = OpenAI(base_url="{server_url}/v1", api_key="none")\n'
        f"client.embeddings.create(model={sample['model']!r}, input={sample['input']!r})"
    )


def _refusal(status: int) -> Json:
    """The response of the errors with this status."""
    response: Json = {
        "description": f"The errors of status {status}, in OpenAI's shape.",
        "content": {JSON: {"schema": {"$ref": "#/components/schemas/OpenAIError"}}},
    }
    if status == Retryable.status:
        whole: Json = {"type": "string", "pattern": "^[1-9][0-9]*$"}
        response["headers"] = {
            "Retry-After": {"description": "Seconds after which to come again.", "schema": whole},
            "Retry-After-Ms": {"description": "The same in milliseconds.", "schema": whole},
        }
    return response


def error_schema() -> Json:
    """The schema of every answer under /v1 but 200."""
    error: Json = {
        "type": "object",
        "required": ["message", "type", "param", "code"],
        "properties": {
            "message": STRING,
            "type": {"enum": ["invalid_request_error", "server_error"]},
            "param": {
                "type": ["string", "null"],
                "description": 'The member at fault, as "model" or "input[3]".',
            },
            "code": {"type": "string", "description": "As `code` of `Error`."},
        },
    }
    return {
        "type": "object",
        "description": "Every answer under /v1 but 200.",
        "required": ["error"],
        "properties": {"error": error},
    }


def _request(model: EmbeddingModel) -> Json:
    name = {"enum": [model.spec.name]}
    texts: Json = {"type": "array", "items": STRING, "minItems": 1, "maxItems": MOST_INPUTS}
    properties: Json = {
        "model": name,
        "input": {"anyOf": [STRING, texts]},
        "encoding_format": {"enum": ["float", "base64", None]},
        "dimensions": {"enum": [model.dimensions, None]},
        "user": {"anyOf": [STRING, NULL]},
    }
    if model.spec.parameters:
        names = ", ".join(parameter.name for parameter in model.spec.parameters)
        some: Json = {"type": "object", "description": f"Of the model: {names}."}
        properties["parameters"] = {"anyOf": [some, NULL]}
    return {
        "type": "object",
        "required": ["model", "input"],
        "properties": properties,
        "additionalProperties": False,
    }


def _answer() -> Json:
    vector: Json = {
        "anyOf": [
            {"type": "array", "items": {"anyOf": [{"type": "number"}, NULL]}},
            {"type": "string", "description": "base64 of little-endian float32"},
        ]
    }
    item = object_of(object={"enum": ["embedding"]}, index=INTEGER, embedding=vector)
    item["properties"]["truncated"] = {
        "enum": [True],
        "description": "The text was cut. Not OpenAI's.",
    }
    usage = object_of(prompt_tokens=INTEGER, total_tokens=INTEGER)
    return _list_of(item, model=STRING, usage=usage)


def _model() -> Json:
    kind: Json = {"enum": ["model"]}
    return object_of(id=STRING, object=kind, created=INTEGER, owned_by=STRING)


def _list_of(item: Json, **more: Json) -> Json:
    return object_of(object={"enum": ["list"]}, data={"type": "array", "items": item}, **more)


def object_of(**properties: Json) -> Json:
    """An object that has all these members."""
    return {"type": "object", "required": list(properties), "properties": properties}


def operation_of(operation: str, summary: str, schema: Json, statuses: Sequence[int]) -> Json:
    """An operation under /v1. schema: of its answer. statuses: of its refusals."""
    return {
        "tags": [TAG["name"]],
        "operationId": operation,
        "summary": summary,
        "responses": {
            "200": {"description": "OK", "content": {JSON: {"schema": schema}}},
            **{f"{status}": _refusal(status) for status in statuses},
        },
    }
