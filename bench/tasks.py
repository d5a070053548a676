"""Tasks of 2 KB over HTTP: submitted, waited for by long poll, collected, every result checked.

    python -m bench.tasks [--seconds 60] [--connections 64] [--save FILE.json]

Each connection submits a task (`Prefer: respond-async`), asks for its result with `wait_s` and goes
on with the next. The model does no work, so the figures are those of the road of a task: front end,
task process, store, lane and back. CPU is told for each process, the generator's own too, which
shares the cores. Then the store alone: the same life of a task (put, claim, finish, collect, sweep)
without sockets and without a pool.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from batchpool.tasks.record import Ended, NewTask, StoreLimits, TaskAnswer, TaskState, Want, task_id
from batchpool.tasks.sqlite import SqliteStore
from bench.support.machine import percentile, report
from bench.support.models import WIDTH
from bench.support.serving import Served, cpu_seconds, serving

MODEL = "bench.support.models:Affine"
_GROUP = 128
_STORE_ROUNDS = 60


class Caller:
    """One connection. accept_s: times from a submission to its 202."""

    def __init__(self, number: int) -> None:
        rows = np.random.default_rng(number).random((1, WIDTH), dtype=np.float32)
        body = rows.tobytes()
        self._right = (rows * 2 + 1).tobytes()
        head = (
            "POST /v2/models/affine/infer HTTP/1.1\r\nhost: x\r\nprefer: respond-async\r\n"
            "inference-header-content-length: 0\r\n"
            f"x-client-id: {number % 4}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self._submission = head.encode() + body
        self.accept_s: list[float] = []
        self.done = 0

    async def run(self, port: int, until_s: float) -> None:
        """Submit and collect until the time is up."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.monotonic() < until_s:
            begun_s = time.monotonic()
            writer.write(self._submission)
            status, fields, _ = await self._answer(reader)
            if status != 202:
                raise SystemExit(f"a task was answered {status}")
            self.accept_s.append(time.monotonic() - begun_s)
            path = fields["location"]
            while status == 202:
                request = f"GET {path}/result?wait_s=30 HTTP/1.1\r\nhost: x\r\n\r\n"
                writer.write(request.encode())
                status, _, body = await self._answer(reader)
            if status != 200 or not body.endswith(self._right):
                raise SystemExit(f"a wrong result, {status}: {body[:200]!r}")
            self.done += 1
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = dict(line.split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(fields["content-length"]))
        return int(head[0].split()[1]), fields, body


async def load(port: int, connections: int, seconds: float) -> list[Caller]:
    """All callers for so long."""
    callers = [Caller(number) for number in range(connections)]
    until_s = time.monotonic() + seconds
    await asyncio.gather(*(caller.run(port, until_s) for caller in callers))
    return callers


def over_http(pool: Served, connections: int, seconds: float) -> dict[str, Any]:
    """The rate, the times of acceptance, and the CPU of each process, of one round."""
    pids = {**pool.pids(), "generator": os.getpid()}
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    begun_s = time.monotonic()
    callers = uvloop.run(load(pool.port, connections, seconds))
    took_s = time.monotonic() - begun_s
    done = sum(caller.done for caller in callers)
    accepts = [value for caller in callers for value in caller.accept_s]
    cpu = {name: cpu_seconds(pid) - before[name] for name, pid in pids.items()}
    return {
        "tasks_per_s": round(done / took_s),
        "tasks": done,
        "accept_p50_ms": round(percentile(accepts, 0.5) * 1e3, 2),
        "accept_p99_ms": round(percentile(accepts, 0.99) * 1e3, 2),
        "cpu_us_per_task": {name: round(used / done * 1e6) for name, used in cpu.items()},
        "cores_used": round(sum(cpu.values()) / took_s, 2),
    }


def store_alone(folder: Path) -> dict[str, Any]:
    """The whole life of tasks in the store, in groups of 128."""
    limits = StoreLimits(10**6, 2**32, 1000, 0, evict_on_read=True)
    store = SqliteStore(folder / "tasks", limits)
    body = bytes(2048)
    commits: list[float] = []
    begun_s, cpu_s = time.monotonic(), time.process_time()
    for number in range(_STORE_ROUNDS):
        now = 1000 * number
        tasks = [
            NewTask(task_id(1, os.urandom(16)), "m", 1, body, b"", "me", "", now, now + 10**9)
            for _ in range(_GROUP)
        ]
        put_s = time.monotonic()
        store.put(tasks, now)
        commits.append(time.monotonic() - put_s)
        claimed = store.claim([Want("m", _GROUP, 2**30)], now)
        answer = TaskAnswer(200, (), body)
        ends = [Ended(task.id, task.claim, TaskState.DONE, answer) for task in claimed]
        if not all(store.finish(ends, now)):
            raise SystemExit("an end was refused")
        store.collect([task.id for task in claimed], now)
        store.sweep(now)
    took_s, cpu_s = time.monotonic() - begun_s, time.process_time() - cpu_s
    store.close()
    tasks_done = _STORE_ROUNDS * _GROUP
    return {
        "tasks_per_s": round(tasks_done / took_s),
        "cpu_us_per_task": round(cpu_s / tasks_done * 1e6),
        "put_p50_ms": round(percentile(commits, 0.5) * 1e3, 2),
        "put_p99_ms": round(percentile(commits, 0.99) * 1e3, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--save", metavar="FILE.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bp-tasks-") as folder:
        rows = {"store": store_alone(Path(folder))}
        flags = ["--tasks", "--state-dir", folder, "--frontends", "1", "--devices", "cpu"]
        with serving([MODEL], *flags) as pool:
            over_http(pool, args.connections, min(3.0, args.seconds))
            rows["http"] = over_http(pool, args.connections, args.seconds)
    report("tasks of 2 KB", rows, args.save)


if __name__ == "__main__":
    main()
