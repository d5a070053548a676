"""OpenAPI: the HTTP interface of a running pool as an OpenAPI 3.1 document.

The document has a path for each served model with the tensors that it declares, and the errors of
core/errors.py. https://spec.openapis.org/oas/v3.1.0
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from batchpool.core.errors import Cancelled, PoolError, Retryable, all_errors
from batchpool.core.priority import LOWEST
from batchpool.core.tensors.spec import ModelSpec
from batchpool.wire.curl_samples import curl, plain_sample, sample_request
from batchpool.wire.forms import FORMS
from batchpool.wire.openapi_batches import batch_routes
from batchpool.wire.openapi_generation import generation_routes, generation_schemas
from batchpool.wire.openapi_openai import TAG, error_schema, openai_routes
from batchpool.wire.openapi_routes import JSON, model_routes, response_ref, server_routes
from batchpool.wire.openapi_tasks import HEADERS, accepted, task_routes, task_schema
from batchpool.wire.openapi_tasks import TAG as TASK_TAG
from batchpool.wire.openapi_texts import text_routes
from batchpool.wire.plain_schemas import plain_schemas
from batchpool.wire.request import PRIORITY, TIMEOUT_MS
from batchpool.wire.schemas import Json, model_schemas

_NEVER_OVER_HTTP = (Cancelled,)
_GENERATE_ERRORS = (400, 401, 403, 404, 405, 408, 413, 415, 500, 503, 504)
_INFER_ERRORS = (400, 401, 403, 404, 405, 408, 413, 415, 422, 500, 503, 504, 507)


def document(
    specs: Sequence[ModelSpec], version: str, server_url: str, most_rows: Mapping[str, int]
) -> Json:
    """The OpenAPI document of these models.

    version: of the package.  server_url: the address of the server.  most_rows: of one batch, by
    model; larger requests are split.
    """
    paths: Json = {}
    for spec in specs:
        paths |= _model_paths(spec, server_url, most_rows.get(spec.name, 0))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "batchpool",
            "version": version,
            "summary": "Batched model inference over the Open Inference Protocol v2.",
            "description": (
                "Requests of many callers run together in batches. A full pool answers at once"
                " with 503 and Retry-After. Every answer but 2xx is `{error, code}`,"
                " under /v1 OpenAI's `{error: {message, type, param, code}}`."
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": server_url}],
        "tags": [
            *({"name": spec.name, "description": f"The model {spec.name}."} for spec in specs),
            TAG,
            TASK_TAG,
            {"name": "server", "description": "The server as a whole."},
        ],
        "paths": {
            **paths,
            **openai_routes(specs, server_url, _parameter_refs()),
            **text_routes(specs, server_url, _parameter_refs()),
            **batch_routes(),
            **task_routes(),
            **server_routes(),
        },
        "components": {
            "schemas": {
                **{
                    f"{spec.name}.{kind}": schema
                    for spec in specs
                    for kind, schema in _schemas(spec).items()
                },
                "Task": task_schema(),
                "Error": _error_schema(),
                "OpenAIError": error_schema(),
            },
            "responses": _responses(),
            "parameters": _header_parameters(),
        },
    }


def _schemas(spec: ModelSpec) -> Json:
    return model_schemas(spec) | plain_schemas(spec) | generation_schemas(spec)


# -- paths ------------------------------------------------------------------------------


def _model_paths(spec: ModelSpec, server_url: str, most_rows: int) -> Json:
    path, name = f"/v2/models/{spec.name}", spec.name
    request, zeros = sample_request(spec)
    content: Json = {"schema": _either(f"{name}.Request", f"{name}.PlainRequest")}
    examples = {"protocol": {"value": request}} if not zeros else {}
    if plain := plain_sample(spec):
        examples["plain"] = {"value": json.loads(plain)}
    if examples:
        content["examples"] = examples
    split = f" More than {most_rows} rows are split and joined again." if most_rows else ""
    forms = ", ".join(form.name for form in FORMS.entries if form.request_note)
    infer: Json = {
        "tags": [name],
        "operationId": f"infer_{name}",
        "summary": f"Run {name} on n rows",
        "description": (f"The forms of a body: {forms}.{split}{_ragged_note(spec)}"),
        "parameters": [*_parameter_refs(), *_task_headers()],
        "requestBody": {
            "required": True,
            "content": {
                JSON: content,
                **_described((form.media_type, form.request_note) for form in FORMS.entries),
            },
        },
        "responses": {
            "200": {
                "description": "The outputs, a row for each row of the request.",
                "content": {
                    JSON: {"schema": _either(f"{name}.Response", f"{name}.PlainResponse")},
                    **_described((form.media_type, form.answer_note) for form in FORMS.entries),
                },
            },
            "202": accepted(),
            **{f"{status}": response_ref(status) for status in _INFER_ERRORS},
        },
        "x-codeSamples": [{"lang": "Shell", "label": "curl", "source": curl(spec, server_url)}],
    }
    generation = generation_routes(spec, server_url, _parameter_refs(), _GENERATE_ERRORS)
    return {f"{path}/infer": {"post": infer}, **generation, **model_routes(name)}


def _ragged_note(spec: ModelSpec) -> str:
    names = [t.sizes_name for t in (*spec.inputs, *spec.outputs) if t.dynamic]
    if not names:
        return ""
    return (
        " Rows of different sizes are padded to the largest of them; the tensor NAME.sizes"
        f" (INT64 [n, dynamic dimensions]) tells the size of each: {', '.join(names)}. It stands"
        " in the answer where the rows of an output differ, and wherever it is asked for."
    )


def _described(notes: Iterable[tuple[str, str]]) -> Json:
    """(media type, note) pairs as content objects; the notes of one media type are joined."""
    texts: dict[str, list[str]] = {}
    for media_type, note in notes:
        if note:
            texts.setdefault(media_type, []).append(note)
    return {
        media_type: {"schema": {"description": "; ".join(found)}}
        for media_type, found in texts.items()
    }


def _either(*names: str) -> Json:
    return {"anyOf": [_schema_ref(name) for name in names]}


def _schema_ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


# -- errors -----------------------------------------------------------------------------


def _http_errors() -> list[type[PoolError]]:
    return [kind for kind in all_errors() if kind not in _NEVER_OVER_HTTP]


def _codes(kinds: list[type[PoolError]]) -> list[str]:
    """The codes of these errors, each once."""
    return list(dict.fromkeys(kind.code for kind in kinds))


def _error_schema() -> Json:
    return {
        "type": "object",
        "description": "Every answer but 2xx outside of /v1.",
        "required": ["error", "code"],
        "properties": {
            "error": {"type": "string", "description": "What is wrong, for people."},
            "code": {
                "enum": _codes(_http_errors()),
                "description": "For programs.",
            },
            "retry_after_ms": {
                "type": "integer",
                "minimum": 1,
                "description": "With 503: when to come again.",
            },
            "details": {
                "type": "object",
                "description": "With 400: what the model says of an input that it refused.",
            },
            "row": {
                "type": "integer",
                "minimum": 0,
                "description": "Which of several rows ended with this.",
            },
        },
    }


def _responses() -> Json:
    responses: Json = {}
    for status in sorted({kind.status for kind in _http_errors()}):
        kinds = [kind for kind in _http_errors() if kind.status == status]
        lines = [f"`{kind.code}`: {' '.join((kind.__doc__ or '').split())}" for kind in kinds]
        response: Json = {
            "description": "\n\n".join(lines),
            "content": {
                JSON: {
                    "schema": {
                        "allOf": [_schema_ref("Error")],
                        "properties": {"code": {"enum": _codes(kinds)}},
                    }
                }
            },
        }
        if any(issubclass(kind, Retryable) for kind in kinds):
            response["headers"] = {
                "Retry-After": {
                    "description": "Seconds after which to come again.",
                    "schema": {"type": "integer", "minimum": 1},
                }
            }
        responses[f"Error{status}"] = response
    return responses


def _parameter_refs() -> list[Json]:
    return [{"$ref": f"#/components/parameters/{key}"} for key in _header_parameters()]


def _task_headers() -> list[Json]:
    return [
        {"name": name.decode().title(), "in": "header", "description": text,
         "schema": {"type": "string"}}
        for name, text in HEADERS
    ]  # fmt: skip


def _header_parameters() -> Json:
    headers = [
        (TIMEOUT_MS, "A deadline in milliseconds from the request's arrival; 0: none.", 0, None),
        (PRIORITY, "1 goes first, 255 last; 0 means 128.", 0, LOWEST),
        (
            b"x-client-id",
            "Names one of the callers of an address, who share its turns.",
            None,
            None,
        ),
    ]
    found: Json = {}
    for raw, text, least, most in headers:
        name = raw.decode().title()
        schema: Json = {"type": "string"} if least is None else {"type": "integer", "minimum": 0}
        if most is not None:
            schema["maximum"] = most
        found[name] = {"name": name, "in": "header", "description": text, "schema": schema}
    return found
