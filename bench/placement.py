"""The gain from pinning the pool's processes to cores: a pool pinned and free, in turns.

    python -m bench.placement [--device 0|cpu] [--frontends 8] [--connections 512 1024]
                              [--rounds 4] [--seconds 2] [--save FILE.json]

The MLP over HTTP, raw bodies of 2 KiB, a closed loop with wrk, every answer judged. `free`: the
kernel places every thread. `pinned`: worker and batcher have a core each (of the GPU's NUMA node,
where the machine has several), each front end has one, the load generator has what is left. `load
apart`: only the load generator is kept from the pool's cores.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

import batchpool as bp
from batchpool.examples.mlp import MLP
from bench.load.http_load import Plan, run_wrk
from bench.scaling.http import head_of
from bench.scaling.workloads import FLOOR, WORKLOADS
from bench.support.machine import report, spread
from bench.support.serving import serving

_WAYS = ("free", "pinned", "load apart")
_PCI = Path("/sys/bus/pci/devices")


def place(pid: int, cores: set[int]) -> None:
    """All threads that a process has now."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), cores)


def numa_nodes() -> dict[str, list[int]]:
    """The cores of every NUMA node, by its name."""
    found = {}
    for path in sorted(Path("/sys/devices/system/node").glob("node[0-9]*")):
        cores: list[int] = []
        for part in (path / "cpulist").read_text().strip().split(","):
            first, _, last = part.partition("-")
            cores += range(int(first), int(last or first) + 1)
        found[path.name] = cores
    return found


def gpu_nodes() -> dict[str, str]:
    """The NUMA node of each NVIDIA device on the PCI bus; -1: the kernel does not know it."""
    return {
        path.parent.name: (path.parent / "numa_node").read_text().strip()
        for path in sorted(_PCI.glob("*/vendor"))
        if path.read_text().strip() == "0x10de"
    }


def answers(device: str, rows: np.ndarray) -> np.ndarray:
    model = MLP()
    model.load(device)
    with torch.inference_mode():
        batch = cast(bp.Batch, {"x": torch.from_numpy(rows).to(device)})
        y: np.ndarray = model.infer(batch)["y"].cpu().numpy()
    return y


class Scene:
    """A pool, its processes' cores, and the load."""

    def __init__(self, stack: ExitStack, args: argparse.Namespace) -> None:
        self._cores = sorted(os.sched_getaffinity(0))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        rows = WORKLOADS["mlp"].make_rows()[:256]
        right = answers("cpu" if args.device == "cpu" else f"cuda:{args.device}", rows)
        np.save(f"{folder}/rows.npy", rows)
        np.save(f"{folder}/right.npy", right)
        flags = ["--devices", args.device, "--frontends", str(args.frontends), "--max-batch", "256"]
        served = stack.enter_context(serving(["batchpool.examples.mlp:MLP"], *flags))
        self._pids = served.pids()
        self.plan = Plan(
            port=served.port,
            path="/v2/models/mlp/infer",
            rows=f"{folder}/rows.npy",
            right=f"{folder}/right.npy",
            tolerance=2 * FLOOR * float(np.abs(right).max()),
            head="",
            connections=0,
            seconds=args.seconds,
        )
        self.plan = Plan(**{**vars(self.plan), "head": head_of(self.plan)})

    def arrange(self, way: str) -> int:
        """Place the pool's processes and this one, whose children the load generators are; how
        many cores the load may use."""
        theirs = [name for name in self._pids if name.startswith(("worker", "batcher", "frontend"))]
        theirs.sort(key=lambda name: ("worker", "batcher", "frontend").index(name.split()[0]))
        if len(theirs) >= len(self._cores):
            raise SystemExit(f"{len(theirs)} processes and {len(self._cores)} cores: too few")
        ours = set(self._cores[: len(theirs)])
        rest = set(self._cores[len(theirs) :])
        for core, name in zip(self._cores, theirs, strict=False):
            cores = {"free": set(self._cores), "pinned": {core}, "load apart": ours}[way]
            place(self._pids[name], cores)
        os.sched_setaffinity(0, set(self._cores) if way == "free" else rest)
        return len(rest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="0")
    parser.add_argument("--frontends", type=int, default=8)
    parser.add_argument("--connections", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--save")
    args = parser.parse_args()
    rates: dict[str, list[float]] = {}
    p99s: dict[str, list[float]] = {}
    with ExitStack() as stack:
        scene = Scene(stack, args)
        for _ in range(args.rounds):
            for connections in args.connections:
                for way in _WAYS:
                    threads = min(scene.arrange(way), 6)
                    plan = Plan(**{**vars(scene.plan), "connections": connections})
                    seen = run_wrk(plan, threads)
                    if seen.wrong or seen.failed:
                        raise SystemExit(f"{way}: {seen.wrong} wrong, {seen.failed} failed")
                    name = f"{connections} connections, {way}"
                    rates.setdefault(name, []).append(seen.rate_per_s)
                    p99s.setdefault(name, []).append(seen.p99_ms)
                    print(f"{name}: {seen.rate_per_s:,.0f}/s, p99 {seen.p99_ms:.1f} ms", flush=True)
        scene.arrange("free")  # also of this process, which tells how many cores it has
    rows: dict[str, Any] = {"NUMA nodes": numa_nodes(), "GPUs' nodes": gpu_nodes()}
    for name, values in rates.items():
        rows[f"{name}: requests/s"] = spread(values)
        rows[f"{name}: p99 ms"] = spread(p99s[name], 1)
    for connections in args.connections:
        free = rates[f"{connections} connections, free"]
        for way in _WAYS[1:]:
            name = f"{connections} connections, {way}"
            ratios = [a / b for a, b in zip(rates[name], free, strict=True)]
            rows[f"{name} / free"] = spread(ratios, 3)
    report("Placement of the pool's processes", rows, args.save)


if __name__ == "__main__":
    main()
