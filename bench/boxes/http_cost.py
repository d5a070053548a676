"""CPU of each process of one box on one Redis under tasks of 2 KB over HTTP, side by side with
another checkout where one is named."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from bench.boxes.redis_process import redis_process
from bench.support.serving import cpu_seconds, serving
from bench.tasks import Course, load

_MODEL = "affine"
_WARM_S = 2.0


def http_cost(connections: int, seconds: float, tree: Path | None) -> dict[str, Any]:
    """The rate and the CPU a task (us) of one run. tree: the other checkout, whose pool it is."""
    with (
        redis_process("--appendonly", "yes", "--appendfsync", "everysec") as server,
        tempfile.TemporaryDirectory(prefix="bp-tasks-") as name,
        serving(
            ["bench.support.models:Affine"], "--tasks", "--tasks-store", server.url,
            "--state-dir", name, "--frontends", "1", "--devices", "cpu", tree=tree,
        ) as pool,
    ):  # fmt: skip
        pids = {**pool.pids(), "redis": server.pid, "generator": os.getpid()}
        folder = Path(name)
        warm = Course(_MODEL, time.monotonic() + _WARM_S, 0.0, collect=True)
        uvloop.run(load(pool.port, connections, warm, folder))
        before = {process: cpu_seconds(pid) for process, pid in pids.items()}
        course = Course(_MODEL, time.monotonic() + seconds, 0.0, collect=True)
        uvloop.run(load(pool.port, connections, course, folder))
        return course.row({process: cpu_seconds(pid) - before[process]
                           for process, pid in pids.items()})  # fmt: skip
