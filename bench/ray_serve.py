"""Calls of a Ray Serve handle: a pool's replica beside Ray's own `@serve.batch`, in turns.

    python -m bench.ray_serve [--calls 3000] [--in-flight 256] [--rounds 5] [--save FILE.json]

Both deployments have one replica, the same model and the same limits of a batch, and run in one
cluster on this machine; every answer is checked. `idle` does no work, so its figures are those of
the road. `device` sleeps 4 ms and 0.15 ms a row, as a device works that needs no core; it keeps the
loop of a replica of `@serve.batch` from taking calls meanwhile, as a model of torch does there too.
CPU is that of the replica with all its children, which are the pool's processes. The driver, which
makes the calls, and Ray's own processes share the cores.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import ray
from ray import serve

import batchpool as bp
from batchpool.contrib.ray import PoolDeployment
from bench.support.machine import percentile, report, spread, version_of
from bench.support.models import WIDTH, Affine
from bench.support.serving import cpu_seconds

_MAX_BATCH, _WAIT_MS = 64, 1.0
_BATCH_S, _ROW_S = 0.004, 0.00015
_QUIET = {"enable_access_log": False, "log_level": "WARNING"}


class Device(Affine):
    """Affine, with the time of a device."""

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        time.sleep(_BATCH_S + _ROW_S * len(batch["x"]))
        return super().infer(batch)


MODELS: dict[str, type[bp.Model]] = {"idle": Affine, "device": Device}


@serve.deployment(max_ongoing_requests=1000, logging_config=_QUIET)
class Batched:
    """A model behind `serve.batch`."""

    def __init__(self, kind: str) -> None:
        self._model: Any = MODELS[kind]()

    @serve.batch(max_batch_size=_MAX_BATCH, batch_wait_timeout_s=_WAIT_MS / 1000)
    async def of_batch(self, rows: Any) -> Any:
        return list(self._model.infer({"x": np.stack(rows)})["y"])

    async def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": await self.of_batch(row["x"])}


def deployed(kind: str) -> dict[str, Any]:
    """{way: handle} of one model."""
    model = MODELS[kind]
    words = ["--model", f"bench.support.models:{model.__name__}"]
    if kind == "device":
        words = ["--model", f"bench.ray_serve:{model.__name__}"]
    words += ["--devices", "cpu", "--max-batch", str(_MAX_BATCH), "--max-wait-ms", str(_WAIT_MS)]
    pool = PoolDeployment.options(logging_config=_QUIET).bind(serve=words)
    batched = Batched.bind(kind)  # type: ignore[attr-defined]  # the decorator adds it
    return {
        way: serve.run(app, name=f"{way}-{kind}", route_prefix=None)
        for way, app in (("pool", pool), ("batch", batched))
    }


def replica_pids(app: str) -> list[int]:
    """The replica of an application, and all processes below it."""
    parents: dict[int, int] = {}
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                title = file.read()
            with open(f"/proc/{name}/stat", "rb") as file:
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:
            continue
        if title.startswith(f"ray::ServeReplica:{app}:".encode()):
            found.append(int(name))
    for pid in found:  # which grows
        found += [child for child, parent in parents.items() if parent == pid]
    return found


async def calls(handle: Any, n: int, in_flight: int) -> list[float]:
    """n calls, so many at a time; the seconds of each. SystemExit for a wrong answer."""
    room = asyncio.Semaphore(in_flight)
    took_s: list[float] = []

    async def one(number: int) -> None:
        x = np.full(WIDTH, number, np.float32)
        async with room:
            begun_s = time.monotonic()
            outputs = await handle.remote({"x": x})
            took_s.append(time.monotonic() - begun_s)
        if not np.array_equal(outputs["y"], x * 2 + 1):
            raise SystemExit(f"call {number} has the answer {outputs['y'][:4]}")

    await asyncio.gather(*map(one, range(n)))
    return took_s


def one_round(handle: Any, app: str, n: int, in_flight: int) -> dict[str, float]:
    pids = replica_pids(app)
    before = {pid: cpu_seconds(pid) for pid in [*pids, os.getpid()]}
    begun_s = time.monotonic()
    took_s = asyncio.run(calls(handle, n, in_flight))
    wall_s = time.monotonic() - begun_s
    used = {pid: cpu_seconds(pid) - seconds for pid, seconds in before.items()}
    driver_s = used.pop(os.getpid())
    return {
        "calls/s": n / wall_s,
        "p50 ms": percentile(took_s, 0.5) * 1e3,
        "p99 ms": percentile(took_s, 0.99) * 1e3,
        "CPU us a call, replica": sum(used.values()) / n * 1e6,
        "CPU us a call, driver": driver_s / n * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=3000, help="of a round")
    parser.add_argument("--in-flight", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", metavar="FILE.json")
    args = parser.parse_args()
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    rows: dict[str, Any] = {"ray": version_of("ray")}
    with tempfile.TemporaryDirectory(prefix="bp-ray-") as folder:
        ray.init(
            num_cpus=8, include_dashboard=False, object_store_memory=256 << 20,
            log_to_driver=False, _temp_dir=folder,
        )  # fmt: skip
        try:
            for kind in MODELS:
                rows |= compared(kind, args)
        finally:
            serve.shutdown()
            ray.shutdown()
    report(f"calls of a Ray Serve handle, {args.in_flight} at a time", rows, args.save)


def compared(kind: str, args: argparse.Namespace) -> dict[str, Any]:
    """{figure: its spread} of both ways with one model."""
    handles = deployed(kind)
    found: dict[str, list[dict[str, float]]] = {way: [] for way in handles}
    for number in range(args.rounds + 1):  # the first one warms up
        for way in sorted(handles, reverse=number % 2 == 1):
            figures = one_round(handles[way], f"{way}-{kind}", args.calls, args.in_flight)
            if number:
                found[way].append(figures)
    for way in handles:
        serve.delete(f"{way}-{kind}")
    return {
        f"{kind}, {way}, {name}": spread([figures[name] for figures in rounds], 1)
        for name in next(iter(found.values()))[0]
        for way, rounds in found.items()
    }


if __name__ == "__main__":
    main()
