"""The front end asks the supervisor, who may be slow, silent or gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from batchpool.core.errors import NotReady, PoolError, PoolStopped
from batchpool.frontend.dashboard.status_client import StatusClient
from tests.unit.frontend.dashboard.supervisor_double import Supervisor
from tests.unit.frontend.loops import on_loop, until


@asynccontextmanager
async def asking(
    folder: Path, patience_s: float = 10.0
) -> AsyncIterator[tuple[Supervisor, StatusClient]]:
    supervisor = Supervisor(folder / "s")
    inquiry = StatusClient(str(folder / "s"), patience_s)
    try:
        yield supervisor, inquiry
    finally:
        inquiry.close()
        supervisor.close()


def says(n: int) -> dict[str, Any]:
    return {"op": "status", "status": {"n": n}}


@on_loop
async def test_one_connection_asks_again_and_again(tmp_path: Path) -> None:
    async with asking(tmp_path) as (supervisor, inquiry):
        supervisor.answers = [says(1), says(2)]
        assert await inquiry.status() == {"n": 1}
        assert await inquiry.status() == {"n": 2}
        assert supervisor.questions == [{"op": "status"}] * 2
        assert len(supervisor.connections) == 1


@on_loop
async def test_a_late_answer_is_not_taken_for_the_next_ones(tmp_path: Path) -> None:
    async with asking(tmp_path, 0.02) as (supervisor, inquiry):
        with pytest.raises(NotReady, match="does not answer"):
            await inquiry.status()
        supervisor.answers = [says(2)]
        assert await inquiry.status() == {"n": 2}
        assert len(supervisor.connections) == 2


@on_loop
async def test_one_that_is_given_up_is_not_answered_later(tmp_path: Path) -> None:
    async with asking(tmp_path) as (supervisor, inquiry):
        question = asyncio.create_task(inquiry.status())
        await until(lambda: len(supervisor.questions) == 1, "it is asked")
        question.cancel()
        with pytest.raises(asyncio.CancelledError):
            await question
        supervisor.answers = [says(2)]
        assert await inquiry.status() == {"n": 2}
        assert len(supervisor.connections) == 2


@on_loop
async def test_who_is_gone_or_never_was_is_no_pool(tmp_path: Path) -> None:
    async with asking(tmp_path) as (supervisor, inquiry):
        supervisor.answers = [says(1)]
        await inquiry.status()
        supervisor.close()
        with pytest.raises(PoolStopped, match="no pool answers"):
            await inquiry.status()
    with pytest.raises(PoolStopped, match="no pool answers"):
        await StatusClient(str(tmp_path / "nothing")).status()


@on_loop
async def test_an_error_is_one(tmp_path: Path) -> None:
    async with asking(tmp_path) as (supervisor, inquiry):
        supervisor.answers = [{"op": "error", "code": "internal", "error": "not today"}]
        with pytest.raises(PoolError, match="not today"):
            await inquiry.status()
