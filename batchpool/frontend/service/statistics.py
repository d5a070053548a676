"""The responses of the statistics routes: the whole pool's figures, from whichever front end.

The counters are added up in the thread of /metrics, which takes a few milliseconds.
"""

from __future__ import annotations

from batchpool.frontend.http.background import BackgroundThread
from batchpool.frontend.http.response import HttpResponse, json_response
from batchpool.frontend.service.endpoint_table import EndpointTable
from batchpool.frontend.service.http_endpoint import VERSION
from batchpool.shm.stats.counters import Counters
from batchpool.wire.statistics import statistics


class StatisticsResponses:
    """Makes the responses in the thread `scrapes`. flow: of the caller, who waits for its turn."""

    def __init__(
        self, counters: Counters, endpoints: EndpointTable, scrapes: BackgroundThread
    ) -> None:
        self._counters = counters
        self._endpoints = endpoints
        self._scrapes = scrapes

    async def of_all(self, flow: int) -> HttpResponse:
        """GET /v2/models/stats."""
        return await self._of(flow, tuple(self._endpoints.by_model))

    async def of_model(self, flow: int, model: str, version: str = VERSION) -> HttpResponse:
        """GET /v2/models/{model}/stats."""
        return await self._of(flow, (self._endpoints.find(model, version).name,))

    async def _of(self, flow: int, names: tuple[str, ...]) -> HttpResponse:
        return await self._scrapes.run(flow, self._response, names)

    def _response(self, names: tuple[str, ...]) -> HttpResponse:
        return json_response(statistics(names, VERSION, self._counters.totals()))
