"""Rows per second and lone-row latency of local clients; beside it the plain alternative.

    python -m bench.pool [--clients 4] [--rounds 5] [--seconds 2] [--save FILE.json]

Every answer is checked. Modes, interleaved round by round:

    submit   one row per Client.submit, 256 outstanding per client
    infer64  Client.infer of 64 rows, one after another per client
    queues   the alternative: multiprocessing queues, pickled rows, a server that batches up
             to 64; one row per request, 256 outstanding per client
    lone     one row at a time through Client.infer, one client: p50 and p99 in us

and what an idle pool costs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import deque
from typing import Any

import numpy as np

import batchpool as bp
from bench.support.machine import percentile, report, spread
from bench.support.models import WIDTH
from bench.support.serving import Served, cpu_seconds, serving

MODEL = "affine"
OUTSTANDING = 256


def rows_for(client: int, n: int = 4096) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Rows that no other client sends."""
    return np.random.default_rng(client).standard_normal((n, WIDTH), dtype=np.float32)


def run_submit(pool: bp.Client, x: Any, until: float) -> int:
    under_way: deque[Any] = deque()
    right = [row.tobytes() for row in x * 2 + 1]
    done = i = 0

    def take() -> None:
        nonlocal done
        at, future = under_way.popleft()
        if future.result()["y"].tobytes() != right[at]:
            raise SystemExit("wrong answer")
        done += 1

    while time.monotonic() < until:
        while len(under_way) >= OUTSTANDING:
            take()
        at = i % len(x)
        under_way.append((at, pool.submit(MODEL, x=x[at : at + 1])))
        i += 1
    while under_way:
        take()
    return done


def run_infer64(pool: bp.Client, x: Any, until: float) -> int:
    done = 0
    while time.monotonic() < until:
        at = done % (len(x) - 64)
        if not np.array_equal(pool.infer(MODEL, x=x[at : at + 64])["y"], x[at : at + 64] * 2 + 1):
            raise SystemExit("wrong answer")
        done += 64
    return done


def run_lone(pool: bp.Client, x: Any, until: float) -> list[float]:
    took: list[float] = []
    while time.monotonic() < until:
        at = len(took) % len(x)
        start = time.perf_counter()
        y = pool.infer(MODEL, x=x[at : at + 1])["y"]
        took.append((time.perf_counter() - start) * 1e6)
        if not np.array_equal(y[0], x[at] * 2 + 1):
            raise SystemExit("wrong answer")
    return took


def client_main(mode: str, path: str, number: int, start_at: float, seconds: float) -> None:
    """One client process: waits for the common start, prints what it got."""
    x = rows_for(number)
    with bp.Client(path) as pool:
        pool.infer(MODEL, x=x[:1])
        time.sleep(max(0.0, start_at - time.monotonic()))
        until = start_at + seconds
        if mode == "submit":
            print(json.dumps(run_submit(pool, x, until)))
        elif mode == "infer64":
            print(json.dumps(run_infer64(pool, x, until)))
        else:
            print(json.dumps(run_lone(pool, x, until)))


def run_clients(mode: str, served: Served, clients: int, seconds: float) -> list[Any]:
    start_at = time.monotonic() + 1.0 + 0.3 * clients
    command = [sys.executable, "-m", "bench.pool", "--client", mode, served.socket]
    processes = [
        subprocess.Popen(
            [*command, str(i), str(start_at), str(seconds)], stdout=subprocess.PIPE, text=True
        )
        for i in range(clients)
    ]
    answers = []
    for process in processes:
        out, _ = process.communicate(timeout=120)
        if process.returncode:
            raise SystemExit(f"a {mode} client ended with {process.returncode}")
        answers.append(json.loads(out))
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--save")
    args = parser.parse_args()
    from bench.support.queues import run_queues

    rates: dict[str, list[float]] = {"submit": [], "infer64": [], "queues": []}
    lone: dict[str, list[float]] = {"p50": [], "p99": []}
    idle: list[float] = []
    with serving(
        ["bench.support.models:Affine"], "--max-wait-ms", "0", "--frontends", "1"
    ) as served:
        for _ in range(args.rounds):
            for mode in ("submit", "infer64"):
                done = run_clients(mode, served, args.clients, args.seconds)
                rates[mode].append(sum(done) / args.seconds)
            rates["queues"].append(run_queues(args.clients, args.seconds))
            (took,) = run_clients("lone", served, 1, args.seconds)
            lone["p50"].append(percentile(took, 0.50))
            lone["p99"].append(percentile(took, 0.99))
            idle.append(idle_share(served))
    report(
        f"y = 2x + 1 on {WIDTH} floats, max batch 64, {args.clients} local clients",
        {
            "submit, 1 row, 256 outstanding: rows/s": spread(rates["submit"]),
            "infer, 64 rows: rows/s": spread(rates["infer64"]),
            "multiprocessing queues: rows/s": spread(rates["queues"]),
            "submit / queues": spread(
                [a / b for a, b in zip(rates["submit"], rates["queues"], strict=True)], 2
            ),
            "lone row p50, us": spread(lone["p50"]),
            "lone row p99, us": spread(lone["p99"]),
            "idle pool, share of a core in %": spread(idle, 2),
        },
        args.save,
    )


def idle_share(served: Served, seconds: float = 3.0) -> float:
    """CPU of all the pool's processes while nobody asks anything, in % of one core."""
    pids = list(served.pids().values())
    before = sum(map(cpu_seconds, pids))
    time.sleep(seconds)
    return (sum(map(cpu_seconds, pids)) - before) / seconds * 100


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        mode, path, number, start_at, seconds = sys.argv[2:]
        client_main(mode, path, int(number), float(start_at), float(seconds))
    else:
        main()
