"""Tasks in the OpenAPI document: their routes, their schema, and the headers that ask for one."""

from __future__ import annotations

from batchpool.wire.openapi_routes import JSON, response_ref
from batchpool.wire.preferences import IDEMPOTENCY_KEY, MOST_WAIT_S, PREFER
from batchpool.wire.schemas import Json

TAG = {
    "name": "tasks",
    "description": "Requests that are answered later. A server keeps them where its configuration"
    " says tasks = true.",
}
HEADERS = (
    (
        PREFER,
        "`respond-async`: keep the request as a task and answer 202 at once; `respond-async,"
        " wait=N`: answer as usual if it is done within N seconds. A server without tasks ignores"
        " it.",
    ),
    (
        IDEMPOTENCY_KEY,
        "With Prefer: respond-async. The same key from the same caller is the same task, however"
        " often it is sent; 1 to 255 visible ASCII characters.",
    ),
)
_TIME: Json = {"type": "number", "description": "Seconds of Unix time."}
_STRING: Json = {"type": "string"}
_STATES = ("queued", "running", "done", "failed", "cancelled")
_ERRORS = (401, 404, 410, 501, 503)
_WAIT: Json = {
    "name": "wait_s",
    "in": "query",
    "description": "Seconds that the answer may wait for the end of the task.",
    "schema": {"type": "number", "minimum": 0, "maximum": MOST_WAIT_S},
}
_ID: Json = {"name": "task", "in": "path", "required": True, "schema": _STRING}


def task_schema() -> Json:
    """A task."""
    return {
        "type": "object",
        "required": ["id", "state"],
        "properties": {
            "id": _STRING,
            "state": {
                "enum": [*_STATES, "expired", "not_found"],
                "description": "Of a query also that there is no such task (any more).",
            },
            "model_name": _STRING,
            "attempts": {"type": "integer", "minimum": 0},
            "submitted_at": _TIME,
            "started_at": _TIME,
            "finished_at": _TIME,
            "error": {"type": "string", "description": "Of one that has failed."},
            "code": {"type": "string", "description": "Of that error, for programs."},
            "result_url": {"type": "string", "description": "Of one that is done or has failed."},
        },
    }


def accepted() -> Json:
    """The response 202 of an infer request."""
    return {
        "description": "The request is kept as a task, whatever dies or restarts from now on.",
        "headers": {"Location": {"description": "The path of the task.", "schema": _STRING}},
        "content": {JSON: {"schema": {"$ref": "#/components/schemas/Task"}}},
    }


def task_routes() -> Json:
    """The paths of tasks."""
    states: Json = {
        "type": "object",
        "required": ["tasks"],
        "properties": {"tasks": {"type": "array", "items": {"$ref": "#/components/schemas/Task"}}},
    }
    ids: Json = {
        "type": "object",
        "required": ["ids"],
        "additionalProperties": False,
        "properties": {"ids": {"type": "array", "items": _STRING, "minItems": 1, "maxItems": 1000}},
    }
    query = _operation("query_tasks", "The states of many tasks", (400, 401, 408, 413, 501, 503))
    query["responses"]["200"]["content"] = {JSON: {"schema": states}}
    query["requestBody"] = {"required": True, "content": {JSON: {"schema": ids}}}
    state = _operation("task", "The state of a task", (400, *_ERRORS), _WAIT)
    state["responses"]["200"]["content"] = {JSON: {"schema": {"$ref": "#/components/schemas/Task"}}}
    cancel = _operation("drop_task", "Take a task back, or drop its result", _ERRORS)
    cancel["responses"]["204"] = {"description": "Done."}
    del cancel["responses"]["200"]
    result = _operation(
        "task_result",
        "The answer that the request would have had, whatever its status and form",
        (400, 409, *_ERRORS),
        _WAIT,
    )
    result["responses"]["202"] = accepted()
    result["responses"]["default"] = {"description": "Any answer of the infer request."}
    return {
        "/v2/tasks/query": {"post": query},
        "/v2/tasks/{task}": {"get": state, "delete": cancel, "parameters": [_ID]},
        "/v2/tasks/{task}/result": {"get": result, "parameters": [_ID]},
    }


def _operation(name: str, summary: str, statuses: tuple[int, ...], *parameters: Json) -> Json:
    return {
        "tags": [TAG["name"]],
        "operationId": name,
        "summary": summary,
        "parameters": list(parameters),
        "responses": {
            "200": {"description": "OK"},
            **{f"{status}": response_ref(status) for status in statuses},
        },
    }
