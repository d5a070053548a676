"""The model repository over HTTP: the pool's models, and the loading of them.

The repository is the configuration file. A load is a reload of the pool, which reads the file
again; it is open to HTTP callers only where [server] model_control_mode = "explicit" says so.
"""

from __future__ import annotations

import logging

from batchpool.client.session import Session
from batchpool.core.errors import Forbidden, InvalidRequest, NotFound, NotSupported, PoolError
from batchpool.frontend.http.response import HttpResponse, empty_response, json_response
from batchpool.frontend.service.endpoint_table import EndpointTable
from batchpool.frontend.service.http_endpoint import VERSION, HttpEndpoint
from batchpool.frontend.service.readiness import Readiness
from batchpool.frontend.service.reloads import Reloads
from batchpool.wire import metadata as objects
from batchpool.wire.repository import check_load, index_entry, reads_ready_only
from batchpool.wire.request import Body, brief

_LOG = logging.getLogger("batchpool.frontend")
REPOSITORY = "batchpool"  # the name of the only one


class ModelRepository:
    """The responses of the repository's routes, and the list of the models."""

    def __init__(
        self,
        session: Session,
        endpoints: EndpointTable,
        readiness: Readiness,
        reloads: Reloads,
    ) -> None:
        self._session = session
        self._endpoints = endpoints
        self._readiness = readiness
        self._reloads = reloads

    def models(self) -> HttpResponse:
        """GET /v2/models: each model with its state and its tensors."""
        models = [
            index_entry(name, VERSION, self._why_not_ready(http_endpoint))
            | objects.model_metadata(http_endpoint.endpoint.facts.spec, (VERSION,))
            for name, http_endpoint in self._endpoints.by_model.items()
        ]
        return json_response({"models": models})

    async def index(self, body: Body, repository: str = REPOSITORY) -> HttpResponse:
        """POST /v2/repository/index, or the same of the repository with a name."""
        _check_repository(repository)
        ready_only = reads_ready_only(body)
        entries = [
            index_entry(name, VERSION, self._why_not_ready(http_endpoint))
            for name, http_endpoint in self._endpoints.by_model.items()
        ]
        return json_response([e for e in entries if not (ready_only and e["reason"])])

    def check_control(self) -> None:
        """Raise Forbidden unless HTTP callers may load and unload models."""
        if self._session.server["model_control_mode"] != "explicit":
            raise Forbidden(
                "models are not loaded or unloaded over HTTP here; [server] model_control_mode ="
                ' "explicit" in the configuration allows it, and `batchpool reload` does it'
            )

    async def load(self, body: Body, model: str, repository: str = REPOSITORY) -> HttpResponse:
        """POST /v2/repository/models/{model}/load: answered when the pool has reloaded.

        Raises NotFound for a model that is not in the configuration file after it, InvalidRequest
        where the reload failed and the pool serves on as it was.
        """
        _check_repository(repository)
        check_load(body)
        _LOG.info("an HTTP caller loads model %s: the pool reloads", brief(model))
        outcome = await self._reloads.reload()
        if not outcome.done:
            raise InvalidRequest(f"model {model!r} was not loaded: {outcome.text}")
        if model not in self._endpoints.by_model:
            known = ", ".join(map(repr, self._endpoints.by_model)) or "none"
            raise NotFound(f"the configuration file has no model {model!r}; it has {known}")
        return empty_response()

    async def unload(self, body: Body, model: str, repository: str = REPOSITORY) -> HttpResponse:
        """POST /v2/repository/models/{model}/unload: NotSupported tells the way."""
        _check_repository(repository)
        self._endpoints.find(model)
        raise NotSupported(
            f"model {model!r} is served because the configuration file has it: remove its"
            " [[model]] there, and run `batchpool reload` or load another model"
        )

    def _why_not_ready(self, http_endpoint: HttpEndpoint) -> str:
        try:
            self._readiness.check_model(http_endpoint)
        except PoolError as exc:
            return exc.message
        return ""


def _check_repository(name: str) -> None:
    if name != REPOSITORY:
        raise NotFound(
            f"there is no repository {name!r}; the pool has one, {REPOSITORY!r}, whose name can be"
            " left out: /v2/repository/index"
        )
