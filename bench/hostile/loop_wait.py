"""The part of a front end's loop that an honest request waits for, beside hostile HTTP callers.

    python -m bench.hostile.loop_wait [--requests 400] [--save FILE.json]

A front end without a pool in one process: real sockets, connections, endpoint and lane; rows are
done as soon as they were handed over, between turns or within one. Before every turn of the loop
each hostile caller, from an address of its own, has sent as much as its sockets take, so that each
turn finds all that it may find. What is told, in CPU time of the loop's thread, which other
programs of the machine hardly change, is how long a turn takes, how long until the row of a request
on a connection that is open was handed over, and until its answer has come; and until an answer on
a new connection.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import uvloop

from batchpool.client.loop import ClientLoop
from batchpool.core.metrics.segments import counters_layout
from batchpool.frontend.asgi.app import build_app
from batchpool.frontend.fast.protocol import fast_protocol
from batchpool.frontend.http.acceptor import Accepted
from batchpool.frontend.http.background import BackgroundThread
from batchpool.frontend.http.connection import Connection
from batchpool.frontend.http.loop_scheduler import LoopScheduler
from batchpool.frontend.parser.process import ParserProcess
from batchpool.frontend.process import raise_gc_thresholds
from batchpool.frontend.server import Server
from batchpool.frontend.service.gpu_metrics import Gpus
from batchpool.frontend.service.pool_view import PoolView
from batchpool.shm.segment import create
from batchpool.shm.stats.counters import Counters
from bench.front_cost import UnattachedSession, run_turn
from bench.hostile.http_connection import message
from bench.support.machine import percentile, report
from bench.support.models import WIDTH

_PATH = "/v2/models/affine/infer"
_BODY = np.arange(WIDTH, dtype=np.float32).tobytes()
_RAW = {"Content_Type": "application/octet-stream", "Inference_Header_Content_Length": "0"}
_REQUEST = message(_PATH, _BODY, **_RAW)
_MIB = 1 << 20
_BUFFER_BYTES = 1 << 18
_QUIET_TURNS = 5  # between two requests, at most
HONEST = "127.0.0.1"
STEPS = CONNECTED, READ, PARSED, ANSWERED = "its protocol", "its read", "its head", "its answer"


class Caller:
    """A hostile caller: `size` connections from one address that send the same without end.

    once: sent first. reads: takes what comes back. stays: else it closes after each turn.
    """

    def __init__(
        self,
        number: int,
        sent: bytes,
        *,
        size: int = 1,
        once: bytes = b"",
        reads: bool = True,
        stays: bool = True,
    ) -> None:
        self._address = f"127.77.0.{number + 1}"
        self._sent, self._once = memoryview(sent), once
        self._reads, self._stays = reads, stays
        self._open: list[tuple[socket.socket, memoryview] | None] = [None] * size

    def act(self, port: int) -> None:
        """Send all that goes, on every connection; open those that have ended."""
        for at, found in enumerate(self._open):
            sock, left = found or self._connected(port)
            try:
                if self._reads:
                    with suppress(BlockingIOError):
                        while sock.recv(_BUFFER_BYTES):
                            pass
                with suppress(BlockingIOError):
                    for _ in range(16):
                        left = left[sock.send(left) :] or self._sent
            except OSError:
                sock.close()
                self._open[at] = None
                continue
            self._open[at] = (sock, left)
            if not self._stays:
                sock.close()
                self._open[at] = None

    def close(self) -> None:
        for found in self._open:
            if found is not None:
                found[0].close()

    def _connected(self, port: int) -> tuple[socket.socket, memoryview]:
        sock = connect(port, self._address)
        return sock, memoryview(self._once + bytes(self._sent))


def connect(port: int, address: str) -> socket.socket:
    """A connection from this address, which never waits: while the kernel drops what it cannot
    keep for the front end, the connection is not there yet."""
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.bind((address, 0))
    with suppress(BlockingIOError):
        sock.connect(("127.0.0.1", port))
    return sock


def callers() -> list[Caller]:
    """One of each kind."""
    asgi = message(_PATH + "?a", _BODY, **_RAW)
    large = message(_PATH, Content_Length=f"{32 * _MIB}")
    chunked = message(_PATH).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    alive = message("/v2/health/live", method="GET")
    lines = b"\r\n\r\n" * 15_000
    kinds: list[dict[str, Any]] = [
        {"sent": _REQUEST * 50},
        {"sent": _REQUEST * 50, "reads": False},
        {"sent": asgi * 50},
        {"sent": (_REQUEST + asgi + message("/nowhere", b"dropped") + message(_PATH, b"{")) * 20},
        {"sent": alive * 200},
        {"sent": alive, "size": 20},
        {"sent": asgi, "size": 20},
        {"sent": message("/v2", method="GET") * 100},
        {"sent": message("/v1/files", bytes(100_000)), "size": 10},
        {"sent": bytes(_MIB), "once": large, "size": 6},
        {"sent": bytes(_MIB), "once": large, "size": 4},
        {"sent": b"1\r\n \r\n", "once": chunked, "size": 10},
        {"sent": b"%x\r\n%b\r\n" % (len(lines), lines), "once": chunked},
        {"sent": b"a" * 65536, "once": b"GET /v2 HTTP/1.1\r\nHost: pool\r\nX: "},
        {"sent": b"X: a\r\n" * 10_000, "once": b"GET /v2 HTTP/1.1\r\nHost: pool\r\n"},
        {"sent": bytes(3000)},
        {"sent": b"GET /v2", "size": 30, "stays": False},
        {"sent": alive, "size": 4, "stays": False},
    ]
    return [Caller(number, **kind) for number, kind in enumerate(kinds)]


class Honest:
    """One caller, who asks for one row after another, and the CPU time of the loop meanwhile.

    steps_ms: of requests on new connections, from the call of `connect` to each step.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._sock = connect(port, HONEST)
        self._rests = 0
        self._is_new = self._waits = False
        self._unsent = b""
        self._spent_s = 0.0
        self._has_come_s = 0.0  # the CPU time until its answer, if that was seen within a turn
        self._turn_s = 0.0  # the loop's CPU time when this turn began
        self.answered_ms: list[float] = []
        self.steps_ms: dict[str, list[float]] = {step: [] for step in STEPS}

    def act(self, dice: random.Random) -> None:
        """Before a turn: send, or take the answer."""
        if self._waits:
            with suppress(BlockingIOError):
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
                answer = self._sock.recv(_BUFFER_BYTES)
                assert answer.startswith(b"HTTP/1.1 200"), answer[:300]
                took_ms = (self._has_come_s or self._spent_s) * 1e3
                if self._is_new:
                    self.steps_ms[ANSWERED].append(took_ms)
                else:
                    self.answered_ms.append(took_ms)
                self._waits, self._rests = False, dice.randrange(_QUIET_TURNS)
        elif self._rests:
            self._rests -= 1
        else:
            self._is_new = dice.random() < 0.2
            if self._is_new:
                self._sock.close()
                self._sock = connect(self._port, HONEST)
            self._waits, self._unsent, self._spent_s = True, _REQUEST, 0.0
            self._has_come_s = 0.0
            with suppress(BlockingIOError):
                self._unsent = self._unsent[self._sock.send(self._unsent) :]

    def look(self) -> None:
        """Within a turn: has the answer come?"""
        if not self._waits or self._unsent or self._has_come_s:
            return
        with suppress(OSError):
            if self._sock.recv(1, socket.MSG_PEEK):
                self._has_come_s = self._spent_s + time.thread_time() - self._turn_s

    def begin_turn(self) -> None:
        self._turn_s = time.thread_time()

    def end_turn(self) -> float:
        """Count what the loop has worked in this turn, and return it, in s."""
        took_s = time.thread_time() - self._turn_s
        self._spent_s += took_s
        return took_s

    def reach(self, step: str) -> None:
        """The front end has come to this step with the request, within a turn."""
        if self._waits and self._is_new:
            in_turn_s = time.thread_time() - self._turn_s
            self.steps_ms[step].append((self._spent_s + in_turn_s) * 1e3)


class Observed(Server):
    """A server that tells when it has come to a step with the honest caller's request."""

    honest: Honest | None = None

    def _connect(self, accepted: Accepted) -> None:
        is_honest = accepted.address == HONEST
        if is_honest and self.honest is not None:
            self.honest.reach(CONNECTED)
        super()._connect(accepted)


def observed_protocol(
    view: PoolView, session: UnattachedSession, honest: Callable[[], Honest | None]
) -> type[Connection]:
    """The connections of a front end, which tell the same."""

    def exchange() -> None:
        view.client_loop.flush()
        session.complete()
        view.client_loop.exchange()
        if (found := honest()) is not None:
            found.look()

    class ObservedConnection(fast_protocol(view)):  # type: ignore[misc]
        scheduler = LoopScheduler(exchange)

        def data_received(self, data: bytes) -> None:
            self._tell(READ)
            super().data_received(data)

        def on_headers_complete(self) -> None:
            self._tell(PARSED)
            super().on_headers_complete()

        def _tell(self, step: str) -> None:
            if self.peer == HONEST and (found := honest()) is not None:
                found.reach(step)

    return ObservedConnection


def waits(requests: int, hostile: Sequence[Caller]) -> dict[str, list[float]]:
    """Milliseconds of the loop's CPU time, by what they are of."""
    dice = random.Random(1)
    raise_gc_thresholds()
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    with ExitStack() as ends:
        session = UnattachedSession(256)
        server, port = loop.run_until_complete(_serve(session, ends))
        honest = server.honest = Honest(port)
        turns = []
        while len(honest.answered_ms) < requests:
            for caller in hostile:
                caller.act(port)
            honest.act(dice)
            if session.complete():
                session.batchers_end.ring()
            honest.begin_turn()
            run_turn(loop)
            turns.append(honest.end_turn() * 1e3)
        for caller in hostile:
            caller.close()
    return {
        "a turn": turns[20:],
        "from a request to its answer": honest.answered_ms[5:],
    } | {f"from a new connection to {step}": honest.steps_ms[step] for step in STEPS}


async def _serve(session: UnattachedSession, ends: ExitStack) -> tuple[Observed, int]:
    """Serve on the loop that runs; returns the server and its port."""
    client_loop = ClientLoop(session)
    fd = create(counters_layout(1), sealed=False)
    background, scrapes = BackgroundThread(), BackgroundThread()
    for thread in (background, scrapes):
        ends.callback(thread.close)
    view = PoolView(client_loop, Counters(fd, 1), Gpus(), background, scrapes, ParserProcess())
    os.close(fd)
    server = Observed(
        build_app(view, None),
        drain_s=1.0,
        give_up=client_loop.close,
        protocol=observed_protocol(view, session, lambda: server.honest),
    )
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    listener = socket.create_server(("127.0.0.1", 0))
    await server.startup([listener])
    ends.callback(listener.close)
    port: int = listener.getsockname()[1]
    return server, port


def _rows(found: dict[str, list[float]]) -> Iterator[tuple[str, str]]:
    for name, ms in found.items():
        values = sorted(ms)
        p50, p90, p99 = (percentile(values, share) for share in (0.5, 0.9, 0.99))
        yield name, f"{p50:.2f} / {p90:.2f} / {p99:.2f} / {values[-1]:.2f}, n {len(values)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--save")
    args = parser.parse_args()
    rows: dict[str, Any] = {}
    kinds: dict[str, Callable[[], list[Caller]]] = {
        "alone": list,
        "beside hostile callers": callers,
    }
    for where, hostile in kinds.items():
        for name, text in _rows(waits(args.requests, hostile())):
            rows[f"{where}: {name}"] = text
    report("CPU ms of the loop: p50 / p90 / p99 / longest", rows, args.save)


if __name__ == "__main__":
    main()
