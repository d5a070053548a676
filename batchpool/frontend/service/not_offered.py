"""The responses of those routes of the protocol's extensions that are not offered.

Whoever asks for tracing, log settings or a shared-memory region is told why there is none, and
what to use instead. There is no region, so their lists are empty and all of them are unregistered.
"""

from __future__ import annotations

from batchpool.core.errors import NotFound, NotSupported
from batchpool.frontend.http.response import HttpResponse, empty_response, json_response
from batchpool.frontend.service.endpoint_table import EndpointTable
from batchpool.frontend.service.http_endpoint import VERSION


class NotOffered:
    """The responses of these routes."""

    def __init__(self, endpoints: EndpointTable) -> None:
        self._endpoints = endpoints

    def trace(self) -> HttpResponse:
        """/v2/trace/setting."""
        raise NotSupported(
            "the trace extension is not offered; send X-Request-Id or traceparent, which stand in"
            " every log line about the request, and read the stages of requests from /metrics"
        )

    def model_trace(self, model: str, version: str = VERSION) -> HttpResponse:
        """/v2/models/{model}/trace/setting."""
        self._endpoints.find(model, version)
        return self.trace()

    def logging(self) -> HttpResponse:
        """/v2/logging."""
        raise NotSupported(
            "the logging extension is not offered; log_level, log_format and access_log of"
            " [server] in the configuration set the log, and `batchpool reload` applies them"
        )

    def regions(self) -> HttpResponse:
        """GET /v2/systemsharedmemory/status and the same of CUDA: no region."""
        return json_response([])

    def region(self, region: str) -> HttpResponse:
        """GET /v2/systemsharedmemory/region/{region}/status and the same of CUDA."""
        raise NotFound(f"there is no shared-memory region {region!r}; none can be registered here")

    def register(self, region: str) -> HttpResponse:
        """POST /v2/systemsharedmemory/region/{region}/register and the same of CUDA."""
        raise NotSupported(
            f"shared-memory region {region!r} is not registered: the pool maps no memory of HTTP"
            " callers; send binary tensors, or use bp.Client, which writes into the pool's shared"
            " memory"
        )

    def unregister(self, region: str = "") -> HttpResponse:
        """POST .../unregister, of one region or of all: none is left."""
        return empty_response()
