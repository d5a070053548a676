"""An open loop of requests: sent at their intended times whatever becomes of the answers.

    python -m bench.open_load local|http WHERE PLAN

A process of it sends Poisson arrivals of rows of 2 KB to `Sleeper`, through a `bp.Client` or
over HTTP with raw bodies on keep-alive connections, one request at a time on each. A latency
counts from the intended time, so that a sender or a pool that falls behind shows. Every
answer is compared. `offer` starts the processes and joins what they saw.

How late requests left is told too (p50, p99, most): where more than one in a hundred left over
`LATE_MS` late, the load was not the one that was meant, and its figures are INVALID. Over
HTTP a request also leaves late when every connection is busy, so there must be more of them
than the pool has slots: then the pool refuses before the sender runs out.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import batchpool as bp
from batchpool.core.errors import PoolError
from bench.models import WIDTH

MODEL = "sleeper"
RIGHT, REFUSED, WRONG, FAILED, LOST = range(5)
TICK_NS = 500_000  # a sender looks that long after a due time, and sends all that is due then
_UNSENT = -1
_GRACE_S = 40.0  # beyond the last send; the pool's own deadline is 30 s
_ROWS = 256  # different ones
LATE_MS = 10.0  # the 99th percentile of how late requests leave; above it a load is INVALID
_SLOTS = 4096  # of a model, over all front ends, unless the pool is told otherwise

Phase = tuple[float, float]  # requests per second over all processes, seconds


@dataclass(frozen=True)
class Plan:
    """What one process does. start_ns: CLOCK_MONOTONIC of the first phase; found: a file for what
    it saw; connections: over HTTP, those that it keeps."""

    phases: Sequence[Phase]
    number: int
    processes: int
    seed: int
    start_ns: int
    found: str
    connections: int


@dataclass
class Load:
    """What became of all requests, by their intended times.

    at_s: since the start; took_ms: from then to the answer, any answer; what: RIGHT, ...
    behind_ms: how late requests were sent.
    """

    at_s: npt.NDArray[Any]
    took_ms: npt.NDArray[Any]
    what: npt.NDArray[Any]
    behind_ms: npt.NDArray[Any]

    def verdict(self, start_s: float = 0.0, stop_s: float = float("inf")) -> str:
        """ "as intended", or why the figures of this time are INVALID."""
        late = lateness(self.behind_ms[(self.at_s >= start_s) & (self.at_s < stop_s)])
        if not late.is_invalid:
            return "as intended"
        return (
            f"INVALID: requests left late, p50 {late.p50_ms:.1f}, p99 {late.p99_ms:.1f}, "
            f"most {late.most_ms:.1f} ms; p99 may be {LATE_MS:g}"
        )

    def figures(self, start_s: float = 0.0, stop_s: float = float("inf")) -> dict[str, float]:
        """Of the requests meant to be sent in this time. invalid: 1 where they left late."""
        of = (self.at_s >= start_s) & (self.at_s < stop_s)
        late = lateness(self.behind_ms[of])
        right = of & (self.what == RIGHT)
        took = self.took_ms[right]
        span_s = min(stop_s, float(self.at_s.max(initial=0.0))) - start_s
        p50_ms, p99_ms, most_ms = (
            np.quantile(took, (0.5, 0.99, 1.0)).tolist() if len(took) else [float("nan")] * 3
        )
        return {
            "sent": int(of.sum()),
            "right_per_s": int(right.sum()) / max(span_s, 1e-9),
            "p50_ms": p50_ms,
            "p99_ms": p99_ms,
            "most_ms": most_ms,
            "refused": int((of & (self.what == REFUSED)).sum()),
            "lost": int((of & (self.what > REFUSED)).sum()),
            "behind_p50_ms": late.p50_ms,
            "behind_p99_ms": late.p99_ms,
            "behind_most_ms": late.most_ms,
            "invalid": float(late.is_invalid),
        }


@dataclass(frozen=True)
class Lateness:
    """How long after their intended times requests left."""

    p50_ms: float
    p99_ms: float
    most_ms: float

    @property
    def is_invalid(self) -> bool:
        return self.p99_ms > LATE_MS


def lateness(behind_ms: npt.NDArray[Any]) -> Lateness:
    """Of these requests; of none, 0."""
    if not len(behind_ms):
        return Lateness(0.0, 0.0, 0.0)
    return Lateness(*np.quantile(behind_ms, (0.5, 0.99, 1.0)).tolist())


def times_ns(plan: Plan) -> npt.NDArray[np.int64]:
    """Intended times of one process."""
    random = np.random.default_rng((plan.seed, plan.number))
    times, start_s = [], 0.0
    for rate, seconds in plan.phases:
        n = random.poisson(rate * seconds / plan.processes)
        times.append(start_s + np.sort(random.uniform(0, seconds, n)))
        start_s += seconds
    return plan.start_ns + (np.concatenate(times) * 1e9).astype(np.int64)


class Account:
    """What one process saw, request by request."""

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

    def ended(self, i: int, what: int) -> None:
        self.took_ns[i] = time.monotonic_ns() - self.due_ns[i]
        self.what[i] = what
        self.open -= 1

    def save(self, path: str) -> None:
        """What never left is as late as it is now."""
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
        pool.infer(MODEL, x=account.x[:1])
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
        done.wait(_GRACE_S)


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
        self._done = asyncio.Event()
        head = (
            f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nHost: bench\r\n"
            f"X-Client-Id: {plan.number}\r\nContent-Type: application/octet-stream\r\n"
            f"Inference-Header-Content-Length: 0\r\nContent-Length: {4 * WIDTH}\r\n\r\n"
        ).encode()
        self._requests = [head + row.tobytes() for row in account.x]

    async def run(self) -> None:
        """All of them; returns when all are answered."""
        account, loop = self._account, asyncio.get_running_loop()
        made = [
            await loop.create_connection(lambda: _Connection(self), "127.0.0.1", self._port)
            for _ in range(self._connections)
        ]
        self._idle = [connection for _, connection in made]
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
            async with asyncio.timeout(_GRACE_S):
                await self._done.wait()
        except TimeoutError:
            pass  # what is open stays LOST
        for transport, _ in made:
            transport.close()

    def _send(self, connection: _Connection, i: int) -> None:
        self._account.behind_ns[i] = time.monotonic_ns() - self._account.due_ns[i]
        connection.request = i
        connection.transport.write(self._requests[i % _ROWS])

    def answered(self, connection: _Connection, i: int, status: int, body: bytes) -> None:
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


# -- starting them ------------------------------------------------------------------------


def offer(
    road: str,
    where: str,
    phases: Sequence[Phase],
    processes: int,
    seed: int = 1,
    connections: int = _SLOTS + _SLOTS // 2,
) -> Load:
    """Start the processes, wait for them, and join what they saw.

    connections: over all, more than the pool has slots. Says so on stderr where requests left
    late: such a load is INVALID.
    """
    with tempfile.TemporaryDirectory() as folder:
        start_ns = time.monotonic_ns() + int((1.5 + 0.5 * processes + connections / 1000) * 1e9)
        plans = [
            Plan(
                phases, i, processes, seed, start_ns, f"{folder}/{i}.npz", connections // processes
            )
            for i in range(processes)
        ]
        command = [sys.executable, "-m", "bench.open_load", road, where]
        running = [subprocess.Popen([*command, json.dumps(asdict(plan))]) for plan in plans]
        for process in running:
            if process.wait(sum(seconds for _, seconds in phases) + 2 * _GRACE_S):
                raise SystemExit(f"a sender ended with {process.returncode}")
        parts = [np.load(plan.found) for plan in plans if Path(plan.found).exists()]
        joined = {key: np.concatenate([part[key] for part in parts]) for key in parts[0].files}
    load = Load(
        (joined["due"] - start_ns) / 1e9,
        joined["took"] / 1e6,
        joined["what"],
        joined["behind"] / 1e6,
    )
    if (load.what == WRONG).any():
        raise SystemExit("wrong answer")
    if (verdict := load.verdict()) != "as intended":
        print(f"  {verdict}", file=sys.stderr)
    return load


def main() -> None:
    road, where, told = sys.argv[1:]
    plan = Plan(**json.loads(told))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    account = Account(plan)
    if road == "local":
        run_local(account, where)
    else:
        asyncio.run(_Sender(account, plan, int(where)).run())
    account.save(plan.found)


if __name__ == "__main__":
    main()
