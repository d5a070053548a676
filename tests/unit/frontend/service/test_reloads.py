"""Reloads that HTTP callers ask for: shared, awaited to their end, and refused in words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from batchpool.core.errors import InternalError, PoolStopped
from batchpool.frontend.service.reloads import Reloads
from tests.unit.control.packets import send_form
from tests.unit.frontend.asgi.test_routes import refused
from tests.unit.frontend.dashboard.supervisor_double import Supervisor
from tests.unit.frontend.frontend_double import Edge, edge
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine

RELOAD = {"op": "reload", "wait": True, "cancel": False}
DONE = {"op": "reload", "done": True, "text": "done"}


@asynccontextmanager
async def reloading(folder: Path) -> AsyncIterator[tuple[Edge, Supervisor, Reloads]]:
    server = {"model_control_mode": "explicit", "socket": str(folder / "s")}
    async with edge(Affine, slots=8, server=server) as it:
        supervisor = Supervisor(folder / "s")
        try:
            yield it, supervisor, Reloads(it.client_loop)
        finally:
            supervisor.close()


@on_loop
async def test_a_load_is_answered_when_the_pool_has_reloaded(tmp_path: Path) -> None:
    async with reloading(tmp_path) as (it, supervisor, _):
        path = "/v2/repository/models/affine/load"
        asked = asyncio.create_task(it.http.post(path))
        await until(lambda: supervisor.questions, "the supervisor is asked")
        assert not asked.done()
        send_form(supervisor.connections[0], DONE)
        answer = await asked
        assert (answer.status_code, answer.content) == (200, b"")
        assert supervisor.questions == [RELOAD]


@on_loop
async def test_a_load_of_a_model_that_the_file_does_not_have(tmp_path: Path) -> None:
    async with reloading(tmp_path) as (it, supervisor, _):
        supervisor.answers = [DONE]
        answer = await it.http.post("/v2/repository/models/other/load")
        assert refused(answer) == (404, "not_found")
        assert "the configuration file has no model 'other'" in answer.json()["error"]


@on_loop
async def test_a_reload_that_failed_says_why(tmp_path: Path) -> None:
    async with reloading(tmp_path) as (it, supervisor, _):
        supervisor.answers = [{**DONE, "done": False, "text": "nothing was changed: no file"}]
        answer = await it.http.post("/v2/repository/models/affine/load")
        assert refused(answer) == (400, "invalid_request")
        assert "nothing was changed: no file" in answer.json()["error"]


@on_loop
async def test_a_load_with_parameters_asks_for_nothing(tmp_path: Path) -> None:
    async with reloading(tmp_path) as (it, supervisor, _):
        body = {"parameters": {"file:1/model.py": "aW1wb3J0IG9z"}}
        answer = await it.http.post("/v2/repository/models/affine/load", json=body)
        assert refused(answer) == (501, "not_supported")
        assert supervisor.connections == []


@on_loop
async def test_callers_of_one_moment_share_the_next_reload(tmp_path: Path) -> None:
    async with reloading(tmp_path) as (_, supervisor, reloads):
        first = asyncio.create_task(reloads.reload())
        await until(lambda: len(supervisor.questions) == 1, "the first one is under way")
        others = [asyncio.create_task(reloads.reload()) for _ in range(50)]
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(supervisor.connections) == 1, "they wait for its end"
        send_form(supervisor.connections[0], {**DONE, "text": "one"})
        assert (await first).text == "one"
        await until(lambda: len(supervisor.questions) == 2, "the next one is asked for")
        assert not any(other.done() for other in others), "theirs began after their call"
        send_form(supervisor.connections[1], {**DONE, "text": "two"})
        assert {reply.text for reply in await asyncio.gather(*others)} == {"two"}
        assert len(supervisor.connections) == 2


@on_loop
async def test_a_caller_that_goes_ends_no_reload(tmp_path: Path) -> None:
    async with reloading(tmp_path) as (_, supervisor, reloads):
        gone, stays = (asyncio.create_task(reloads.reload()) for _ in range(2))
        await until(lambda: supervisor.questions, "the supervisor is asked")
        gone.cancel()
        send_form(supervisor.connections[0], DONE)
        assert (await stays).done


REPLIES: list[tuple[dict[str, Any] | None, type[Exception]]] = [
    ({"op": "error", "code": "invalid_request", "error": "you may not"}, InternalError),
    ({"op": "status", "status": {}}, InternalError),
    ({"op": "nonsense"}, PoolStopped),
    (None, PoolStopped),
]


@pytest.mark.parametrize(("reply", "error"), REPLIES)
@on_loop
async def test_a_supervisor_that_does_not_reload(
    tmp_path: Path, reply: dict[str, Any] | None, error: type[Exception]
) -> None:
    async with reloading(tmp_path) as (_, supervisor, reloads):
        if reply is None:
            supervisor.close()
        else:
            supervisor.answers = [reply]
        with pytest.raises(error):
            await reloads.reload()
        if reply is not None:
            supervisor.answers = [DONE]
            assert (await reloads.reload()).done, "the next one is asked for all the same"
