"""The path items of the OpenAPI document besides infer: of one model, and of the server."""

from __future__ import annotations

from batchpool.wire.schemas import Json

JSON = "application/json"
_INTEGER: Json = {"type": "integer", "minimum": 0}
_STRING: Json = {"type": "string"}
_DURATION: Json = {"type": "object", "properties": {"count": _INTEGER, "ns": _INTEGER}}
_NOT_OFFERED = "Not offered: the answer says why, and what to use instead"


def model_routes(name: str) -> Json:
    """The paths of a model besides infer."""
    path = f"/v2/models/{name}"
    return {
        path: _get(name, f"metadata_{name}", f"The tensors of {name}", 404),
        f"{path}/config": _get(name, f"config_{name}", f"How {name} is served", 404),
        f"{path}/ready": _get(name, f"ready_{name}", f"Whether {name} can be asked now", 404, 503),
        f"{path}/stats": _get(
            name, f"stats_{name}", f"What was counted of {name}", 404, schema=_statistics()
        ),
        f"/v2/repository/models/{name}/load": _post(
            name,
            f"load_{name}",
            f"Reload the pool, with {name} as the configuration file has it;"
            ' [server] model_control_mode = "explicit" allows it',
            *(400, 403, 404, 501, 503),
        ),
    }


def server_routes() -> Json:
    """The paths of the server as a whole."""
    metrics = _get("server", "metrics", "Counters and histograms for Prometheus")
    metrics["get"]["responses"]["200"]["content"] = {"text/plain": {"schema": _STRING}}
    return {
        "/v2": _get("server", "server_metadata", "Name, version and extensions"),
        "/v2/health/live": _get("server", "live", "Whether the process runs"),
        "/v2/health/ready": _get("server", "ready", "Whether every model can be asked now", 503),
        "/v2/models": _get("server", "models", "The models, their state and their tensors"),
        "/v2/models/stats": _get(
            "server", "stats", "What was counted of each model", schema=_statistics()
        ),
        "/v2/repository/index": _post(
            "server", "repository_index", "The models and their state", 400, schema=_index()
        ),
        "/v2/repository/models/{model}/unload": _named(
            "model", _unoffered("post", "unload", 403, 404, 501)
        ),
        **_unoffered_routes(),
        "/metrics": metrics,
    }


def _unoffered_routes() -> Json:
    routes: Json = {
        path: _unoffered("get", name, 501) | _unoffered("post", f"set_{name}", 501)
        for path, name in (("/v2/trace/setting", "trace_setting"), ("/v2/logging", "logging"))
    }
    for kind in ("system", "cuda"):
        path = f"/v2/{kind}sharedmemory"
        routes |= {
            f"{path}/status": _get(
                "server", f"{kind}_regions", "The registered regions: none", schema=_list_of({})
            ),
            f"{path}/region/{{region}}/register": _named(
                "region", _unoffered("post", f"register_{kind}_region", 501)
            ),
            f"{path}/unregister": _post(
                "server", f"unregister_{kind}_regions", "Unregister all regions: there is none"
            ),
        }
    return routes


def _statistics() -> Json:
    times = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
    of_model: Json = {
        "name": _STRING,
        "version": _STRING,
        "last_inference": {**_INTEGER, "description": "ms of Unix time; 0: never"},
        "inference_count": {**_INTEGER, "description": "rows"},
        "execution_count": {**_INTEGER, "description": "batches"},
        "inference_stats": {
            "type": "object",
            "properties": dict.fromkeys((*times, "cache_hit", "cache_miss"), _DURATION),
        },
    }
    return _object(model_stats=_list_of(_object(**of_model)))


def _index() -> Json:
    state: Json = {"enum": ["READY", "UNAVAILABLE"]}
    return _list_of(_object(name=_STRING, version=_STRING, state=state, reason=_STRING))


def _object(**properties: Json) -> Json:
    return {"type": "object", "required": list(properties), "properties": properties}


def _list_of(items: Json) -> Json:
    return {"type": "array", "items": items}


def _get(
    tag: str, operation: str, summary: str, *statuses: int, schema: Json | None = None
) -> Json:
    return {"get": _operation(tag, operation, summary, statuses, schema)}


def _post(
    tag: str, operation: str, summary: str, *statuses: int, schema: Json | None = None
) -> Json:
    """A path item for POST. schema: None where the good answer has no body."""
    item = _operation(tag, operation, summary, statuses, schema)
    if schema is None:
        del item["responses"]["200"]["content"]
    return {"post": item}


def _unoffered(verb: str, operation: str, *statuses: int) -> Json:
    """A path item that is never answered 200."""
    item = _operation("server", operation, _NOT_OFFERED, statuses, None)
    del item["responses"]["200"]
    return {verb: item}


def _operation(
    tag: str, operation: str, summary: str, statuses: tuple[int, ...], schema: Json | None
) -> Json:
    return {
        "tags": [tag],
        "operationId": operation,
        "summary": summary,
        "responses": {
            "200": {
                "description": "OK",
                "content": {JSON: {"schema": schema or {"type": "object"}}},
            },
            **{f"{status}": response_ref(status) for status in statuses},
        },
    }


def _named(parameter: str, item: Json) -> Json:
    """A path item whose path has this parameter."""
    place: Json = {"name": parameter, "in": "path", "required": True, "schema": _STRING}
    return {**item, "parameters": [place]}


def response_ref(status: int) -> Json:
    """The reference to the response of the errors with this status."""
    return {"$ref": f"#/components/responses/Error{status}"}
