"""A server connects many callers in one turn where nobody is there but callers of their origin."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest

from batchpool.frontend.http import acceptor
from tests.unit.frontend.frontend_double import Site, calling, edge, request, serving
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine

_CALLERS = 60


async def most_connected_in_a_turn(site: Site) -> int:
    """The most connections of many callers at once that get a protocol in one turn of the loop."""
    connections: Any = site.server.server_state.connections
    callers = [socket.create_connection(site.address) for _ in range(_CALLERS)]
    before = first = len(connections)
    most = 0
    while len(connections) < first + _CALLERS:
        await asyncio.sleep(0)
        most = max(most, len(connections) - before)
        before = len(connections)
    for caller in callers:
        caller.close()
    await until(lambda: len(connections) == first, "they have left")
    return most


@on_loop
async def test_many_connect_in_one_turn_until_another_origin_has_had_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acceptor, "_ALONE_TURN_CONNECTIONS", 8)
    async with edge(Affine) as it, serving(it) as site, calling(site) as caller:
        await caller.send(request("/v2", method="GET"))
        assert (await caller.answer()).status == 200
        scheduler: Any = site.server._protocol.scheduler
        await until(lambda: scheduler.alone is not None, "the caller is alone")
        assert await most_connected_in_a_turn(site) == 8
        now_s = time.monotonic()
        scheduler._clock = lambda: now_s  # the other origin's work stays the latest
        begun_s = scheduler.begin(asyncio.get_running_loop())
        scheduler.charge(scheduler.share_of("127.0.0.2"), begun_s)
        assert await most_connected_in_a_turn(site) == acceptor._TURN_CONNECTIONS
