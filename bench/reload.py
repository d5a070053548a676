"""Effects of a reload that callers notice: failures and latency.

    python -m bench.reload [--rate 500] [--workers 2] [--quiet-s 5] [--save FILE.json]

An open loop of single rows over HTTP on connections that stay open: each is sent at its own time,
from which its latency counts, whatever becomes of the others. Meanwhile `batchpool reload` goes to
a new version of the model; then to one whose last worker cannot load, which is undone. Every
answer is compared; it tells the version and the worker that it came from. A worker's place may
switch once in the first reload; in the second once there and once back.

Beside it a quiet time before and after on the same pool, and what there is without `reload`:
SIGTERM, and another pool on the same port.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bench.support.machine import percentile, report
from bench.support.serving import Served, await_ready, serving
from bench.support.versions import FILE

MODEL = "bench.support.versions:Version"
CONNECTIONS = 32
_HEAD = b"inference-header-content-length: "


@dataclass
class Load:
    """An open loop of so many requests a second, and what became of each.

    seen: (due_s, latency_s, version, pid) of right answers. opened: connections, over all.
    """

    port: int
    rate_per_s: float
    seen: list[tuple[float, float, int, int]] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)
    opened: int = 0
    stopping: bool = False

    async def run(self) -> None:
        free: asyncio.Queue[Any] = asyncio.Queue()
        for _ in range(CONNECTIONS):
            free.put_nowait(None)
        under_way: set[asyncio.Task[None]] = set()
        due_s, tag = time.perf_counter(), 0
        while not self.stopping:
            due_s += 1 / self.rate_per_s
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            tag += 1
            task = asyncio.create_task(self._one(free, due_s, tag))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        await asyncio.gather(*under_way)
        while not free.empty():
            streams = free.get_nowait()
            if streams is not None:
                streams[1].close()

    async def _one(self, free: asyncio.Queue[Any], due_s: float, tag: int) -> None:
        streams = await free.get()
        try:
            if streams is None:
                streams = await asyncio.open_connection("127.0.0.1", self.port)
                self.opened += 1
            reader, writer = streams
            found, version, pid = await _ask(reader, writer, tag)
            if found != tag:
                raise ValueError("wrong answer")
            self.seen.append((due_s, time.perf_counter() - due_s, version, pid))
        except (OSError, ValueError, asyncio.IncompleteReadError) as exc:
            name = str(exc) if isinstance(exc, ValueError) else type(exc).__name__
            self.failures[name] = self.failures.get(name, 0) + 1
            if streams is not None:
                streams[1].close()
            streams = None
        free.put_nowait(streams)


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tag: int) -> Any:
    body = np.int64(tag).tobytes()
    writer.write(
        b"POST /v2/models/version/infer HTTP/1.1\r\nHost: pool\r\n"
        b"Inference-Header-Content-Length: 0\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"\r\ncontent-length: ")[2].split(b"\r\n")[0])
    answer = await reader.readexactly(length)
    status = head[9:12].decode()
    if status != "200":
        raise ValueError(f"status {status}")
    at = int(head.partition(_HEAD)[2].split(b"\r\n")[0])
    return np.frombuffer(answer[at:], np.int64).tolist()


@dataclass(frozen=True)
class Window:
    """A part of the run. seats: {pid: the place of its worker}, old and new."""

    start_s: float
    end_s: float
    worker_slots: Mapping[int, str]

    def figures(self, load: Load) -> dict[str, Any]:
        mine = [row for row in load.seen if self.start_s <= row[0] < self.end_s]
        late = [latency_s for _, latency_s, _, _ in mine]
        return {
            "seconds": round(self.end_s - self.start_s, 1),
            "answered": len(mine),
            "p50 ms": round(percentile(late, 0.5) * 1e3, 2),
            "p99 ms": round(percentile(late, 0.99) * 1e3, 2),
            "max ms": round(max(late) * 1e3, 1),
        }

    def switches(self, load: Load) -> dict[str, list[int]]:
        """The versions that each place answered with, one after the other, by the time of the
        request; what overlaps, in flight at the same time, is put in order of its answer."""
        paths: dict[str, list[int]] = {}
        for due_s, latency_s, version, pid in sorted(load.seen, key=lambda row: row[0] + row[1]):
            if self.start_s <= due_s + latency_s < self.end_s and pid in self.worker_slots:
                path = paths.setdefault(self.worker_slots[pid], [])
                if path[-1:] != [version]:
                    path.append(version)
        return dict(sorted(paths.items()))


def worker_slots_of(served: Served) -> dict[int, str]:
    """{pid: "worker 0 of version"} of whoever is or was to be there."""
    found = {}
    for name, pid in served.pids().items():
        place = name.removeprefix("replacement of ").removeprefix("standby of ")
        if place.startswith("worker"):
            found[pid] = place
    return found


async def reload(served: Served, load: Load) -> tuple[Window, int, str]:
    """One reload under load: when, its exit status and what it said."""
    worker_slots = worker_slots_of(served)
    start_s = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "batchpool", "reload", "--socket", served.socket,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    ended = asyncio.create_task(process.communicate())
    while not ended.done():
        worker_slots |= await asyncio.to_thread(worker_slots_of, served)
        await asyncio.sleep(0.1)
    worker_slots |= worker_slots_of(served)
    window = Window(start_s, time.perf_counter(), worker_slots)
    return window, process.returncode or 0, (await ended)[0].decode().strip()


async def restart(served: Served, load: Load) -> Window:
    """A restart by hand: the pool ends, and another is started in its place."""
    start_s = time.perf_counter()
    served.process.send_signal(signal.SIGTERM)
    await asyncio.to_thread(served.process.wait)
    successor = subprocess.Popen(served.process.args)
    try:
        await asyncio.to_thread(await_ready, successor, served.socket)
        window = Window(start_s, time.perf_counter(), {})
        await quiet(1)
        load.stopping = True
    finally:
        successor.send_signal(signal.SIGTERM)
        await asyncio.to_thread(successor.wait)
    return window


async def quiet(seconds: float) -> Window:
    start_s = time.perf_counter()
    await asyncio.sleep(seconds)
    return Window(start_s, time.perf_counter(), {})


async def measure(served: Served, version: Path, args: argparse.Namespace) -> dict[str, Any]:
    load = Load(served.port, args.rate)
    running = asyncio.create_task(load.run())
    await asyncio.sleep(1)
    rows: dict[str, Any] = {}
    windows = {"before": await quiet(args.quiet_s)}
    version.write_text("2")
    windows["during a reload"], status, said = await reload(served, load)
    expect(status == 0, said)
    windows["after it"] = await quiet(args.quiet_s)
    version.write_text("3 first")
    windows["during one that is undone"], status, undone = await reload(served, load)
    expect(status == 1, undone)
    windows["after that"] = await quiet(args.quiet_s)
    load.stopping = True
    await running
    for name, window in windows.items():
        rows[name] = window.figures(load)
    for name, last in (
        ("during a reload", "after it"),
        ("during one that is undone", "after that"),
    ):
        whole = replace(windows[name], end_s=windows[last].end_s)
        rows[f"versions by worker, {name}"] = whole.switches(load)
    rows["requests"] = len(load.seen) + sum(load.failures.values())
    rows["failures"] = load.failures or 0
    rows["connections opened"] = f"{load.opened} for {CONNECTIONS}"
    rows["said"] = [said, undone]
    return rows


async def measure_restart(served: Served, args: argparse.Namespace) -> dict[str, Any]:
    load = Load(served.port, args.rate)
    running = asyncio.create_task(load.run())
    await quiet(1)
    window = await restart(served, load)
    await running
    times = sorted(due_s + latency_s for due_s, latency_s, _, _ in load.seen)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return {
        "seconds": round(window.end_s - window.start_s, 1),
        "failures": load.failures,
        "longest time without an answer, s": round(max(gaps), 2),
    }


def expect(right: bool, said: str) -> None:
    if not right:
        raise SystemExit(f"the reload did not end as it should: {said}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=500)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quiet-s", type=float, default=5)
    parser.add_argument("--save")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bp-") as folder:
        version = Path(folder) / "version"
        version.write_text("1")
        flags = ["--workers-per-device", str(args.workers), "--devices", "cpu"]
        flags += ["--frontends", "1", "--log-level", "error"]
        with serving([MODEL], *flags, env={FILE: str(version)}) as served:
            rows = asyncio.run(measure(served, version, args))
        version.write_text("1")
        os.environ[FILE] = str(version)
        with serving([MODEL], *flags) as served:
            rows["a restart instead"] = asyncio.run(measure_restart(served, args))
    report("A reload under load", rows, args.save)
    if rows["failures"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
