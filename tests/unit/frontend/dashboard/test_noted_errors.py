"""Errors that rows are handed back with stand in the recorder; what runs again does not."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from batchpool.core.errors import Status
from tests.unit.frontend.calls import numbers
from tests.unit.frontend.frontend_double import edge
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Picky


def picky(*rows: float) -> dict[str, Any]:
    x = np.repeat(np.array(rows, "f8"), 2).reshape(-1, 2)
    return {"inputs": [numbers("x", x, "FP64")]}


@on_loop
async def test_what_a_model_raised_is_noted_once_for_the_guilty_row() -> None:
    async with edge(Picky) as it:
        flight_recorder = it.pool.batcher.flight_recorder
        answer = await it.http.post("/v2/models/picky/infer", json=picky(4, 9))
        assert answer.status_code == 200
        assert flight_recorder.recent_errors.last() == []
        answer = await it.http.post("/v2/models/picky/infer", json=picky(4, -1, 9))
        assert answer.status_code == 500
        (noted,) = flight_recorder.recent_errors.last()
        assert (noted.model, noted.status) == (0, Status.MODEL_ERROR)
        assert "a negative number came" in noted.text
        assert len(flight_recorder.last()) > 2, "it was run several times before"


@on_loop
async def test_rows_of_a_worker_that_is_lost_for_good_are_noted() -> None:
    async with edge(Picky) as it:
        batcher, proxy = it.pool.batcher, it.pool.batcher.workers.by_number[0]
        batcher.models[0].attempts = 1
        it.pool.hold = True
        asked = asyncio.create_task(it.http.post("/v2/models/picky/infer", json=picky(1)))
        await until(lambda: bool(proxy.batches), "it is sent")
        proxy.worker_segment.launched.set(1)  # and begun
        batcher.lose_worker(0, "was killed by SIGKILL")
        it.pool.session.ring()
        answer = await asked
        assert answer.json()["code"] == "worker_lost"
        (noted,) = batcher.flight_recorder.recent_errors.last()
        assert noted.status == Status.WORKER_LOST
        assert "SIGKILL" in noted.text
