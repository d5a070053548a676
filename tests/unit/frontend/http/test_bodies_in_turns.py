"""Connections take turns with their bodies, over both roads."""

from __future__ import annotations

import asyncio

import pytest

from batchpool.frontend.http import read_turns
from batchpool.frontend.http.connection import Connection
from batchpool.frontend.http.read_flow import ReadFlow
from batchpool.frontend.http.read_turns import ReadTurns
from tests.unit.frontend.frontend_double import Site, calling, edge, request, serving
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Wide

MIB = 1 << 20
PATH = "/v2/models/wide/infer"
RAW = {"Inference-Header-Content-Length": "0"}
both_roads = pytest.mark.parametrize("fast", [True, False], ids=["fast", "asgi"])


@pytest.fixture(autouse=True)
def _small_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_turns, "TURN_BYTES", 4096)


def connection_of(site: Site) -> Connection:
    (found,) = site.server.server_state.connections
    assert isinstance(found, Connection)
    return found


@both_roads
@on_loop
async def test_bodies_that_come_at_the_same_time_all_come_whole(
    fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = 0
    await_turn = ReadFlow.await_turn

    def counted(flow: ReadFlow) -> None:
        nonlocal paused
        paused += 1
        await_turn(flow)

    monkeypatch.setattr(ReadFlow, "await_turn", counted)

    async def upload(site: Site, number: int) -> bytes:
        row = bytes([number]) * MIB
        async with calling(site) as caller:
            sending = asyncio.create_task(caller.send(request(PATH, row, headers=RAW)))
            answer = await caller.answer()
            await sending
            assert answer.status == 200
            return answer.body[-MIB:]

    async with edge(Wide) as it, serving(it, fast=fast) as site:
        answers = await asyncio.gather(*(upload(site, number) for number in range(6)))
    assert answers == [bytes([number]) * MIB for number in range(6)]
    assert paused > 6


@both_roads
@on_loop
async def test_a_refused_body_is_read_slowly_and_its_connection_serves_on(
    fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_turns, "DROP_S", 0.0)
    async with (
        edge(Wide, server={"max_body_mib": 1}) as it,
        serving(it, fast=fast) as site,
        calling(site) as caller,
    ):
        await caller.send(request(PATH, bytes(2 * MIB), headers=RAW))
        assert (await caller.answer()).refused == (413, "too_large")
        await caller.send(request(PATH, bytes(MIB), headers=RAW))
        assert (await caller.answer()).status == 200


@both_roads
@on_loop
async def test_the_one_whose_body_is_dropped_waits_and_leaves_nothing(
    fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_turns, "DROP_S", 3600.0)
    async with edge(Wide, server={"max_body_mib": 1}) as it, serving(it, fast=fast) as site:
        async with calling(site) as caller:
            sending = asyncio.create_task(caller.send(request(PATH, bytes(64 * MIB), headers=RAW)))
            assert (await caller.answer()).refused == (413, "too_large")
            connection = connection_of(site)
            await until(lambda: connection.flow.awaits_turn, "it waits for its turn")
            assert connection.flow.read_paused
            turns: ReadTurns = connection.turns
            assert len(turns._dropping) == 1
            sending.cancel()
            connection.transport.abort()
            await until(lambda: not site.connections, "it has ended")
        assert not turns._dropping
