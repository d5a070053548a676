"""Front: what one front end serves and what it answers besides infer. No HTTP library here.

live    200 while the process runs
ready   200 when the pool was started, is not draining, its batcher is not stuck, and every
        model's lane is open and served by a worker; else 503 with the reason. Overload does
        not make it unready
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

from batchpool.client.lane_client import LaneClient
from batchpool.client.loop import ClientLoop
from batchpool.client.session import ModelFacts
from batchpool.core.errors import Draining, NotFound, NotReady, PoolError
from batchpool.core.layout.states import PoolState
from batchpool.frontend.asgi.infer import BackgroundThread
from batchpool.frontend.dashboard.broadcaster import Broadcaster
from batchpool.frontend.dashboard.sampler import Sampler
from batchpool.frontend.http.access_log import AccessLog
from batchpool.frontend.http.body_budget import BodyBudget
from batchpool.frontend.http.metrics import EndpointMetrics
from batchpool.frontend.http.response import HttpResponse, json_answer, refusal
from batchpool.frontend.service.endpoint import VERSION, Endpoint
from batchpool.frontend.service.gpu_metrics import Gpus
from batchpool.frontend.service.prometheus import Scrape
from batchpool.shm.stats.counters import NO_MODEL, Counters
from batchpool.shm.stats.flight_recorder import FlightRecorder
from batchpool.wire import metadata as objects

_MIB = 2**20
_BODIES = 8  # of the largest size may arrive at the same time where nothing else is said


class PoolView:
    """The doors of one attached session. stopping: set when this front end takes its leave.

    counters: the pool's, in which this front end's rows are those of `number`. recorder: its flight
    recorder. no_model: counts requests for models that there are not.
    """

    def __init__(
        self,
        client_loop: ClientLoop,
        counters: Counters,
        flight_recorder: FlightRecorder,
        number: int = 0,
    ) -> None:
        session = client_loop.session
        self.max_body_bytes: int = session.server["max_body_mib"] * _MIB
        self.bodies = BodyBudget(_most_bodies_bytes(session.server))
        self.stopping = False
        self.aside = BackgroundThread()
        self.access = AccessLog(session.server)
        self.counters = counters
        self.flight_recorder = flight_recorder
        gpus, version = Gpus(), package_version()
        self.scrape = Scrape(counters, gpus, version)
        self.has_page: bool = session.server["page"]
        self.broadcast = Broadcaster(
            Sampler(session, counters, flight_recorder, gpus, self.aside, version)
        )
        self.no_model = self._meter(number, NO_MODEL)
        self.endpoints: dict[str, Endpoint] = {}
        self.paths: dict[bytes, Endpoint] = {}  # by an infer request's path as it is sent
        self._number = number
        self.session = session
        self._client_loop = client_loop
        self._server = json_answer(objects.server_metadata(package_version()))
        self._set_endpoints()
        self._describe()

    def leave(self) -> None:
        """Take leave: not ready any more, and nobody is kept here by a stream."""
        self.stopping = True
        self.broadcast.end("the server is shutting down")

    def learn(self) -> None:
        """The session has learnt other facts: go by them from now on."""
        session = self._client_loop.session
        self.max_body_bytes = session.server["max_body_mib"] * _MIB
        self.bodies.most_bytes = _most_bodies_bytes(session.server)
        self.access.learn(session.server)
        self._set_endpoints()
        for name, endpoint in self.endpoints.items():
            endpoint.learn(session.models[name], self.max_body_bytes)
        self._describe()

    def _set_endpoints(self) -> None:
        """A door to each model's lane client. Where that is another now, so is the door; what is at
        the one before is finished there."""
        before, self.endpoints = self.endpoints, {}
        for name, facts in self._client_loop.session.models.items():
            lane_client = self._client_loop.session.lane_set.get(name)
            endpoint = before.get(name)
            if lane_client is not None and (
                endpoint is None or endpoint.lane_client is not lane_client
            ):
                self.endpoints[name] = self._new_endpoint(facts, lane_client)
            elif endpoint is not None:
                self.endpoints[name] = endpoint
        for name, endpoint in before.items():
            endpoint.meter = self.meter(name)  # its words may soon be another model's
        self.paths.clear()
        for name, endpoint in self.endpoints.items():
            for path in (f"/v2/models/{name}", f"/v2/models/{name}/versions/{VERSION}"):
                self.paths[f"{path}/infer".encode()] = endpoint

    def _new_endpoint(self, facts: ModelFacts, lane_client: LaneClient) -> Endpoint:
        meter = self._meter(self._number, facts.index)
        return Endpoint(
            facts, lane_client, self._client_loop, self.max_body_bytes, meter, self.endpoint_after
        )

    def endpoint_after(self, endpoint: Endpoint) -> Endpoint:
        """The door of the same model, whose lane client has moved. NotFound if it is no more."""
        name = endpoint.facts.spec.name
        if self.endpoints.get(name) is endpoint:
            self._client_loop.listen()  # other lanes are sent before the gates of these say so
        after = self.endpoint(name)
        if after is endpoint:
            raise NotReady(f"model {name!r} is being replaced; send it again")
        return after

    def _describe(self) -> None:
        self._models = {
            name: json_answer(objects.model_metadata(endpoint.facts.spec, (VERSION,)))
            for name, endpoint in self.endpoints.items()
        }
        self._configs = {
            name: json_answer(
                objects.model_config(
                    endpoint.facts.spec,
                    endpoint.facts.max_batch,
                    round(endpoint.facts.max_wait_ms * 1000),
                    endpoint.facts.batch_sizes,
                )
            )
            for name, endpoint in self.endpoints.items()
        }

    def _meter(self, number: int, entry: int) -> EndpointMetrics:
        return EndpointMetrics(self.counters.cells, self.counters.place("frontend", number, entry))

    def meter(self, model: str) -> EndpointMetrics:
        """Where requests for this name are counted."""
        endpoint = self.endpoints.get(model)
        return self.no_model if endpoint is None else endpoint.meter

    def endpoint(self, model: str, version: str = VERSION) -> Endpoint:
        """The door of a model; NotFound names the models or the version there are."""
        endpoint = self.endpoints.get(model)
        if endpoint is None:
            known = ", ".join(map(repr, self.endpoints)) or "none"
            raise NotFound(f"there is no model {model!r}; the server has {known}")
        if version != VERSION:
            raise NotFound(f"model {model!r} has no version {version!r}; it has {VERSION!r}")
        return endpoint

    # -- answers ------------------------------------------------------------------------

    def root(self) -> HttpResponse:
        """GET /: where to go from here."""
        return json_answer(
            {
                "name": "batchpool",
                "version": package_version(),
                "api": "/v2",
                "protocol": "Open Inference Protocol v2",
                "models": [f"/v2/models/{name}" for name in self.endpoints],
                "documentation": "README.md of batchpool",
            }
        )

    def server_metadata(self) -> HttpResponse:
        return self._server

    def live(self) -> HttpResponse:
        return json_answer(objects.live())

    def ready(self) -> HttpResponse:
        try:
            self._check_ready()
        except PoolError as exc:
            return refusal(exc, objects.ready(False))
        return json_answer(objects.ready(True))

    def model_metadata(self, model: str, version: str = VERSION) -> HttpResponse:
        return self._models[self.endpoint(model, version).facts.spec.name]

    def model_config(self, model: str, version: str = VERSION) -> HttpResponse:
        return self._configs[self.endpoint(model, version).facts.spec.name]

    def model_ready(self, model: str, version: str = VERSION) -> HttpResponse:
        endpoint = self.endpoint(model, version)
        try:
            self._check_leaving()
            self._check_batcher()
            endpoint.check_open()
        except PoolError as exc:
            return refusal(exc, objects.model_ready(model, False))
        return json_answer(objects.model_ready(model, True))

    # -- readiness ----------------------------------------------------------------------

    def _check_leaving(self) -> None:
        if self._client_loop.over:
            raise self._client_loop.session.stopped()
        state = self._client_loop.session.state_page.state.get()
        if self.stopping or state in (PoolState.DRAINING, PoolState.STOPPED):
            raise Draining("the server takes no new requests")

    def _check_ready(self) -> None:
        self._check_leaving()
        if self._client_loop.session.state_page.state.get() != PoolState.READY:
            raise NotReady("the server is starting")
        if not self.endpoints:
            raise NotReady("the server has no models")
        self._check_batcher()
        for endpoint in self.endpoints.values():
            endpoint.check_open()

    def _check_batcher(self) -> None:
        if self._client_loop.session.state_page.stalled.get():
            raise NotReady("the server's batcher makes no progress")


def _most_bodies_bytes(server: Mapping[str, Any]) -> int:
    most_mib: int = server["max_bodies_mib"] or _BODIES * server["max_body_mib"]
    return most_mib * _MIB


Ask = Callable[..., HttpResponse]


def package_version() -> str:
    """The installed version of batchpool; "unknown" for a source tree that is not installed."""
    try:
        return metadata.version("batchpool")
    except metadata.PackageNotFoundError:
        return "unknown"
