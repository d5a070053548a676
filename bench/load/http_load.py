"""HTTP load on a served model: raw single rows on keep-alive connections, every answer judged.

Closed loop: a connection sends again as soon as it is answered. Open loop: rows are sent at
Poisson times whatever becomes of the answers, on an idle connection or as soon as there is one,
and a latency counts from the intended time. Of each answer the status, the length, the JSON head
and every byte of the row are checked, the last against what has been found right before.
`offer` tells several processes, each a child (bench/support/children.py) of this module, and joins
what they saw; `run_wrk` does the closed loop with wrk.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from bench.load import heads
from bench.scaling.workloads import Known, judge_of
from bench.support.children import Child, obey

_LUA = Path(__file__).with_name("wrk_rows.lua")
_TALLY = Path(__file__).with_name("wrk_tally.lua")
_GRACE_S = 15.0  # beyond the last send
_TICK_S = 0.0005
_ROWS = 256  # different ones of a process
_RAW = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": "0"}

Meanwhile = Callable[[int, float], Any]


def _nothing(start_ns: int, seconds: float) -> None:
    pass


@dataclass(frozen=True)
class Plan:
    """The load that one process offers.

    head: the JSON before each answer's row.  connections: its own.  rate_per_s: of this process,
    in an open loop; 0 is a closed loop.  number: whose turn; a process begins with other rows
    than the others.  start_ns: CLOCK_MONOTONIC.  heads: DIFFERING or EQUAL ones.
    """

    port: int
    path: str
    rows: str
    right: str
    tolerance: float
    head: str
    connections: int
    seconds: float
    rate_per_s: float = 0.0
    number: int = 0
    start_ns: int = 0
    found: str = ""
    heads: str = heads.DIFFERING


@dataclass(frozen=True)
class Seen:
    """The outcome of a load. rate_per_s: right answers within its time."""

    rate_per_s: float
    p50_ms: float
    p99_ms: float
    right: int
    refused: int
    failed: int
    wrong: int
    behind_p99_ms: float = 0.0


class _Connection(asyncio.Protocol):
    """One keep-alive connection; one request under way: its row, and when it was due."""

    def __init__(self, sender: _Sender) -> None:
        self._sender = sender
        self._heard = b""
        self.row = -1
        self.due_ns = 0
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        heard = self._heard = self._heard + data if self._heard else data
        end = heard.find(b"\r\n\r\n")
        if end < 0:
            return
        at = heard.find(b"\r\ncontent-length: ", 0, end + 2)
        length = int(heard[at + 18 : heard.index(b"\r\n", at + 18)])
        if len(heard) < end + 4 + length:
            return
        self._heard = b""
        self._sender.answered(self, heard[9:12], heard[end + 4 :])

    def connection_lost(self, exc: Exception | None) -> None:
        self._sender.lost(self)


class _Sender:
    """The connections of one process, and what it counts."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        rows = np.load(plan.rows)[:_ROWS]
        self._known = Known(judge_of(plan.right, plan.tolerance))
        self._json = plan.head.encode()
        self._requests = heads.Requests(plan.path, _RAW, rows[0].nbytes, plan.number, plan.heads)
        self._bodies = [row.tobytes() for row in rows]
        self._next = plan.number * 37
        self._idle: list[_Connection] = []
        self._waiting: deque[int] = deque()  # times that are due, in an open loop
        self._open = 0
        self._done = asyncio.Event()
        self._end_ns = plan.start_ns + int(plan.seconds * 1e9)
        self.took_ns: list[int] = []
        self.behind_ns: list[int] = []
        self.in_time = self.refused = self.failed = self.wrong = 0

    async def run(self) -> None:
        """Everything; returns when all that was sent is answered, or after a while."""
        plan, loop = self._plan, asyncio.get_running_loop()
        connections = []
        for _ in range(plan.connections):
            _, connection = await loop.create_connection(
                lambda: _Connection(self), "127.0.0.1", plan.port
            )
            connections.append(connection)
        await asyncio.sleep((plan.start_ns - time.monotonic_ns()) / 1e9)
        if plan.rate_per_s:
            self._idle = connections
            await self._send_at_times()
        else:
            self._open += 1  # as long as more may be sent
            for connection in connections:
                self._send(connection, time.monotonic_ns())
            await asyncio.sleep((self._end_ns - time.monotonic_ns()) / 1e9)
            self._ended()
        try:
            async with asyncio.timeout(_GRACE_S):
                await self._done.wait()
        except TimeoutError:
            self.failed += self._open
        for connection in connections:
            connection.transport.close()

    async def _send_at_times(self) -> None:
        plan = self._plan
        random = np.random.default_rng(plan.number)
        n = max(1, int(random.poisson(plan.rate_per_s * plan.seconds)))
        times = np.sort(random.uniform(0, plan.seconds, n)) * 1e9
        self._open = n
        for i, due_ns in enumerate((plan.start_ns + times.astype(np.int64)).tolist()):
            while (now_ns := time.monotonic_ns()) < due_ns:
                await asyncio.sleep((due_ns - now_ns) / 1e9 + _TICK_S)
            if i % 16 == 0:
                await asyncio.sleep(0)  # behind: answers must be heard nevertheless
            if self._idle:
                self._write(self._idle.pop(), due_ns)
            else:
                self._waiting.append(due_ns)

    def _send(self, connection: _Connection, due_ns: int) -> None:
        self._open += 1
        self._write(connection, due_ns)

    def _write(self, connection: _Connection, due_ns: int) -> None:
        self._next = row = (self._next + 1) % len(self._bodies)
        connection.row = row
        connection.due_ns = due_ns
        self.behind_ns.append(time.monotonic_ns() - due_ns)
        connection.transport.write(self._requests.head() + self._bodies[row])

    def answered(self, connection: _Connection, status: bytes, body: bytes) -> None:
        now_ns = time.monotonic_ns()
        row, connection.row = connection.row, -1
        if status == b"200":
            n = len(self._json)
            if row >= 0 and body[:n] == self._json and self._known.is_right(row, body[n:]):
                self.took_ns.append(now_ns - connection.due_ns)
                self.in_time += now_ns < self._end_ns
            else:
                self.wrong += 1
        elif status == b"503":
            self.refused += 1
        else:
            self.failed += 1
        if self._plan.rate_per_s:
            if self._waiting:
                self._write(connection, self._waiting.popleft())
            else:
                self._idle.append(connection)
        elif now_ns < self._end_ns:
            self._send(connection, now_ns)
        self._ended()

    def lost(self, connection: _Connection) -> None:
        if connection.row >= 0:
            self.failed += 1
            self._ended()
        if connection in self._idle:
            self._idle.remove(connection)

    def _ended(self) -> None:
        self._open -= 1
        if self._open == 0:
            self._done.set()


def offer(senders: Sequence[Child], plan: Plan, meanwhile: Meanwhile = _nothing) -> Seen:
    """Run a plan whose connections and rate are those of all senders together.

    meanwhile: called with the start (CLOCK_MONOTONIC, ns) and the seconds.
    """
    n = len(senders)
    with tempfile.TemporaryDirectory() as folder:
        start_ns = time.monotonic_ns() + int((0.4 + plan.connections / 2000) * 1e9)
        paths = [f"{folder}/{number}.npz" for number in range(n)]
        for number, sender in enumerate(senders):
            one = replace(
                plan,
                connections=plan.connections // n,
                rate_per_s=plan.rate_per_s / n,
                number=number,
                start_ns=start_ns,
                found=paths[number],
            )
            sender.tell("send", plan=asdict(one))
        meanwhile(start_ns, plan.seconds)
        for sender in senders:
            sender.hear()
        parts = [np.load(path) for path in paths]
        took_ms = np.concatenate([part["took"] for part in parts]) / 1e6
        behind_ms = np.concatenate([part["behind"] for part in parts]) / 1e6
        in_time, refused, failed, wrong = sum(part["counts"] for part in parts).tolist()
    return Seen(
        in_time / plan.seconds,
        _quantile(took_ms, 0.50),
        _quantile(took_ms, 0.99),
        len(took_ms),
        refused,
        failed,
        wrong,
        _quantile(behind_ms, 0.99),
    )


def _quantile(values: Any, share: float) -> float:
    return float(np.quantile(values, share)) if len(values) else float("nan")


def run_wrk(plan: Plan, threads: int, meanwhile: Meanwhile = _nothing) -> Seen:
    """The closed loop with wrk; it wants whole seconds. Each thread has a row of its own."""
    seconds = max(1, round(plan.seconds))
    rows, right = np.load(plan.rows), np.load(plan.right)
    with tempfile.TemporaryDirectory() as folder:
        rows[:threads].tofile(f"{folder}/rows")
        right[:threads].astype(np.float32).tofile(f"{folder}/right")
        env = {
            **os.environ,
            "TALLY": str(_TALLY),
            "ROWS": f"{folder}/rows",
            "RIGHT": f"{folder}/right",
            "ROW_BYTES": str(rows[0].nbytes),
            "RIGHT_BYTES": str(right[0].nbytes),
            "TOLERANCE": repr(plan.tolerance),
            "HEAD": plan.head,
            "HEADS": plan.heads,
            "AGENT": heads.AGENT,
            "HEADERS": "\n".join(f"{key}: {value}" for key, value in _RAW.items()),
        }
        command = ["wrk", f"-t{threads}", f"-c{plan.connections}", f"-d{seconds}s"]
        command += ["--timeout", "30s", "-s", str(_LUA)]
        wrk = subprocess.Popen(
            [*command, f"http://127.0.0.1:{plan.port}{plan.path}"],
            env=env,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            meanwhile(time.monotonic_ns() + 100_000_000, seconds - 0.2)
            out, _ = wrk.communicate(timeout=seconds + 3 * _GRACE_S)
        finally:
            wrk.kill()
    line = next((text for text in out.splitlines() if text.startswith("JSON ")), None)
    if line is None:
        raise RuntimeError(f"wrk ended with {wrk.returncode}: {out}")
    found = json.loads(line[5:])
    return Seen(
        found["right"] / (found["duration_us"] / 1e6),
        found["p50_us"] / 1e3,
        found["p99_us"] / 1e3,
        found["right"],
        found["refused"],
        found["other"] + found["broken"],
        found["wrong"],
    )


def main() -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    gc.disable()

    def answer(message: dict[str, Any]) -> dict[str, Any]:
        plan = Plan(**message["plan"])
        sender = _Sender(plan)
        uvloop.run(sender.run())
        np.savez(
            plan.found,
            took=np.array(sender.took_ns, dtype=np.int64),
            behind=np.array(sender.behind_ns, dtype=np.int64),
            counts=np.array([sender.in_time, sender.refused, sender.failed, sender.wrong]),
        )
        gc.collect()
        return {}

    obey(answer)


if __name__ == "__main__":
    main()
