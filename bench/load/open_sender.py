"""A process that sends requests at their intended times; bench/load/open_load.py starts it.

    python -m bench.load.open_sender local|http WHERE PLAN

It sends Poisson arrivals of rows of 2 KB to `Sleeper`, through a `bp.Client` or over HTTP with
raw bodies on keep-alive connections, one request at a time on each. A latency counts from the
intended time, so that a sender or a pool that falls behind shows. Every answer is compared.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import numpy.typing as npt
import uvloop

import batchpool as bp
from batchpool.core.errors import PoolError
from bench.load.heads import DIFFERING, Requests
from bench.load.open_load import FAILED, GRACE_S, LOST, REFUSED, RIGHT, WRONG, Plan
from bench.support.models import WIDTH

MODEL = "sleeper"
TICK_NS = 500_000  # a sender looks that long after a due time, and sends all that is due then
_UNSENT = -1
_SWITCH_S = 0.0005  # the thread that hears answers must not keep the one that sends from a time
_ROWS = 256  # different ones
_AGAIN_S = 0.05  # after a refusal of the first row
_GREETING = -2  # what a connection is asked before the start, so that the pool has accepted it


def times_ns(plan: Plan) -> npt.NDArray[np.int64]:
    """Intended times of one process, from the start of the first phase on."""
    random = np.random.default_rng((plan.seed, plan.number))
    times, start_s = [], 0.0
    for rate, seconds in plan.phases:
        n = random.poisson(rate * seconds / plan.processes)
        times.append(start_s + np.sort(random.uniform(0, seconds, n)))
        start_s += seconds
    return (np.concatenate(times) * 1e9).astype(np.int64)


class Account:
    """The results of one process, request by request."""

    def __init__(self, plan: Plan) -> None:
        self.due_ns = times_ns(plan)
        n = len(self.due_ns)
        self.took_ns = np.zeros(n, dtype=np.int64)
        self.what = np.full(n, LOST, dtype=np.int8)
        self.behind_ns = np.full(n, _UNSENT, dtype=np.int64)
        self.open = n
        x = np.random.default_rng(plan.number).standard_normal((_ROWS, WIDTH), dtype=np.float32)
        self.x = x
        self.right = [row.tobytes() for row in x * 2 + 1]

    def await_start(self) -> None:
        """Say that this process is connected, and hear when the first phase starts
        (CLOCK_MONOTONIC)."""
        print("ready", flush=True)
        self.due_ns += int(sys.stdin.readline())

    def ended(self, i: int, what: int) -> None:
        self.took_ns[i] = time.monotonic_ns() - self.due_ns[i]
        self.what[i] = what
        self.open -= 1

    def save(self, path: str) -> None:
        """Writes the results; a request that was never sent is late by the time until now."""
        unsent = self.behind_ns == _UNSENT
        self.behind_ns[unsent] = time.monotonic_ns() - self.due_ns[unsent]
        np.savez(path, due=self.due_ns, took=self.took_ns, what=self.what, behind=self.behind_ns)


# -- local clients ------------------------------------------------------------------------


def run_local(account: Account, where: str) -> None:
    """Through `bp.Client.submit`."""
    lock = threading.Lock()
    done = threading.Event()

    def settle(i: int, what: int) -> None:
        with lock:
            account.ended(i, what)
            if account.open == 0:
                done.set()

    def answered(i: int) -> Callable[[Future[Any]], None]:
        def of(future: Future[Any]) -> None:
            try:
                y = future.result()["y"]
            except bp.Overloaded:
                settle(i, REFUSED)
            except PoolError:
                settle(i, FAILED)
            else:
                settle(i, RIGHT if y.tobytes() == account.right[i % _ROWS] else WRONG)

        return of

    with bp.Client(where) as pool:
        attach(pool, account)
        account.await_start()
        for i, due_ns in enumerate(account.due_ns.tolist()):
            now_ns = time.monotonic_ns()
            if now_ns < due_ns:
                time.sleep((due_ns + TICK_NS - now_ns) / 1e9)
                now_ns = time.monotonic_ns()
            account.behind_ns[i] = now_ns - due_ns
            at = i % _ROWS
            try:
                future = pool.submit(MODEL, x=account.x[at : at + 1])
            except bp.Overloaded:
                settle(i, REFUSED)
            else:
                future.add_done_callback(answered(i))
        done.wait(GRACE_S)


def attach(pool: bp.Client, account: Account) -> None:
    """Get a lane, which comes with the first row. A pool with a target may refuse it."""
    until_s = time.monotonic() + GRACE_S
    while True:
        try:
            pool.infer(MODEL, x=account.x[:1])
            return
        except bp.Overloaded:
            if time.monotonic() > until_s:
                raise
            time.sleep(_AGAIN_S)


# -- HTTP ---------------------------------------------------------------------------------


def content_length(head: bytes) -> int:
    """The length of the body after this head, which is without its last empty line.

    `Inference-Header-Content-Length` ends in the same words and may stand first. ValueError:
    the head has no length.
    """
    found = re.search(rb"\r\ncontent-length:[ \t]*(\d+)", head.lower())
    if found is None:
        raise ValueError(f"an answer without a Content-Length: {head!r}")
    return int(found[1])


class _Connection(asyncio.Protocol):
    """One keep-alive connection; one request under way."""

    def __init__(self, sender: _Sender) -> None:
        self._sender = sender
        self._heard = b""
        self.request = -1
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def greet(self) -> None:
        self.request = _GREETING
        self.transport.write(b"GET /v2/health/live HTTP/1.1\r\nHost: bench\r\n\r\n")

    def data_received(self, data: bytes) -> None:
        heard = self._heard = self._heard + data if self._heard else data
        end = heard.find(b"\r\n\r\n")
        if end < 0:
            return
        length = content_length(heard[:end])
        if len(heard) < end + 4 + length:
            return
        self._heard = b""
        i, self.request = self.request, -1
        self._sender.answered(self, i, int(heard[9:12]), heard[end + 4 :])

    def connection_lost(self, exc: Exception | None) -> None:
        self._sender.lost(self)


class _Sender:
    """Sends each request at its time on an idle connection, or as soon as there is one."""

    def __init__(self, account: Account, plan: Plan, port: int) -> None:
        self._account = account
        self._port = port
        self._connections = plan.connections
        self._idle: list[_Connection] = []
        self._waiting: deque[int] = deque()
        self._greeted = asyncio.Event()
        self._done = asyncio.Event()
        fields = {
            "X-Client-Id": str(plan.number),
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": "0",
        }
        path = f"/v2/models/{MODEL}/infer"
        self._requests = Requests(path, fields, 4 * WIDTH, plan.number, DIFFERING)
        self._bodies = [row.tobytes() for row in account.x]

    async def run(self) -> None:
        """All of them; returns when all are answered."""
        account, loop = self._account, asyncio.get_running_loop()
        made = [
            await loop.create_connection(lambda: _Connection(self), "127.0.0.1", self._port)
            for _ in range(self._connections)
        ]
        for _, connection in made:
            connection.greet()
        async with asyncio.timeout(GRACE_S):
            await self._greeted.wait()
        account.await_start()
        due = account.due_ns.tolist()
        for i, due_ns in enumerate(due):
            while (now_ns := time.monotonic_ns()) < due_ns:
                await asyncio.sleep((due_ns + TICK_NS - now_ns) / 1e9)
            if i % 16 == 0:
                await asyncio.sleep(0)  # behind: answers must be heard nevertheless
            if self._idle:
                self._send(self._idle.pop(), i)
            else:
                self._waiting.append(i)
        try:
            async with asyncio.timeout(GRACE_S):
                await self._done.wait()
        except TimeoutError:
            pass  # what is open stays LOST
        for transport, _ in made:
            transport.close()

    def _send(self, connection: _Connection, i: int) -> None:
        self._account.behind_ns[i] = time.monotonic_ns() - self._account.due_ns[i]
        connection.request = i
        connection.transport.write(self._requests.head() + self._bodies[i % _ROWS])

    def answered(self, connection: _Connection, i: int, status: int, body: bytes) -> None:
        if i == _GREETING:
            self._idle.append(connection)
            if len(self._idle) == self._connections:
                self._greeted.set()
            return
        right = self._account.right[i % _ROWS]
        if status == 200:
            what = RIGHT if body.endswith(right) else WRONG
        else:
            what = REFUSED if status == 503 else FAILED
        self._end(i, what)
        if self._waiting:
            self._send(connection, self._waiting.popleft())
        else:
            self._idle.append(connection)

    def lost(self, connection: _Connection) -> None:
        if connection.request >= 0:
            self._end(connection.request, FAILED)
        if connection in self._idle:
            self._idle.remove(connection)

    def _end(self, i: int, what: int) -> None:
        self._account.ended(i, what)
        if self._account.open == 0:
            self._done.set()


def main() -> None:
    transport, where, told = sys.argv[1:]
    plan = Plan(**json.loads(told))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    sys.setswitchinterval(_SWITCH_S)
    account = Account(plan)
    if transport == "local":
        run_local(account, where)
    else:
        uvloop.run(_Sender(account, plan, int(where)).run())
    account.save(plan.found)


if __name__ == "__main__":
    main()
