"""OpenAI's files and batches in the OpenAPI document."""

from __future__ import annotations

from batchpool.wire.batch_lines import ENDPOINTS
from batchpool.wire.openapi_openai import INTEGER, NULL, STRING, object_of, operation_of
from batchpool.wire.openapi_routes import JSON
from batchpool.wire.schemas import Json

_COMMON = (400, 401, 403, 408, 413, 415, 500, 501, 503)
_STATUSES = (
    "validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling",
    "cancelled",
)  # fmt: skip
_FORM, _BYTES = "multipart/form-data", "application/octet-stream"
_ID: Json = {"name": "id", "in": "path", "required": True, "schema": STRING}
_AFTER: Json = {"name": "after", "in": "query", "schema": STRING}


def batch_routes() -> Json:
    """The paths of files and batches."""
    file, batch = _file(), _batch()
    upload = operation_of("openai_upload", "Upload a file of requests", file, (*_COMMON, 507))
    upload["requestBody"] = {
        "required": True,
        "content": {
            _FORM: {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "contentMediaType": "application/jsonl"},
                        "purpose": {"enum": ["batch"]},
                    },
                }
            }
        },
    }
    create = operation_of("openai_batch_create", "Run a file", batch, (*_COMMON, 404, 507))
    create["requestBody"] = {"required": True, "content": {JSON: {"schema": _new_batch()}}}
    files = operation_of("openai_files", "The files", _page(file), _COMMON)
    files["parameters"] = [
        _limit(10_000),
        _AFTER,
        {"name": "order", "in": "query", "schema": {"enum": ["asc", "desc"]}},
        {"name": "purpose", "in": "query", "schema": STRING},
    ]
    batches = operation_of("openai_batches", "The batches, the newest first", _page(batch), _COMMON)
    batches["parameters"] = [_limit(100), _AFTER]
    one = (*_COMMON, 404)
    content = operation_of("openai_file_content", "The bytes of a file", {}, one)
    content["responses"]["200"]["content"] = {_BYTES: {}}
    gone = object_of(id=STRING, object={"enum": ["file"]}, deleted={"enum": [True]})
    delete = operation_of("openai_file_delete", "Drop a file", gone, (*one, 507))
    cancel = operation_of("openai_batch_cancel", "End a batch, with its answers", batch, one)
    return {
        "/v1/files": {"get": files, "post": upload},
        "/v1/files/{id}": {
            "get": operation_of("openai_file", "A file's facts", file, one),
            "delete": delete,
            "parameters": [_ID],
        },
        "/v1/files/{id}/content": {"get": content, "parameters": [_ID]},
        "/v1/batches": {"get": batches, "post": create},
        "/v1/batches/{id}": {
            "get": operation_of("openai_batch", "A batch's status", batch, one),
            "parameters": [_ID],
        },
        "/v1/batches/{id}/cancel": {"post": cancel, "parameters": [_ID]},
    }


def _limit(most: int) -> Json:
    return {
        "name": "limit",
        "in": "query",
        "schema": {"type": "integer", "minimum": 1, "maximum": most},
    }


def _file() -> Json:
    return object_of(
        id=STRING,
        object={"enum": ["file"]},
        bytes=INTEGER,
        created_at=INTEGER,
        expires_at=INTEGER,
        filename=STRING,
        purpose={"enum": ["batch", "batch_output"]},
        status=STRING,
    )


def _new_batch() -> Json:
    return {
        "type": "object",
        "required": ["input_file_id", "endpoint", "completion_window"],
        "properties": {
            "input_file_id": STRING,
            "endpoint": {"enum": list(ENDPOINTS)},
            "completion_window": {"enum": ["24h"]},
            "metadata": {
                "anyOf": [{"type": "object", "additionalProperties": STRING}, NULL],
            },
            "output_expires_after": {"anyOf": [object_of(anchor=STRING, seconds=INTEGER), NULL]},
        },
        "additionalProperties": False,
    }


def _batch() -> Json:
    id_or_none: Json = {"type": ["string", "null"]}
    return object_of(
        id=STRING,
        object={"enum": ["batch"]},
        endpoint=STRING,
        input_file_id=STRING,
        completion_window=STRING,
        status={"enum": list(_STATUSES)},
        output_file_id=id_or_none,
        error_file_id=id_or_none,
        created_at=INTEGER,
        expires_at=INTEGER,
        request_counts=object_of(total=INTEGER, completed=INTEGER, failed=INTEGER),
    )


def _page(item: Json) -> Json:
    return object_of(
        object={"enum": ["list"]},
        data={"type": "array", "items": item},
        has_more={"type": "boolean"},
    )
