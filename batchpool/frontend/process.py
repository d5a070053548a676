"""The front-end process: a client of the pool that listens on HTTP.

Started by the supervisor with a control channel, a listening socket and the heartbeats:

    python -m batchpool.frontend --control-fd N --listen-fd M --heartbeats-fd P --counters-fd Q
        --flight-recorder-fd R --posts COUNT --post OWN --parent PID
        [--name NAME] [--log-level LEVEL] [--log-format FORMAT]

and tells it:  serving {}   lanes are open and the socket is served
hears of it:   facts {..., lanes}  server and models as a reload has them from now on, as
                            supervisor/resources/catalog.py tells them; fds: lanes, open, to models that got others

A timer of its event loop stamps the heartbeats, and so does its thread for long work.

Exit status:   0  SIGTERM came; every request under way was answered
               5  the same, but the time of some was up before
               1  it could not join the pool, or the supervisor has gone
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import uvloop

from batchpool.client.loop import ClientLoop
from batchpool.client.session import Session
from batchpool.control.channel import close_all
from batchpool.core.errors import NotFound, PoolError
from batchpool.frontend.asgi.app import build_app
from batchpool.frontend.fast.protocol import fast_protocol
from batchpool.frontend.http.connection import ConnectionLimits
from batchpool.frontend.http.request_context import surroundings
from batchpool.frontend.server import Server
from batchpool.frontend.service.pool_view import PoolView
from batchpool.log import setup
from batchpool.process import bootstrap
from batchpool.shm.heartbeat import Heartbeats, beat_interval_ns, frontend_post
from batchpool.shm.stats.counters import Counters
from batchpool.shm.stats.flight_recorder import FlightRecorder

_LOG = logging.getLogger("batchpool.frontend")
_EXIT_OK, _EXIT_LOST = 0, 1
_SAME_WISH_S = 1.0
_SWEEP_S = 2.0
_LAST_WORDS_S = 0.05  # for writing out what became of the requests under way


def main(argv: Sequence[str]) -> int:
    """The role `frontend`."""
    parser = argparse.ArgumentParser(prog="batchpool.frontend", add_help=False)
    for flag in (
        "--listen-fd",
        "--heartbeats-fd",
        "--counters-fd",
        "--flight-recorder-fd",
        "--posts",
        "--post",
    ):
        parser.add_argument(flag, type=int, required=True)
    own, rest = parser.parse_known_args(argv)
    args = bootstrap.arguments("frontend", rest)
    bootstrap.start(args.parent)
    bootstrap.log_to_stderr("frontend", args)
    # uvicorn's start and stop are ours to tell.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    setup.add_fields(surroundings)
    listener = socket.socket(fileno=own.listen_fd)
    listener.set_inheritable(False)
    heartbeats = Heartbeats(own.heartbeats_fd, own.posts)
    counters = Counters(own.counters_fd, own.posts - frontend_post(0))
    flight_recorder = FlightRecorder(own.flight_recorder_fd, writable=False)
    close_all((own.heartbeats_fd, own.counters_fd, own.flight_recorder_fd))
    session = Session(bootstrap.control_channel(args.control_fd), "the supervisor")
    try:
        session.attach()
        for name in list(session.models):
            with suppress(NotFound):  # a reload removed it just now
                session.open_lane_client(name)
    except PoolError as exc:
        _LOG.error("cannot join the pool: %s", exc.message)
        return _EXIT_LOST
    _collect_garbage_seldom()

    def beat() -> None:
        heartbeats.beat(own.post, time.monotonic_ns())

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(
            serve(session, listener, beat, counters, flight_recorder, own.post - frontend_post(0))
        )


def _collect_garbage_seldom() -> None:
    """Requests leave hardly any cycles, but reading JSON makes millions of lists at once, and
    each collection would walk them all: 50 MB held the loop up for 1.1 s instead of 0.4."""
    bootstrap.settle()
    gc.set_threshold(50_000, 20, 20)


async def serve(
    session: Session,
    listener: socket.socket,
    beat: Callable[[], None],
    counters: Counters,
    flight_recorder: FlightRecorder,
    number: int,
) -> int:
    """Serve an attached session with open ports until SIGTERM; returns the exit status.

    beat: stamps the heartbeats. number: which front end this is.
    """
    loop = asyncio.get_running_loop()
    heart = _Heart(beat, loop)
    heart.set_limit(session.server["stall_timeout_s"])

    def lost() -> None:
        front.broadcast.end("the pool has stopped")
        _supervisor_gone()

    def learn(message: dict[str, Any], fds: list[int]) -> None:
        session.learn(message)
        session.take_lanes(message["lanes"], fds)
        front.learn()
        server.drain_s = session.server["drain_s"]
        protocol.limits = ConnectionLimits.of(session.server)
        heart.set_limit(session.server["stall_timeout_s"])
        logging.getLogger().setLevel(session.server["log_level"].upper())
        loop.call_later(_SWEEP_S, sweep)

    def sweep() -> None:
        """Lanes that have moved are unmapped when nothing refers to them. A connection that has
        ended is in cycles with its last request, which has its lane's door."""
        if session.lane_set.moving:
            loop.call_later(_SWEEP_S, sweep)
        gc.collect()

    client_loop = ClientLoop(session, lost, learn)
    front = PoolView(client_loop, counters, flight_recorder, number)
    front.aside.beat = beat
    protocol = fast_protocol(front)
    server = Server(
        build_app(front),
        drain_s=session.server["drain_s"],
        give_up=client_loop.close,
        protocol=protocol,
    )

    loop.add_signal_handler(signal.SIGTERM, _Stop(front, server, loop.time))
    session.channel.send({"op": "serving"})
    try:
        await server.run_on(listener)
    finally:
        client_loop.close()
        front.aside.close()
    return bootstrap.EXIT_GAVE_UP if client_loop.given_up else _EXIT_OK


class _Heart:
    """Beats in the event loop, so that it stands still when the loop does."""

    def __init__(self, beat: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        self._beat = beat
        self._loop = loop
        self._next: asyncio.TimerHandle | None = None

    def set_limit(self, stall_timeout_s: float) -> None:
        """Beat now, and from now on as often as that demands."""
        self._interval_s = beat_interval_ns(stall_timeout_s) / 1e9
        if self._next is not None:
            self._next.cancel()
        self._turn()

    def _turn(self) -> None:
        self._beat()
        self._next = self._loop.call_later(self._interval_s, self._turn)


class _Stop:
    """SIGTERM: take leave. A second one ends it at once, unless it is the same wish: systemd
    and shells signal the whole group, and the supervisor passes on what it gets."""

    def __init__(self, front: PoolView, server: Server, clock_s: Callable[[], float]) -> None:
        self._front = front
        self._server = server
        self._clock_s = clock_s
        self._begun_s = 0.0

    def __call__(self) -> None:
        now_s = self._clock_s()
        if not self._front.stopping:
            self._front.leave()
            self._begun_s = now_s
            self._server.stop()
        elif now_s - self._begun_s > _SAME_WISH_S:
            self._server.stop()


def _supervisor_gone() -> None:
    """Everything under way has been failed; once that is written out there is nothing to save."""
    _LOG.error("the supervisor has gone")
    asyncio.get_running_loop().call_later(_LAST_WORDS_S, os._exit, _EXIT_LOST)
