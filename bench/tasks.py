"""Tasks of 2 KB over HTTP: submitted, waited for by long poll, collected, every result checked.

    python -m bench.tasks [--seconds 60] [--connections 64] [--save FILE.json]
    python -m bench.tasks --against CHECKOUT [--turns 4] [--rate 1000] [--save FILE.json]
    python -m bench.tasks --rate 1000 --seconds 600 --idle-s 300
    python -m bench.tasks --rate 1000 --seconds 120 --no-collect --tasks-max-mib 64 --ttl-s 60
    python -m bench.tasks --beside-interactive 200 --seconds 30

Each connection submits a task (`Prefer: respond-async`), asks for its result with `wait_s` and goes
on with the next. The model does no work, so the figures are those of the road of a task: front end,
task process, store, lane and back. CPU is told for each process, the generator's own too, which
shares the cores. Then the store alone: the same life of a task (put, claim, finish, collect, sweep)
without sockets and without a pool.

--rate submits so many a second at most, and the size of the store is told as it grows; with
--idle-s again after so long without load. --no-collect leaves every result where it is: the store
is to stop at its limit, refuse with 503 and take tasks again once results have gone.

--against has a pool of this checkout and one of another, each with an environment of its own in
.venv, and loads them in turns, so that a machine with other work disturbs both alike. CPU time per
task is what to compare; what the threads of the task process take is told apart.

--beside-interactive sends so many ordinary requests a second to a model that takes 4 ms a batch and
0.15 ms a row of a pretended device, first alone and then beside as many tasks as the connections
bring about; the figure is what the tasks cost the 99th percentile.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import uvloop

from batchpool.tasks.record import Ended, NewTask, StoreLimits, TaskAnswer, TaskState, Want, task_id
from batchpool.tasks.sqlite import SqliteStore
from bench.load.open_load import offer
from bench.policy_pool.models import sleeping
from bench.support.machine import percentile, report
from bench.support.models import WIDTH
from bench.support.serving import Served, cpu_seconds, serving

_MODELS = {
    "affine": "bench.support.models:Affine",
    "sleeper": "bench.policy_pool.models:Sleeper",
}
_SLEEP_MS = (4.0, 0.15)  # of a batch, of a row
_GROUP = 128
_STORE_ROUNDS = 60
_LOOK_S = 1.0
_AGAIN_S = 0.05  # after a refusal
_INTERACTIVE_CONNECTIONS = 256


@dataclass
class Course:
    """The course of a load that all its callers share. rate: submissions a second, 0 for as many as
    come about. accept_s: times from a submission to its 202. refused: by status and code.
    sizes: of the store in bytes, once a second. first_refusal_s, last_accepted_s: since the begin.
    """

    model: str
    until_s: float
    rate: float
    collect: bool
    begun_s: float = field(default_factory=time.monotonic)
    sent: int = 0
    done: int = 0
    accept_s: list[float] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    sizes: list[int] = field(default_factory=list)
    first_refusal_s: float = 0.0
    last_accepted_s: float = 0.0

    async def turn(self) -> bool:
        """Wait for the time of the next submission; False where the load is over."""
        due_s = self.begun_s + self.sent / self.rate if self.rate else 0.0
        self.sent += 1
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        return time.monotonic() < self.until_s

    def accepted(self, took_s: float) -> None:
        self.accept_s.append(took_s)
        self.last_accepted_s = time.monotonic() - self.begun_s

    def refusal(self, kind: str) -> None:
        self.refused[kind] += 1
        self.first_refusal_s = self.first_refusal_s or time.monotonic() - self.begun_s

    def row(self, cpu: dict[str, float]) -> dict[str, Any]:
        """The figures of the load. cpu: seconds by process."""
        took_s = time.monotonic() - self.begun_s
        n = self.done if self.collect else len(self.accept_s)
        row = {
            "tasks_per_s": round(n / took_s),
            "tasks": n,
            "accept_p50_ms": round(percentile(self.accept_s, 0.5) * 1e3, 2),
            "accept_p99_ms": round(percentile(self.accept_s, 0.99) * 1e3, 2),
            "cpu_us_per_task": {name: round(used / n * 1e6) for name, used in cpu.items()},
            "cores_used": round(sum(cpu.values()) / took_s, 2),
        }
        if self.rate:
            row["store_mib_most"] = _mib(max(self.sizes))
            row["store_mib_end"] = _mib(self.sizes[-1])
        if self.refused:
            row["refused"] = dict(self.refused)
            row["first_refusal_s"] = round(self.first_refusal_s, 1)
            row["last_accepted_s"] = round(self.last_accepted_s, 1)
        return row


class Caller:
    """One connection."""

    def __init__(self, number: int, course: Course) -> None:
        rows = np.random.default_rng(number).random((1, WIDTH), dtype=np.float32)
        body = rows.tobytes()
        self._right = (rows * 2 + 1).tobytes()
        self._course = course
        head = (
            f"POST /v2/models/{course.model}/infer HTTP/1.1\r\nhost: x\r\n"
            "prefer: respond-async\r\ninference-header-content-length: 0\r\n"
            f"x-client-id: {number % 4}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self._submission = head.encode() + body

    async def run(self, port: int) -> None:
        """Submit, and collect if that is asked for, until the time is up."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        course = self._course
        while await course.turn():
            begun_s = time.monotonic()
            writer.write(self._submission)
            status, fields, body = await self._answer(reader)
            if status == 503 and not course.collect:
                course.refusal(f"503 {msgspec.json.decode(body)['code']}")
                await asyncio.sleep(_AGAIN_S)
                continue
            if status != 202:
                raise SystemExit(f"a task was answered {status}: {body[:200]!r}")
            course.accepted(time.monotonic() - begun_s)
            if course.collect:
                await self._collect(reader, writer, fields["location"])
                course.done += 1
        writer.close()

    async def _collect(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str
    ) -> None:
        status = 202
        while status == 202:
            request = f"GET {path}/result?wait_s=30 HTTP/1.1\r\nhost: x\r\n\r\n"
            writer.write(request.encode())
            status, _, body = await self._answer(reader)
        if status != 200 or not body.endswith(self._right):
            raise SystemExit(f"a wrong result, {status}: {body[:200]!r}")

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = dict(line.split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(fields["content-length"]))
        return int(head[0].split()[1]), fields, body


async def load(port: int, connections: int, course: Course, store: Path) -> None:
    """All callers for so long. store: its size is looked at meanwhile."""

    async def watch() -> None:
        while True:
            course.sizes.append(store_bytes(store))
            await asyncio.sleep(_LOOK_S)

    watching = asyncio.create_task(watch())
    callers = [Caller(number, course) for number in range(connections)]
    await asyncio.gather(*(caller.run(port) for caller in callers))
    watching.cancel()


def store_bytes(folder: Path) -> int:
    """Bytes of the files in a folder, but for the store's reserve."""
    found = 0
    for path in folder.rglob("*"):
        try:
            found += path.stat().st_size if path.is_file() and path.name != "reserve" else 0
        except FileNotFoundError:
            continue
    return found


def _mib(size: int) -> float:
    return round(size / 2**20, 1)


def over_http(pool: Served, connections: int, course: Course, store: Path) -> dict[str, Any]:
    """The rate, the times of acceptance, and the CPU of each process, of one round."""
    pids = {**pool.pids(), "generator": os.getpid()}
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    uvloop.run(load(pool.port, connections, course, store))
    return course.row({name: cpu_seconds(pid) - before[name] for name, pid in pids.items()})


def thread_seconds(pid: int) -> dict[str, float]:
    """CPU time of the task process's threads: its loop, and all others, which are the store's."""
    loop = cpu_seconds(pid, pid)
    return {"tasks: loop": loop, "tasks: store": cpu_seconds(pid) - loop}


def in_turns(args: argparse.Namespace, flags: list[str]) -> dict[str, Any]:
    """The figures of a pool of this checkout and of one of another, loaded in turns."""
    trees = {"this": None, "against": args.against}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in trees}
    with ExitStack() as stack:
        pools = {}
        for name, tree in trees.items():
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bp-tasks-"))
            own = [*flags, "--state-dir", folder]
            pool = stack.enter_context(serving([_MODELS["affine"]], *own, tree=tree))
            pools[name] = pool, Path(folder)
        for turn in range(-1, args.turns):
            for name in list(trees)[:: -1 if turn % 2 else 1]:
                pool, folder_of = pools[name]
                pid = pool.pids()["tasks"]
                before = thread_seconds(pid)
                until_s = time.monotonic() + (args.seconds if turn >= 0 else 2.0)
                course = Course("affine", until_s, args.rate, collect=True)
                row = over_http(pool, args.connections, course, folder_of)
                row["cpu_us_per_task"] |= {
                    thread: round((used - before[thread]) / row["tasks"] * 1e6)
                    for thread, used in thread_seconds(pid).items()
                }
                if turn >= 0:
                    found[name].append(row)
    return {name: summary(rows) for name, rows in found.items()}


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Median (least .. most) of each figure of several turns."""
    flat = [
        {key: row[key] for key in ("tasks_per_s", "accept_p50_ms", "accept_p99_ms")}
        | {f"CPU us, {name}": used for name, used in row["cpu_us_per_task"].items()}
        for row in rows
    ]
    found = {}
    for key in flat[0]:
        values = [row[key] for row in flat]
        found[key] = f"{statistics.median(values):g} ({min(values):g} .. {max(values):g})"
    return found


def beside_interactive(pool: Served, args: argparse.Namespace, store: Path) -> dict[str, Any]:
    """Ordinary requests alone, and beside as many tasks as the connections bring about."""

    def interactive() -> dict[str, float]:
        where, phases = str(pool.port), [(args.beside_interactive, args.seconds)]
        found = offer("http", where, phases, 1, connections=_INTERACTIVE_CONNECTIONS).figures()
        return {name: round(value, 2) for name, value in found.items()}

    alone = interactive()
    course = Course("sleeper", time.monotonic() + args.seconds + 2, args.rate, collect=True)
    with ThreadPoolExecutor(1) as threads:
        beside = threads.submit(interactive)
        tasks = over_http(pool, args.connections, course, store)
        found = beside.result()
    return {
        "interactive alone": alone,
        "interactive beside tasks": found,
        "p99 beside tasks, of alone": round(found["p99_ms"] / alone["p99_ms"], 2),
        "tasks": tasks,
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
        _, (claimed,) = store.put_and_claim(tasks, [Want("m", _GROUP, 2**30)], now)
        commits.append(time.monotonic() - put_s)
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--against", type=Path, metavar="CHECKOUT")
    parser.add_argument("--turns", type=int, default=4, help="of --against")
    parser.add_argument("--rate", type=float, default=0.0, metavar="TASKS_PER_S")
    parser.add_argument("--collect", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--tasks-max-mib", type=int, default=4096)
    parser.add_argument("--ttl-s", type=float, default=3600, help="task_result_ttl_s of the pool")
    parser.add_argument("--idle-s", type=float, default=0.0)
    parser.add_argument("--beside-interactive", type=float, default=0.0, metavar="REQUESTS_PER_S")
    parser.add_argument("--save", metavar="FILE.json")
    args = parser.parse_args()
    model = "sleeper" if args.beside_interactive else "affine"
    flags = ["--tasks", "--frontends", "1", "--devices", "cpu"]
    flags += ["--tasks-max-mib", str(args.tasks_max_mib)]
    flags += ["--task-result-ttl-s", str(args.ttl_s)]
    if args.against:
        report("tasks of 2 KB, of two checkouts in turns", in_turns(args, flags), args.save)
        return
    with tempfile.TemporaryDirectory(prefix="bp-tasks-") as name:
        folder = Path(name)
        flags += ["--state-dir", name]
        rows: dict[str, Any] = (
            {} if args.rate or args.beside_interactive else {"store": store_alone(folder)}
        )
        with serving([_MODELS[model]], *flags, env=sleeping(*_SLEEP_MS)) as pool:
            if args.beside_interactive:
                rows |= beside_interactive(pool, args, folder)
            else:
                warm = Course(model, time.monotonic() + min(3.0, args.seconds), 0.0, collect=True)
                over_http(pool, args.connections, warm, folder)
                course = Course(
                    model, time.monotonic() + args.seconds, args.rate, collect=args.collect
                )
                rows["http"] = over_http(pool, args.connections, course, folder)
                if args.idle_s:
                    time.sleep(args.idle_s)
                    rows["store_mib_after_idle"] = _mib(store_bytes(folder))
    report("tasks of 2 KB", rows, args.save)


if __name__ == "__main__":
    main()
