"""Where a lone row's time goes: the wake-ups alone, the real road, the work of each step.

    python -m bench.hops [--rows 3000] [--save FILE.json]

Part 1, the floor that the kernel sets: an eventfd token goes round through four processes that
do nothing. Part 2: a lone row y = 2x + 1 through a real pool, seen by its client (submit, wait,
take). Part 3: the same row through port, batcher and worker in one process, where no wake-up
costs anything: the work of each step.
"""

from __future__ import annotations

import argparse
import itertools
import os
import select
import subprocess
import sys
import time
from typing import Any

import numpy as np

from batchpool.client.port import Port
from batchpool.client.session import Session
from batchpool.core.batching import Limits
from batchpool.core.layout import lane_layout, worker_layout
from batchpool.core.tensors import check_rows
from batchpool.model import spec_of
from batchpool.pool.admission import AdmittedLane
from batchpool.pool.batcher import Batcher, ModelQueue
from batchpool.pool.crew import CrewMember
from batchpool.pool.runner import NumpyRunner
from batchpool.pool.worker import Worker
from batchpool.shm import segment
from batchpool.shm.lane import Lane
from batchpool.shm.records import Records
from bench.machine import percentile, report
from bench.models import WIDTH, Affine
from bench.serving import serving


def pass_on(hear: int, ring: int) -> None:
    """One process of the chain."""
    poll = select.poll()
    poll.register(hear, select.POLLIN)
    while poll.poll():
        os.eventfd_read(hear)
        os.eventfd_write(ring, 1)


def chain_us(count: int, hops: int = 4) -> list[float]:
    """Round trips of a token through `hops` wake-ups, the last one ours."""
    bells = [os.eventfd(0) for _ in range(hops)]
    links = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.hops", "--link", str(a), str(b)], pass_fds=[a, b]
        )
        for a, b in itertools.pairwise(bells)
    ]
    took = []
    try:
        for _ in range(count):
            start = time.perf_counter()
            os.eventfd_write(bells[0], 1)
            os.eventfd_read(bells[-1])
            took.append((time.perf_counter() - start) * 1e6)
    finally:
        for link in links:
            link.kill()
            link.wait()
    return took[count // 10 :]


def hops_us(path: str, count: int) -> dict[str, list[float]]:
    """Each hop of `count` lone rows. A session of its own, so that time stamps can be read."""
    session = Session.connect(path)
    port = session.open_port("affine")
    x = np.random.default_rng(1).standard_normal((1, WIDTH), dtype=np.float32)
    poll = select.poll()
    poll.register(session.bell.fd, select.POLLIN)
    took: dict[str, list[float]] = {k: [] for k in ("submit", "wait", "take", "total")}
    for _ in range(count):
        start = time.monotonic_ns()
        rows = check_rows(port.spec, {"x": x})
        pending = port.submit(rows, start, start + 10**10)
        port.flush()
        session.ring()
        submitted = time.monotonic_ns()
        finished: list[Any] = []
        while not finished:
            poll.poll(1000)
            session.bell.clear()
            finished = port.reap(time.monotonic_ns())
        done = time.monotonic_ns()
        y = port.result(pending)["y"]
        end = time.monotonic_ns()
        if not np.array_equal(y, x * 2 + 1):
            raise SystemExit("wrong answer")
        for name, a, b in (
            ("submit", start, submitted),
            ("wait", submitted, done),
            ("take", done, end),
            ("total", start, end),
        ):
            took[name].append((b - a) / 1e3)
    session.close()
    return {name: values[count // 10 :] for name, values in took.items()}


def steps_us(count: int) -> dict[str, list[float]]:
    """The work of each step of `count` lone rows, all in this process."""
    spec = spec_of(Affine)
    layout = lane_layout(spec, 1024)
    fd = segment.create(layout, sealed=True)
    crew_layout = worker_layout(64, 8)
    crew_fd = segment.create(crew_layout, sealed=False)

    def records() -> Records:
        return Records(segment.map_checked(crew_fd, crew_layout), crew_layout)

    def lane() -> Lane:
        return Lane(spec, segment.map_checked(fd, layout), layout)

    own = records()
    worker = Worker(spec, own, NumpyRunner(Affine()), lambda: None, time.monotonic_ns)
    worker.add_lane(0, 1, lane())
    own.ready.set(1)
    batcher = Batcher([ModelQueue("affine", Limits(64, 0))], 8)
    batcher.add_lane(AdmittedLane(0, 1, 0, lane(), lambda: None))
    batcher.add_worker(CrewMember(0, 0, records(), lambda: None))
    port = Port(lane())
    x = np.ones((1, WIDTH), dtype=np.float32)
    took: dict[str, list[float]] = {}
    for _ in range(count):
        at = time.perf_counter_ns()
        now_ns = time.monotonic_ns()
        pending: Any = None

        def lap(name: str) -> None:
            nonlocal at
            took.setdefault(name, []).append((time.perf_counter_ns() - at) / 1e3)
            at = time.perf_counter_ns()

        pending = port.submit(check_rows(spec, {"x": x}), now_ns, now_ns + 10**10)
        port.flush()
        lap("client: submit")
        batcher.step(now_ns)
        lap("batcher: admit, dispatch")
        while worker.step():
            pass
        lap("worker: launch, finish")
        batcher.step(now_ns)
        lap("batcher: complete")
        port.reap(now_ns)
        if not np.array_equal(port.result(pending)["y"], x * 2 + 1):
            raise SystemExit("wrong answer")
        lap("client: reap, take")
    return {name: values[count // 10 :] for name, values in took.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--save")
    args = parser.parse_args()
    rows: dict[str, Any] = {}
    floor = chain_us(args.rows)
    rows["four wake-ups, no work: p50, p99 us"] = [
        round(percentile(floor, 0.5), 1),
        round(percentile(floor, 0.99), 1),
    ]
    with serving(["bench.models:Affine"], "--max-wait-ms", "0", "--frontends", "1") as served:
        for name, values in hops_us(served.socket, args.rows).items():
            rows[f"{name}: p50, p99 us"] = [
                round(percentile(values, 0.5), 1),
                round(percentile(values, 0.99), 1),
            ]
    for name, values in steps_us(args.rows).items():
        rows[f"work of {name}: p50 us"] = round(percentile(values, 0.5), 1)
    report("Hops of a lone row through the pool", rows, args.save)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--link"]:
        pass_on(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
