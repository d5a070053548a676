"""The routes of the protocol and its extensions besides infer.

An order that matters: /v2/models/stats is the statistics of all models, not a model of that name.
"""

from __future__ import annotations

from starlette.routing import Route

from batchpool.frontend.asgi.queries import AskSlowly, Command, Query, SlowQuery
from batchpool.frontend.service.metadata import Ask
from batchpool.frontend.service.pool_view import PoolView

_SHARED_MEMORY = ("/v2/systemsharedmemory", "/v2/cudasharedmemory")
_REPOSITORY = ("/v2/repository", "/v2/repository/{repository}")
_GET, _POST = ("GET",), ("POST",)
_BOTH = (*_GET, *_POST)


def protocol_routes(view: PoolView, discard_bytes: int) -> list[Route]:
    """The routes of one front end. discard_bytes: the most that is dropped of an unread body."""
    metadata, repository, statistics = view.metadata, view.repository, view.statistics
    offered = view.not_offered
    slow: list[tuple[str, AskSlowly]] = [
        ("/v2/models/stats", statistics.of_all),
        *((path, statistics.of_model) for path in model_paths("/stats")),
    ]
    queries: list[tuple[str, Ask, tuple[str, ...]]] = [
        ("/v2/health/live", metadata.live, _GET),
        ("/v2/health/ready", metadata.ready, _GET),
        ("/v2", metadata.server_metadata, _GET),
        ("/v2/models", repository.models, _GET),
        *((path, metadata.model_ready, _GET) for path in model_paths("/ready")),
        *((path, metadata.model_config, _GET) for path in model_paths("/config")),
        *((path, metadata.model_metadata, _GET) for path in model_paths("")),
        ("/v2/trace/setting", offered.trace, _BOTH),
        *((path, offered.model_trace, _BOTH) for path in model_paths("/trace/setting")),
        ("/v2/logging", offered.logging, _BOTH),
    ]
    for path in _SHARED_MEMORY:
        queries += [
            (f"{path}/status", offered.regions, _GET),
            (f"{path}/unregister", offered.unregister, _POST),
            (f"{path}/region/{{region}}/status", offered.region, _GET),
            (f"{path}/region/{{region}}/register", offered.register, _POST),
            (f"{path}/region/{{region}}/unregister", offered.unregister, _POST),
        ]
    routes = [Route(path, SlowQuery(ask, discard_bytes), methods=_GET) for path, ask in slow]
    routes += [
        Route(path, Query(ask, discard_bytes), methods=verbs) for path, ask, verbs in queries
    ]
    for path in _REPOSITORY:
        index = Command(repository.index, view.memory, discard_bytes)
        routes.append(Route(f"{path}/index", index, methods=_POST))
        for verb, act in (("load", repository.load), ("unload", repository.unload)):
            command = Command(act, view.memory, discard_bytes, repository.check_control)
            routes.append(Route(f"{path}/models/{{model}}/{verb}", command, methods=_POST))
    return routes


def model_paths(tail: str) -> tuple[str, str]:
    """The paths of one route of a model, without and with a version."""
    return f"/v2/models/{{model}}{tail}", f"/v2/models/{{model}}/versions/{{version}}{tail}"
