"""The JSON responses of one front end besides infer: metadata, configuration, health."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import metadata

from batchpool.core.errors import PoolError
from batchpool.frontend.http.response import HttpResponse, error_response, json_response
from batchpool.frontend.service.endpoint_table import EndpointTable
from batchpool.frontend.service.http_endpoint import VERSION, HttpEndpoint
from batchpool.frontend.service.readiness import Readiness
from batchpool.wire import metadata as objects

Ask = Callable[..., HttpResponse]


class MetadataResponses:
    """Responses that are made once for each set of models, and health responses."""

    def __init__(self, endpoints: EndpointTable, readiness: Readiness) -> None:
        self._endpoints = endpoints
        self._readiness = readiness
        self._server = json_response(objects.server_metadata(package_version()))
        self.learn()

    def learn(self) -> None:
        """Describe the models as the endpoint table has them now."""
        endpoints = self._endpoints.by_model
        self._models = {name: _model_metadata(endpoint) for name, endpoint in endpoints.items()}
        self._configs = {name: _model_config(endpoint) for name, endpoint in endpoints.items()}

    def root(self) -> HttpResponse:
        """GET /: the server and where its API begins."""
        return json_response(
            {
                "name": "batchpool",
                "version": package_version(),
                "api": "/v2",
                "protocol": "Open Inference Protocol v2",
                "models": [f"/v2/models/{name}" for name in self._endpoints.by_model],
                "documentation": "/openapi.json",
            }
        )

    def server_metadata(self) -> HttpResponse:
        """GET /v2."""
        return self._server

    def live(self) -> HttpResponse:
        """GET /v2/health/live."""
        return json_response(objects.live())

    def ready(self) -> HttpResponse:
        """GET /v2/health/ready."""
        try:
            self._readiness.check()
        except PoolError as exc:
            return error_response(exc, objects.ready(False))
        return json_response(objects.ready(True))

    def model_metadata(self, model: str, version: str = VERSION) -> HttpResponse:
        """GET /v2/models/{model}."""
        return self._models[self._endpoints.find(model, version).name]

    def model_config(self, model: str, version: str = VERSION) -> HttpResponse:
        """GET /v2/models/{model}/config."""
        return self._configs[self._endpoints.find(model, version).name]

    def model_ready(self, model: str, version: str = VERSION) -> HttpResponse:
        """GET /v2/models/{model}/ready."""
        http_endpoint = self._endpoints.find(model, version)
        try:
            self._readiness.check_model(http_endpoint)
        except PoolError as exc:
            return error_response(exc, objects.model_ready(model, False))
        return json_response(objects.model_ready(model, True))


def _model_metadata(http_endpoint: HttpEndpoint) -> HttpResponse:
    facts = http_endpoint.endpoint.facts
    return json_response(objects.model_metadata(facts.spec, (VERSION,)))


def _model_config(http_endpoint: HttpEndpoint) -> HttpResponse:
    facts = http_endpoint.endpoint.facts
    max_wait_us = round(facts.max_wait_ms * 1000)
    return json_response(
        objects.model_config(facts.spec, facts.max_batch, max_wait_us, facts.batch_sizes)
    )


@cache
def package_version() -> str:
    """The installed version of batchpool; "unknown" for a source tree that is not installed."""
    try:
        return metadata.version("batchpool")
    except metadata.PackageNotFoundError:
        return "unknown"
