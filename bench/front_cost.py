"""The cost of one infer request in a front end: its own Python, without kernel and network.

    python -m bench.front_cost [--group 28] [--turns 2000] [--heads differing|equal|parsed]
                               [--save FILE.json]

Real connections, endpoint, lane client and lane in one process; the transport drops what is
written, and the batcher's part (taking and completing the rows) is done between the stretches
that are timed. In CPU time of the thread, so that other processes on the machine hardly matter;
`group` is how many requests one iteration of the loop serves. Heads:

    differing  an X-Request-Id of its own in each request, two orders of the headers in turns
    equal      to the byte
    parsed     an unknown header differs, so that each head is parsed; --parsed is short for it
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import uvicorn
import uvloop
from uvicorn.server import ServerState

from batchpool.client.arena_lane_client import lane_client_of
from batchpool.client.loop import ClientLoop
from batchpool.client.pool_facts import ModelFacts
from batchpool.client.session import Session
from batchpool.control.channel import pair
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.layout.segments import lane_layout, state_page_layout
from batchpool.core.layout.states import LaneGate, PoolState, SlotState
from batchpool.core.metrics.segments import counters_layout
from batchpool.frontend.fast.protocol import fast_protocol
from batchpool.frontend.http.background import BackgroundThread
from batchpool.frontend.parser.process import ParserProcess
from batchpool.frontend.service.gpu_metrics import Gpus
from batchpool.frontend.service.pool_view import PoolView
from batchpool.model import spec_of
from batchpool.shm.doorbell import Doorbell
from batchpool.shm.lane import Lane
from batchpool.shm.pool_state import PoolStatePage
from batchpool.shm.ring import pack, unpack
from batchpool.shm.segment import create, map_checked
from batchpool.shm.stats.counters import Counters
from bench.load.heads import DIFFERING, EQUAL, Requests
from bench.support.machine import report, spread
from bench.support.models import WIDTH, Affine

_SERVER = asdict(ServerConfig())
_PATH = "/v2/models/affine/infer"
PARSED = "parsed"


class _Transport(asyncio.Transport):
    """Takes what is written and forgets it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 50000), "sockname": ("127.0.0.1", 8000)})
        self.written = b""

    def write(self, data: Any) -> None:
        self.written = data

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def close(self) -> None:
        raise SystemExit("the connection was closed: a request was not taken")


class UnattachedSession(Session):
    """Attached to nobody: one lane to one model, and nobody's bell."""

    def __init__(self, slots: int) -> None:
        ours, self.theirs = pair()
        super().__init__(ours, "nobody")
        self.batchers_end = Doorbell()
        self.bell = Doorbell(os.dup(self.batchers_end.fd))
        self.server = dict(_SERVER)
        fd = create(state_page_layout(), sealed=False)
        self._state_page = PoolStatePage(fd, writable=True)
        os.close(fd)
        self._state_page.state.set(int(PoolState.READY))
        self._state_page.accepting[:] = 1
        spec = spec_of(Affine)
        layout = lane_layout(spec, slots)
        fd = create(layout, sealed=False)
        self.lane = Lane(spec, map_checked(fd, layout), layout)
        lane = Lane(spec, map_checked(fd, layout), layout)
        os.close(fd)
        self.models[spec.name] = ModelFacts(0, spec, 0.9, 30.0, 64)
        state_page = self._state_page
        self.lane_set[spec.name] = lane_client_of(
            lane, watermark=0.9, accepting=lambda: state_page.accepts(0)
        )
        self.lane.gate.set(int(LaneGate.OPEN))
        self._sq, self._cq = self.lane.sq_consumer(), self.lane.cq_producer()

    def ring(self) -> None:
        """The batcher is `complete`."""

    def complete(self) -> int:
        """Every row that was submitted is done."""
        entries = self._sq.peek()
        slots, sequences = unpack(entries)
        self.lane.state[slots] = int(SlotState.DONE)
        self._sq.advance(len(entries))
        self._cq.push(pack(slots, sequences))
        return len(entries)


def run_turn(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon(loop.stop)
    loop.run_forever()


def requests_of(heads: str, body: bytes) -> Iterator[bytes]:
    """Requests with this body, without end. heads: their kind."""
    fields = {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": "0",
    }
    if heads == PARSED:
        for i in itertools.count():
            numbered = {**fields, "X-Number": f"{i:08}"}
            yield Requests(_PATH, numbered, len(body), 0, EQUAL).head() + body
    requests = Requests(_PATH, fields, len(body), 0, heads)
    while True:
        yield requests.head() + body


def costs_us(
    group: int, turns: int, body: bytes, heads: str = DIFFERING
) -> tuple[list[float], list[float]]:
    """CPU microseconds a request: from its bytes to the ring, from the ring to its answer."""
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    session = UnattachedSession(4096)

    async def begin() -> ClientLoop:
        return ClientLoop(session)

    client_loop = loop.run_until_complete(begin())
    layout = counters_layout(1)
    fd = create(layout, sealed=False)
    background, scrapes = BackgroundThread(), BackgroundThread()
    view = PoolView(client_loop, Counters(fd, 1), Gpus(), background, scrapes, ParserProcess())
    os.close(fd)
    config = uvicorn.Config(lambda: None, log_config=None, access_log=False, server_header=False)
    config.load()
    state = ServerState()
    state.default_headers = [(b"date", b"Sat, 28 Nov 2026 07:00:00 GMT")]
    protocol = fast_protocol(view)
    connections = [
        protocol(config=config, server_state=state, app_state={}, _loop=loop) for _ in range(group)
    ]
    transports = [_Transport() for _ in connections]
    for connection, transport in zip(connections, transports, strict=True):
        connection.connection_made(transport)
    requests = requests_of(heads, body)
    to_ring, to_answer = [], []
    for _ in range(turns):
        group_of = list(itertools.islice(requests, group))
        start_ns = time.thread_time_ns()
        for connection, request in zip(connections, group_of, strict=True):
            connection.data_received(request)
        run_turn(loop)
        middle_ns = time.thread_time_ns()
        assert session.complete() == group
        again_ns = time.thread_time_ns()
        client_loop._on_bell()
        run_turn(loop)
        end_ns = time.thread_time_ns()
        for transport in transports:
            assert transport.written.startswith(b"HTTP/1.1 200"), transport.written
            transport.written = b""
        to_ring.append((middle_ns - start_ns) / group / 1e3)
        to_answer.append((end_ns - again_ns) / group / 1e3)
    client_loop.close()
    background.close()
    scrapes.close()
    return to_ring, to_answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--group", type=int, default=28)
    parser.add_argument("--turns", type=int, default=2000)
    parser.add_argument("--heads", choices=(DIFFERING, EQUAL, PARSED), default=DIFFERING)
    parser.add_argument("--parsed", dest="heads", action="store_const", const=PARSED)
    parser.add_argument("--save")
    args = parser.parse_args()
    body = np.arange(WIDTH, dtype=np.float32).tobytes()
    to_ring, to_answer = costs_us(args.group, args.turns, body, args.heads)
    both = [a + b for a, b in zip(to_ring, to_answer, strict=True)]
    rows = {
        "us from a request's bytes to its ring entry": spread(to_ring, 2),
        "us from its completion to its answer": spread(to_answer, 2),
        "us a request": spread(both, 2),
    }
    report(
        f"front end, 2 KB raw, {args.heads} heads, {args.group} requests a turn of the loop",
        rows,
        args.save,
    )


if __name__ == "__main__":
    main()
