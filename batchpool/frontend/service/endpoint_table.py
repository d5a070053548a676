"""The endpoints of one front end, by model and by request path."""

from __future__ import annotations

from batchpool.client.loop import ClientLoop
from batchpool.client.pool_facts import ModelFacts
from batchpool.core.errors import NotFound, NotReady
from batchpool.frontend.http.request_counters import RequestCounters
from batchpool.frontend.parser.process import ParserProcess
from batchpool.frontend.service.body_limits import max_body_bytes
from batchpool.frontend.service.endpoint import Endpoint
from batchpool.frontend.service.http_endpoint import VERSION, HttpEndpoint
from batchpool.shm.stats.counters import NO_MODEL, Counters


class EndpointTable:
    """One endpoint for each model that the session has a lane client to.

    by_model: by the model's name. by_path: by the path of an infer request as it is sent. no_model:
    counts requests for models that do not exist. parser: parses long texts. number: of the front
    end, for its counters.
    """

    def __init__(
        self, client_loop: ClientLoop, counters: Counters, parser: ParserProcess, number: int
    ) -> None:
        self.by_model: dict[str, HttpEndpoint] = {}
        self.by_path: dict[bytes, HttpEndpoint] = {}
        self._client_loop = client_loop
        self._counters = counters
        self._parser = parser
        self._number = number
        self.no_model = self._metrics_at(NO_MODEL)
        self.learn()

    def learn(self) -> None:
        """Follow the session's models, lane clients and limits as they are now.

        A model whose lane client is another one gets a new endpoint; requests at the old endpoint
        are finished there.
        """
        session = self._client_loop.session
        most_bytes = max_body_bytes(session.server)
        before, self.by_model = self.by_model, {}
        for name, facts in session.models.items():
            lane_client = session.lane_set.get(name)
            known = before.get(name)
            if lane_client is not None and (known is None or known.lane_client is not lane_client):
                endpoint = Endpoint(facts, lane_client, self._client_loop)
                self.by_model[name] = self._http_endpoint(endpoint, facts, most_bytes)
            elif known is not None:
                known.learn(facts, most_bytes)
                self.by_model[name] = known
        for name, known in before.items():
            known.metrics = self.metrics(name)  # its counter words may soon be another model's
        self.by_path.clear()
        for name, http_endpoint in self.by_model.items():
            for path in (f"/v2/models/{name}", f"/v2/models/{name}/versions/{VERSION}"):
                self.by_path[f"{path}/infer".encode()] = http_endpoint

    def _http_endpoint(
        self, endpoint: Endpoint, facts: ModelFacts, most_bytes: int
    ) -> HttpEndpoint:
        metrics = self._metrics_at(facts.index)
        return HttpEndpoint(endpoint, most_bytes, metrics, self.successor, self._parser)

    def _metrics_at(self, model_index: int) -> RequestCounters:
        place = self._counters.place("frontend", self._number, model_index)
        return RequestCounters(self._counters.cells, place)

    def find(self, model: str, version: str = VERSION) -> HttpEndpoint:
        """The endpoint of a model; NotFound names the models or the version that exist."""
        http_endpoint = self.by_model.get(model)
        if http_endpoint is None:
            known = ", ".join(map(repr, self.by_model)) or "none"
            raise NotFound(f"there is no model {model!r}; the server has {known}")
        if version != VERSION:
            raise NotFound(f"model {model!r} has no version {version!r}; it has {VERSION!r}")
        return http_endpoint

    def successor(self, moved: HttpEndpoint) -> HttpEndpoint:
        """The endpoint of a model whose lane client has moved. NotFound if the model is gone."""
        if self.by_model.get(moved.name) is moved:
            # The supervisor sends the new lanes before the gates of the old ones say MOVED.
            self._client_loop.listen()
        after = self.find(moved.name)
        if after is moved:
            raise NotReady(f"model {moved.name!r} is being replaced; send it again")
        return after

    def metrics(self, model: str) -> RequestCounters:
        """The counters of requests for this model name."""
        http_endpoint = self.by_model.get(model)
        return self.no_model if http_endpoint is None else http_endpoint.metrics
