"""Readiness of one front end.

live     200 while the process runs
ready    200 when the pool has started and is not draining, its batcher is not stuck, and every
         model takes requests: its lane is open, and a worker serves it or is expected back in
         time; else 503 with the reason. Overload does not make a server unready
"""

from __future__ import annotations

from batchpool.client.loop import ClientLoop
from batchpool.core.errors import Draining, NotReady
from batchpool.core.layout.states import PoolState
from batchpool.frontend.service.endpoint_table import EndpointTable
from batchpool.frontend.service.http_endpoint import HttpEndpoint


class Readiness:
    """Checks that the server, or one model, can take requests now.

    stopping: set when this front end stops; from then on nothing is ready.
    """

    def __init__(self, client_loop: ClientLoop, endpoints: EndpointTable) -> None:
        self.stopping = False
        self._client_loop = client_loop
        self._endpoints = endpoints

    def check(self) -> None:
        """Raise why the server is not ready, if so."""
        self._check_stopping()
        if self._client_loop.session.state_page.state.get() != PoolState.READY:
            raise NotReady("the server is starting")
        if not self._endpoints.by_model:
            raise NotReady("the server has no models")
        self._check_batcher()
        for http_endpoint in self._endpoints.by_model.values():
            http_endpoint.check_open()

    def check_model(self, http_endpoint: HttpEndpoint) -> None:
        """Raise why a model is not ready, if so."""
        self._check_stopping()
        self._check_batcher()
        http_endpoint.check_open()

    def _check_stopping(self) -> None:
        session = self._client_loop.session
        if self._client_loop.over:
            raise session.stopped()
        if self.stopping or session.state_page.state.get() in (
            PoolState.DRAINING,
            PoolState.STOPPED,
        ):
            raise Draining("the server takes no new requests")

    def _check_batcher(self) -> None:
        if self._client_loop.session.state_page.stalled.get():
            raise NotReady("the server's batcher makes no progress")
