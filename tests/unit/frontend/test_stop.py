"""Stopping: what is under way is answered, nobody keeps the server from its end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from batchpool.control.channel import close_all, pair
from batchpool.core.layout.segments import heartbeats_layout
from batchpool.core.metrics.segments import counters_layout, flight_recorder_layout
from batchpool.frontend import process as frontend
from batchpool.frontend.http.connection_limits import ConnectionLimits
from batchpool.frontend.http.gate import Gate
from batchpool.process.bootstrap import EXIT_GAVE_UP
from batchpool.shm.segment import create
from batchpool.shm.stats.flight_recorder import FlightRecorder
from tests.unit.control.packets import receive_form
from tests.unit.counters import new_counters
from tests.unit.frontend.calls import affine, affine_answer
from tests.unit.frontend.frontend_double import Caller, calling, edge, request, serving
from tests.unit.frontend.http.test_waits import deaf_socket, wide_request
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine, Wide
from tests.unit.frontend.pool_double import PoolDouble

INFER = "/v2/models/affine/infer"
GOOD = json.dumps(affine(3)).encode()
FOR_EVER = 1000.0


@on_loop
async def test_idle_connections_are_closed_at_once() -> None:
    async with edge(Affine) as it, serving(it, drain_s=FOR_EVER) as site, AsyncExitStack() as all_:
        callers = [await all_.enter_async_context(calling(site)) for _ in range(10)]
        for caller in callers[:5]:
            await caller.send(request(INFER, GOOD))
            assert (await caller.answer()).status == 200
        await until(lambda: site.connections == 10, "all are accepted")
        site.server.stop()
        await site.ended
        for caller in callers:
            assert await caller.ended() == b""
        assert site.server.cut == 0


@on_loop
async def test_no_connection_comes_in_from_the_moment_of_the_stop() -> None:
    async with edge(Affine) as it, serving(it) as site:
        listening = list(site.server.servers)
        assert [one.is_serving() for one in listening] == [True]
        site.server.stop()
        assert [one.is_serving() for one in listening] == [False]


@on_loop
async def test_requests_under_way_are_answered_first() -> None:
    async with edge(Affine) as it, serving(it, drain_s=FOR_EVER) as site:
        it.pool.hold = True
        async with calling(site) as caller, calling(site) as sending:
            await caller.send(request(INFER, GOOD))
            raw = request(INFER, GOOD)
            await sending.send(raw[:-5])
            await until(lambda: site.under_way == 2, "both are under way")
            site.server.stop()
            await until(lambda: not site.server.servers[0].is_serving(), "it listens no more")
            with pytest.raises(ConnectionError):
                await asyncio.open_connection(*site.address)
            await sending.send(raw[-5:])
            it.pool.release()
            for one in (caller, sending):
                answer = await one.answer()
                assert answer.object["outputs"][0]["data"] == affine_answer(3)
                assert await one.ended() == b""
            await site.ended
        assert site.server.cut == 0


@on_loop
async def test_what_never_finishes_is_answered_when_the_time_is_up() -> None:
    async with edge(Affine) as it, serving(it, drain_s=0.2) as site, calling(site) as caller:
        it.pool.hold = True
        await caller.send(request(INFER, GOOD))
        await until(lambda: it.pool.lane_client("affine").allocator.claimed == 1, "it is under way")
        site.server.stop()
        answer = await caller.answer()
        assert answer.refused == (503, "pool_stopped")
        assert answer.headers["connection"] == "close"
        await site.ended


@pytest.mark.parametrize("stall", ["reads", "sends"])
@on_loop
async def test_slow_callers_are_cut_when_the_time_is_up(
    stall: str, caplog: pytest.LogCaptureFixture
) -> None:
    """C40: a client that never reads its answer, or never ends its body."""
    async with (
        edge(Wide, slots=9, server={"max_body_mib": 16}) as it,
        serving(it, ConnectionLimits(), drain_s=0.2) as site,
    ):
        with deaf_socket(site) as deaf, caplog.at_level(logging.WARNING):
            deaf.setblocking(False)
            raw = wide_request(8) if stall == "reads" else wide_request(8)[:-5]
            await asyncio.get_running_loop().sock_sendall(deaf, raw)
            metrics = it.pool.batcher.models[0].metrics
            if stall == "reads":
                await until(lambda: metrics.completed == 8, "the rows are done")
                await until(
                    lambda: it.pool.lane_client("wide").allocator.claimed == 0, "it is written"
                )
            site.server.stop()
            await site.ended
            assert site.server.cut == 1
            assert "1 connections were cut" in caplog.text
            assert "Traceback" not in caplog.text


@on_loop
async def test_a_second_stop_ends_it_at_once() -> None:
    async with edge(Affine) as it, serving(it, drain_s=FOR_EVER) as site, calling(site) as caller:
        it.pool.hold = True
        await caller.send(request(INFER, GOOD))
        await until(lambda: it.pool.lane_client("affine").allocator.claimed == 1, "it is under way")
        site.server.stop()
        site.server.stop()
        assert (await caller.answer()).refused == (503, "pool_stopped")
        await site.ended


# -- the process -----------------------------------------------------------------------------


def no_heartbeat() -> None:
    """The stamps of these front ends are nobody's affair."""


@on_loop
async def test_sigterm_ends_the_front_end_with_status_0() -> None:
    async with PoolDouble(Affine) as pool:
        listener = socket.create_server(("127.0.0.1", 0))
        address = listener.getsockname()
        ended = asyncio.create_task(
            frontend.serve(
                pool.session,
                Gate(pool.session.server),
                None,
                [listener],
                no_heartbeat,
                new_counters(),
                FlightRecorder(),
                0,
            )
        )
        loop = asyncio.get_running_loop()
        message, _ = await loop.run_in_executor(None, receive_form, pool.session.theirs)
        assert message == {"op": "serving"}
        caller = Caller(*await asyncio.open_connection(*address))
        pool.hold = True
        await caller.send(request(INFER, GOOD))
        await until(lambda: pool.lane_client("affine").allocator.claimed == 1, "it is under way")
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0)
        signal.raise_signal(signal.SIGTERM)  # the supervisor's, after one to the whole group
        pool.release()
        answer = await caller.answer()
        assert answer.object["outputs"][0]["data"] == affine_answer(3)
        assert await ended == 0
        caller.writer.close()


@on_loop
async def test_a_later_second_sigterm_ends_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontend, "_REPEATED_SIGNAL_S", 0.01)
    async with PoolDouble(Affine, server={"drain_s": FOR_EVER}) as pool:
        listener = socket.create_server(("127.0.0.1", 0))
        address = listener.getsockname()
        ended = asyncio.create_task(
            frontend.serve(
                pool.session,
                Gate(pool.session.server),
                None,
                [listener],
                no_heartbeat,
                new_counters(),
                FlightRecorder(),
                0,
            )
        )
        caller = Caller(*await asyncio.open_connection(*address))
        pool.hold = True
        await caller.send(request(INFER, GOOD))
        await until(lambda: pool.lane_client("affine").allocator.claimed == 1, "it is under way")
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: loop.time() > begun_s + 0.05, "some time passes")
        signal.raise_signal(signal.SIGTERM)
        assert (await caller.answer()).refused == (503, "pool_stopped")
        assert await ended == EXIT_GAVE_UP
        caller.writer.close()


def run_frontend(*flags: str, fds: tuple[int, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "batchpool.frontend", *flags],
        cwd=Path(__file__).parents[3],
        pass_fds=fds,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_front_end_without_a_supervisor_says_so() -> None:
    ours, theirs = pair()
    ours.close()
    layouts = (heartbeats_layout(2), counters_layout(1), flight_recorder_layout())
    shared = [create(layout, sealed=False) for layout in layouts]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        fds = (theirs.fileno(), listener.fileno(), *shared)
        names = ("control", "listen", "heartbeats", "counters", "flight-recorder")
        flags = [f"--{name}-fd{'s' * (name == 'listen')}" for name in names]
        named = [w for flag, fd in zip(flags, fds, strict=True) for w in (flag, str(fd))]
        run = run_frontend(
            *named, "--heartbeats", "2", "--heartbeat", "1", "--parent", str(os.getpid()), fds=fds
        )
    theirs.close()
    close_all(shared)
    assert run.returncode == 1
    assert "cannot join the pool" in run.stderr
    assert "Traceback" not in run.stderr
