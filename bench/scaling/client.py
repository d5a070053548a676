"""A local client that keeps a pool busy and checks what comes back. A child of bench.scaling.

    python -m bench.scaling.client WORKLOAD ROWS.npy ANSWERS.npy TOLERANCE NUMBER

    infer   windows of many rows, one after another, through Client.infer
    submit  one row a Client.submit, UNDER_WAY futures open
    async   one row a call of AsyncClient.infer, UNDER_WAY tasks

Each way has a session of its own with each pool, since a client that has futures has a thread.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import uvloop

import batchpool as bp
from bench.scaling.workloads import WORKLOADS, Array, Judge, Known, Workload, judge_of
from bench.support.children import obey, wait_until

UNDER_WAY = 256
_SINGLES = 1024  # rows that are sent one by one
_ATTACH_S = 60.0


@dataclass
class Count:
    """The result of one run. error: the largest difference seen; wrong: windows or rows."""

    rows: int = 0
    took_s: float = 0.0
    wrong: int = 0
    error: float = 0.0
    calls_ms: list[float] = field(default_factory=list)


class LocalClient:
    """The sessions of one process, and where it is in its rows."""

    def __init__(self, workload: Workload, rows: Array, judge: Judge, number: int) -> None:
        self._of = workload
        self._rows = rows
        self._judge = judge
        self._known = Known(judge)
        self._at = number * 131
        self._pools: dict[tuple[str, str], bp.Client] = {}
        self._async_pools: dict[str, bp.AsyncClient] = {}
        self._loop = uvloop.new_event_loop()

    def run(self, do: str, socket: str, start_ns: int, seconds: float, window: int) -> Count:
        if do == "async":
            return self._loop.run_until_complete(self._run_async(socket, start_ns, seconds))
        pool = self._pools.get((do, socket))
        if pool is None:
            pool = bp.Client(socket, timeout_s=_ATTACH_S, pinned=True)
            self._pools[do, socket] = pool
            self._infer(pool, window)  # the lane exists from here on
        if do == "submit":
            return self._run_submit(pool, start_ns, seconds)
        return self._run_infer(pool, start_ns, seconds, window)

    # -- windows ----------------------------------------------------------------------------

    def _next_window(self, n: int) -> int:
        self._at = (self._at + 97) % (len(self._rows) - n + 1)
        return self._at

    def _infer(self, pool: bp.Client, n: int) -> float:
        at = self._next_window(n)
        y = pool.infer(self._of.name, {self._of.input: self._rows[at : at + n]})[self._of.output]
        return self._judge.error(at, y)

    def _run_infer(self, pool: bp.Client, start_ns: int, seconds: float, window: int) -> Count:
        count = Count()
        wait_until(start_ns)
        start = now = time.perf_counter()
        while now - start < seconds:
            error = self._infer(pool, window)
            count.error = max(count.error, error)
            count.wrong += error > self._judge.tolerance
            count.rows += window
            before, now = now, time.perf_counter()
            count.calls_ms.append((now - before) * 1e3)
        count.took_s = now - start
        return count

    # -- one by one -------------------------------------------------------------------------

    def _next_row(self) -> int:
        self._at = (self._at + 1) % min(_SINGLES, len(self._rows))
        return self._at

    def _run_submit(self, pool: bp.Client, start_ns: int, seconds: float) -> Count:
        name, tensor, output, rows = self._of.name, self._of.input, self._of.output, self._rows
        under_way: deque[tuple[int, Future[dict[str, Any]]]] = deque()
        count = Count()
        wait_until(start_ns)
        start = time.perf_counter()
        while (took := time.perf_counter() - start) < seconds or under_way:
            while len(under_way) < UNDER_WAY and took < seconds:
                at = self._next_row()
                under_way.append((at, pool.submit(name, {tensor: rows[at : at + 1]})))
            at, future = under_way.popleft()
            count.wrong += not self._known.is_right(at, future.result()[output].tobytes())
            count.rows += 1
        count.took_s = took
        return count

    async def _run_async(self, socket: str, start_ns: int, seconds: float) -> Count:
        name, tensor, output, rows = self._of.name, self._of.input, self._of.output, self._rows
        pool = self._async_pools.get(socket)
        if pool is None:
            pool = bp.AsyncClient(socket, timeout_s=_ATTACH_S)
            self._async_pools[socket] = pool
            await pool.infer(name, {tensor: rows[:1]})
        count = Count()
        wait_until(start_ns)
        start = time.perf_counter()

        async def one_by_one() -> None:
            while time.perf_counter() - start < seconds:
                at = self._next_row()
                y = (await pool.infer(name, {tensor: rows[at : at + 1]}))[output]
                count.wrong += not self._known.is_right(at, y.tobytes())
                count.rows += 1

        await asyncio.gather(*(one_by_one() for _ in range(UNDER_WAY)))
        count.took_s = time.perf_counter() - start
        return count


def main() -> None:
    name, rows_path, right_path, tolerance, number = sys.argv[1:]
    judge = judge_of(right_path, float(tolerance))
    client = LocalClient(WORKLOADS[name], np.load(rows_path), judge, int(number))
    gc.freeze()

    def answer(message: dict[str, Any]) -> dict[str, Any]:
        before = resource.getrusage(resource.RUSAGE_SELF)
        count = client.run(
            message["do"],
            message["socket"],
            message["start_ns"],
            message["seconds"],
            message["window"],
        )
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {
            "rows": count.rows,
            "took_s": count.took_s,
            "wrong": count.wrong,
            "error": count.error,
            "call_ms": float(np.median(count.calls_ms)) if count.calls_ms else None,
            "cpu": cpu_s / max(count.took_s, 1e-9),
        }

    obey(answer)


if __name__ == "__main__":
    main()
