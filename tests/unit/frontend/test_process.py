"""The front end's heartbeats: stamped by its loop, so that it stands still when the loop does."""

from __future__ import annotations

import asyncio
import signal
import socket
import time

import pytest

from batchpool.frontend import process
from batchpool.frontend.http.gate import Gate
from batchpool.shm.stats.flight_recorder import FlightRecorder
from tests.unit.control.packets import receive_form
from tests.unit.counters import new_counters
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine
from tests.unit.frontend.pool_double import PoolDouble


@pytest.mark.parametrize("stall_timeout_s", [0.1, 0.0])
@on_loop
async def test_it_beats_while_it_serves(stall_timeout_s: float) -> None:
    stamps: list[int] = []

    def beat() -> None:
        stamps.append(time.monotonic_ns())

    async with PoolDouble(Affine, server={"stall_timeout_s": stall_timeout_s}) as pool:
        listener = socket.create_server(("127.0.0.1", 0))
        begun_ns = time.monotonic_ns()
        ended = asyncio.create_task(
            process.serve(
                pool.session,
                Gate(pool.session.server),
                None,
                [listener],
                beat,
                new_counters(),
                FlightRecorder(),
                0,
            )
        )
        loop = asyncio.get_running_loop()
        message, _ = await loop.run_in_executor(None, receive_form, pool.session.theirs)
        assert message == {"op": "serving"}
        assert stamps, "the first one before it serves"
        await until(lambda: len(stamps) >= 4, "more stamps")
        assert begun_ns <= stamps[0]
        assert stamps == sorted(set(stamps))
        assert stamps[-1] <= time.monotonic_ns()
        before = len(stamps)
        time.sleep(0.3)  # a loop that is held up
        assert len(stamps) == before
        await until(lambda: len(stamps) > before, "stamps again")
        signal.raise_signal(signal.SIGTERM)
        assert await ended == 0
