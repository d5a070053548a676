"""Requests behind a body that was refused are read as if nothing had been."""

from __future__ import annotations

from tests.unit.frontend.frontend_double import calling, edge, request, serving
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Wide

MIB = 1 << 20
PATH = "/v2/models/wide/infer"
RAW = {"Inference-Header-Content-Length": "0"}


@on_loop
async def test_the_request_behind_a_refused_body_is_read_on() -> None:
    """The read that ends the body brings more than uvicorn holds, and the begin of the next one."""
    refused = request("/v2/models/none/infer", bytes(200_000))
    good = request(PATH, bytes(MIB), headers=RAW)
    async with edge(Wide) as it, serving(it, fast=True) as site, calling(site) as caller:
        await until(lambda: site.server.server_state.connections, "the connection")
        (connection,) = site.server.server_state.connections
        connection.data_received(refused[:100_000])
        await until(lambda: not connection.flow.read_paused, "the application waits for the rest")
        connection.data_received(refused[100_000:] + good[:5000])
        assert (await caller.answer()).refused == (404, "not_found")
        await caller.send(good[5000:])
        assert (await caller.answer()).status == 200
