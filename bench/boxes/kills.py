"""Boxes and their Redis struck under some thousand tasks, of which every one is accounted for.

A task ends exactly once: its result is right, the store counts as many tasks that are done as were
accepted, and nothing is open. Only FLUSHALL takes tasks away, which then answer 404.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import uvloop

from batchpool.client.control import ask_status
from bench.boxes.callers import Callers
from bench.boxes.redis_process import RedisProcess, redis_process
from bench.support.serving import await_ready, free_port

LEASE_S = 2
_FROZEN_S = 10.0
_CONNECTIONS = 32
_PAUSE_S = 0.02
_KILLS, _KILL_EVERY_S = 30, 0.2
_RESETS, _RESET_EVERY_S = 100, 0.03
_OPEN_AND_DONE = (b"0:sleeper", b"1:sleeper", b"2:sleeper", b"3:sleeper", b"4:sleeper")


@dataclass
class Box:
    """A pool in a session of its own, over HTTP at `port`; socket: for its status."""

    process: subprocess.Popen[bytes]
    port: int
    socket: str

    def signal(self, number: signal.Signals) -> None:
        """Send all its processes a signal."""
        os.killpg(self.process.pid, number)


@dataclass
class Scene:
    """All that a strike may strike."""

    server: RedisProcess
    boxes: list[Box]
    callers: Callers


Strike = Callable[[Scene], Awaitable[None]]


@contextmanager
def box(url: str) -> Iterator[Box]:
    """A pool whose tasks are in this store, ready."""
    with tempfile.TemporaryDirectory(prefix="bp-box-") as folder:
        path, port = f"{folder}/pool.sock", free_port()
        process = subprocess.Popen(
            [sys.executable, "-m", "batchpool", "serve", "--socket", path, "--port", str(port),
             "--model", "bench.boxes.models:Sleeper", "--devices", "cpu", "--frontends", "1",
             "--tasks", "--tasks-store", url, "--tasks-lease-s", str(LEASE_S),
             "--no-task-evict-on-read", "--log-level", "error"],
            start_new_session=True, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            await_ready(process, path)
            yield Box(process, port, path)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(60)


async def nothing(scene: Scene) -> None:
    """Strike nothing: the others are compared with it."""


async def box_killed(scene: Scene) -> None:
    """SIGKILL to all processes of one box."""
    scene.boxes[0].signal(signal.SIGKILL)
    scene.callers.lose(scene.boxes[0].port)


async def box_frozen(scene: Scene) -> None:
    """All processes of one box stand still for twice the lease."""
    scene.boxes[0].signal(signal.SIGSTOP)
    await asyncio.sleep(2 * LEASE_S)
    scene.boxes[0].signal(signal.SIGCONT)


async def redis_killed(scene: Scene) -> None:
    """SIGKILL to the server, which starts again with its append-only file."""
    scene.server.signal(signal.SIGKILL)
    await asyncio.sleep(1)
    await asyncio.to_thread(scene.server.start)


async def redis_frozen(scene: Scene) -> None:
    """The server stands still for ten seconds."""
    scene.server.signal(signal.SIGSTOP)
    await asyncio.sleep(_FROZEN_S)
    scene.server.signal(signal.SIGCONT)


async def redis_full(scene: Scene) -> None:
    """The server has no room for three seconds."""
    scene.server.client.config_set("maxmemory", 1)
    await asyncio.sleep(3)
    scene.server.client.config_set("maxmemory", 0)


async def redis_emptied(scene: Scene) -> None:
    """FLUSHALL."""
    scene.server.client.flushall()


async def task_processes_killed(scene: Scene) -> None:
    """SIGKILL to the task process of each box in turn, five times a second."""
    for turn in range(_KILLS):
        box = scene.boxes[turn % len(scene.boxes)]
        found = await asyncio.to_thread(ask_status, box.socket)
        for process in found["processes"]:
            if process["name"] == "tasks" and process["pid"]:
                os.kill(process["pid"], signal.SIGKILL)
        await asyncio.sleep(_KILL_EVERY_S)


async def connections_reset(scene: Scene) -> None:
    """Every connection to the server is closed again and again, also in the middle of scripts'
    replies."""
    for _ in range(_RESETS):
        scene.server.client.client_kill_filter(_type="normal", skipme=True)
        await asyncio.sleep(_RESET_EVERY_S)


STRIKES: dict[str, Strike] = {
    "nothing": nothing,
    "box killed": box_killed,
    "box frozen": box_frozen,
    "redis killed": redis_killed,
    "redis frozen": redis_frozen,
    "redis full": redis_full,
    "redis emptied": redis_emptied,
    "task processes killed": task_processes_killed,
    "connections reset": connections_reset,
}


async def _struck(scene: Scene, strike: Strike, tasks: int) -> float:
    """Strike once half of the tasks are submitted; CLOCK_MONOTONIC of its end."""
    work = asyncio.create_task(scene.callers.run(_CONNECTIONS, _PAUSE_S))
    while scene.callers.submitted < tasks // 2:
        await asyncio.sleep(0.01)
    await strike(scene)
    ended_s = time.monotonic()
    await work
    return ended_s


def _stored(server: RedisProcess) -> Counter[str]:
    """Tasks in the store by state."""
    names = ("queued", "running", "done", "failed", "cancelled")
    found: Counter[str] = Counter()
    for key in server.client.scan_iter("bp:{*}:n"):
        for name, count in zip(names, server.client.hmget(key, *_OPEN_AND_DONE), strict=True):
            found[name] += int(count or 0)
    return +found


def kill_cell(name: str, boxes: int, tasks: int) -> tuple[dict[str, Any], list[str]]:
    """One strike: the table's row, and what was violated."""
    with ExitStack() as stack:
        server = stack.enter_context(
            redis_process(
                "--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction"
            )
        )
        running = [stack.enter_context(box(server.url)) for _ in range(boxes)]
        callers = Callers([box.port for box in running], tasks)
        scene = Scene(server, running, callers)
        struck_s = uvloop.run(_struck(scene, STRIKES[name], tasks))
        stored = _stored(server)
        account = callers.account
    row = {
        "tasks": tasks,
        **{f"ended {end}": n for end, n in account.ends.most_common()},
        "in the store": dict(stored),
        "sent again after": {str(status): n for status, n in account.refusals.most_common()},
        "last result after the strike, s": round(account.last_s - struck_s, 1),
    }
    right, gone = account.ends["right"], account.ends["gone"]
    faults = []
    if right + (gone if name == "redis emptied" else 0) != tasks:
        faults.append(f"{name}, {boxes} boxes: of {tasks} tasks {right} are right, {gone} gone")
    if set(stored) != {"done"} or not right <= stored["done"] <= tasks:
        faults.append(f"{name}, {boxes} boxes: the store has {dict(stored)}")
    return row, faults
