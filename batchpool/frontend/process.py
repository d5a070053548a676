"""The front-end process: a client of the pool that listens on HTTP.

The supervisor starts it with a control channel, listening sockets and the heartbeats:

    python -m batchpool.frontend --control-fd N --listen-fds M,... --heartbeats-fd P --counters-fd Q
        --flight-recorder-fd R --heartbeats COUNT --heartbeat OWN --parent PID
        [--tasks 1] [--name NAME] [--log-level LEVEL] [--log-format FORMAT]

Its control messages are in `batchpool/control/edges.py` (`FromFrontend`, `ToFrontend`); it asks for
its lanes as every client does.

A timer of its event loop stamps its heartbeat, and so does its background thread.

Exit status:   0  after SIGTERM; every request under way was answered
               5  after SIGTERM; some requests were given up when the time to drain was over
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
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import uvloop

from batchpool.client.loop import ClientLoop
from batchpool.client.session import Session
from batchpool.control.channel import close_all
from batchpool.control.edges import ToFrontend
from batchpool.control.messages import FrontendServing
from batchpool.core.errors import ConfigError, NotFound, PoolError
from batchpool.credentials.tls import load_certificate, server_context
from batchpool.frontend.asgi.app import build_app
from batchpool.frontend.dashboard.broadcaster import Broadcaster
from batchpool.frontend.dashboard.sampler import Sampler
from batchpool.frontend.fast.protocol import fast_protocol
from batchpool.frontend.http.background import BackgroundThread
from batchpool.frontend.http.connection_limits import ConnectionLimits
from batchpool.frontend.http.gate import Gate
from batchpool.frontend.http.request_context import current_log_fields
from batchpool.frontend.parser.process import ParserProcess
from batchpool.frontend.server import Server
from batchpool.frontend.service.gpu_metrics import Gpus
from batchpool.frontend.service.metadata import package_version
from batchpool.frontend.service.pool_view import PoolView
from batchpool.log import setup
from batchpool.process import bootstrap
from batchpool.process.heap import return_free_memory, return_large_blocks
from batchpool.shm.doorbell import Doorbell
from batchpool.shm.heartbeat import Heartbeats, beat_interval_ns, frontend_word
from batchpool.shm.stats.counters import Counters
from batchpool.shm.stats.flight_recorder import FlightRecorder
from batchpool.wire.forms import FORMS

_LOG = logging.getLogger("batchpool.frontend")
_EXIT_OK, _EXIT_LOST = 0, 1
_REPEATED_SIGNAL_S = 1.0  # SIGTERM that comes again within this time counts as the same
_SWEEP_S = 2.0
_RETURN_MEMORY_S = 5.0
_SCRAPES_SHARE = 0.1  # of the interpreter; a scrape takes 3 ms, and they come every few seconds
_WRITE_OUT_S = 0.05  # for writing the responses of failed requests before the exit


def main(argv: Sequence[str]) -> int:
    """Run a front-end process; returns its exit status."""
    parser = argparse.ArgumentParser(prog="batchpool.frontend", add_help=False)
    parser.add_argument("--listen-fds", required=True)
    for flag in (
        "--heartbeats-fd",
        "--counters-fd",
        "--flight-recorder-fd",
        "--heartbeats",
        "--heartbeat",
    ):
        parser.add_argument(flag, type=int, required=True)
    parser.add_argument("--tasks", type=int, default=0)  # 1 if the last heartbeat is theirs
    own, rest = parser.parse_known_args(argv)
    args = bootstrap.arguments("frontend", rest)
    bootstrap.start(args.parent)
    return_large_blocks()
    bootstrap.log_to_stderr("frontend", args)
    bootstrap.print_by_lines()
    # The front end logs its start and stop itself.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    setup.add_fields(current_log_fields)
    listeners = [socket.socket(fileno=int(fd)) for fd in own.listen_fds.split(",")]
    for listener in listeners:
        listener.set_inheritable(False)
    heartbeats = Heartbeats(own.heartbeats_fd, own.heartbeats)
    counters = Counters(own.counters_fd, own.heartbeats - frontend_word(0) - own.tasks)
    flight_recorder = FlightRecorder(own.flight_recorder_fd, writable=False)
    close_all((own.heartbeats_fd, own.counters_fd, own.flight_recorder_fd))
    session = Session(bootstrap.control_channel(args.control_fd), "")
    try:
        session.attach(bell=Doorbell)
        gate, tls = Gate(session.server), _tls(session.server)
        for name in list(session.models):
            with suppress(NotFound):  # a reload removed it just now
                session.open_lane_client(name)
    except (PoolError, ConfigError) as exc:
        _LOG.error("cannot join the pool: %s", exc)
        return _EXIT_LOST
    FORMS.load()  # the first body of a form would hold up all other requests
    raise_gc_thresholds()

    def beat() -> None:
        heartbeats.beat(own.heartbeat, time.monotonic_ns())

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(
            serve(
                session,
                gate,
                tls,
                listeners,
                beat,
                counters,
                flight_recorder,
                own.heartbeat - frontend_word(0),
            )
        )


def raise_gc_thresholds() -> None:
    """Raise the thresholds of the garbage collector.

    Requests leave hardly any cycles, but reading JSON of a megabyte makes hundreds of thousands of
    lists at once, and each collection would walk many of them again. The first two generations are
    small, as callers wait for a collection: beside hostile ones one of the second took up to 9 ms,
    and 30 where it had 200,000 objects.
    """
    bootstrap.settle()
    gc.set_threshold(2_000, 5, 400)


async def serve(
    session: Session,
    gate: Gate,
    tls: ssl.SSLContext | None,
    listeners: Sequence[socket.socket],
    beat: Callable[[], None],
    counters: Counters,
    flight_recorder: FlightRecorder,
    number: int,
) -> int:
    """Serve an attached session with open lanes until SIGTERM; returns the exit status.

    gate, tls: of the session's settings. beat: stamps the process's heartbeat. number: the front
    end's, from 0.
    """
    loop = asyncio.get_running_loop()
    heartbeat = _HeartbeatTimer(beat, loop)
    heartbeat.set_stall_timeout(session.server["stall_timeout_s"])

    def lost() -> None:
        broadcaster.end("the pool has stopped")
        _exit_without_supervisor()

    def learn(message: ToFrontend, fds: list[int]) -> None:
        session.learn(message)
        session.take_lanes(message.lanes, fds)
        view.learn()
        server.learn()
        if tls is not None:
            _renew(tls, session.server)
        server.drain_s = session.server["drain_s"]
        protocol.limits = ConnectionLimits.of(session.server)
        heartbeat.set_stall_timeout(session.server["stall_timeout_s"])
        setup.set_level(session.server["log_level"])
        loop.call_later(_SWEEP_S, sweep)

    def sweep() -> None:
        """Collect garbage until every lane that has moved is unmapped.

        A lane is unmapped when nothing refers to it. A connection that has ended is in reference
        cycles with its last request, which refers to its lane's endpoint.
        """
        if session.lane_set.moving:
            loop.call_later(_SWEEP_S, sweep)
        gc.collect()

    client_loop = ClientLoop(session, lost, learn)
    gpus, background = Gpus(), BackgroundThread(beat)
    scrapes, parser = BackgroundThread(beat, "scrapes", _SCRAPES_SHARE), ParserProcess()
    sampler = Sampler(session, counters, flight_recorder, gpus, scrapes, package_version())
    broadcaster = Broadcaster(sampler)
    view = PoolView(
        client_loop,
        counters,
        gpus,
        background,
        scrapes,
        parser,
        number=number,
        gate=gate,
        on_stop=lambda: broadcaster.end("the server is shutting down"),
    )
    protocol = fast_protocol(view)
    server = Server(
        build_app(view, broadcaster if session.server["page"] else None),
        drain_s=session.server["drain_s"],
        give_up=client_loop.close,
        protocol=protocol,
        tls=tls,
    )

    def return_memory() -> None:
        return_free_memory()
        loop.call_later(_RETURN_MEMORY_S, return_memory)

    return_memory()
    loop.add_signal_handler(signal.SIGTERM, _Stop(view, server, loop.time))
    session.channel.send(FrontendServing())
    try:
        await server.run_on(*listeners)
    finally:
        client_loop.close()
        if view.tasks is not None:
            view.tasks.close()
        background.close()
        scrapes.close()
        parser.close()
    return bootstrap.EXIT_GAVE_UP if client_loop.given_up else _EXIT_OK


def _tls(server: Mapping[str, Any]) -> ssl.SSLContext | None:
    """The TLS context of the TCP sockets; None without TLS. Raises ConfigError."""
    if not server["ssl_certfile"]:
        return None
    return server_context(server["ssl_certfile"], server["ssl_keyfile"], warn=False)


def _renew(tls: ssl.SSLContext, server: Mapping[str, Any]) -> None:
    """Take the certificate as it lies in its file now, for the connections to come."""
    try:
        _tls(server)  # half of a faulty one must not be taken
        load_certificate(tls, server["ssl_certfile"], server["ssl_keyfile"])
    except ConfigError as exc:
        _LOG.error("the certificate stays as it was: %s", exc)


class _HeartbeatTimer:
    """Stamps the heartbeat from the event loop, so that it stands still when the loop does."""

    def __init__(self, beat: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        self._beat = beat
        self._loop = loop
        self._next: asyncio.TimerHandle | None = None

    def set_stall_timeout(self, stall_timeout_s: float) -> None:
        """Stamp now, and from now on as often as this timeout demands."""
        self._interval_s = beat_interval_ns(stall_timeout_s) / 1e9
        if self._next is not None:
            self._next.cancel()
        self._stamp()

    def _stamp(self) -> None:
        self._beat()
        self._next = self._loop.call_later(self._interval_s, self._stamp)


class _Stop:
    """The reaction to SIGTERM: the first drains the server, a later one ends it at once.

    A signal that comes again within a second counts as the same: systemd and shells signal the
    whole process group, and the supervisor passes on what it gets.
    """

    def __init__(self, view: PoolView, server: Server, clock_s: Callable[[], float]) -> None:
        self._view = view
        self._server = server
        self._clock_s = clock_s
        self._begun_s = 0.0

    def __call__(self) -> None:
        now_s = self._clock_s()
        if not self._view.stopping:
            self._view.stop()
            self._begun_s = now_s
            self._server.stop()
        elif now_s - self._begun_s > _REPEATED_SIGNAL_S:
            self._server.stop()


def _exit_without_supervisor() -> None:
    """Exit soon: all requests under way have failed, and their responses are being written."""
    _LOG.error("the supervisor has gone")
    asyncio.get_running_loop().call_later(_WRITE_OUT_S, os._exit, _EXIT_LOST)
