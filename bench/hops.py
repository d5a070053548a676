"""Where a lone row's time goes: the wake-ups alone, a real call, the work of each step.

    python -m bench.hops [--rows 3000] [--save FILE.json]

Part 1, the floor that the kernel sets: an eventfd token goes round through four processes that
do nothing. Part 2: a lone row y = 2x + 1 through a real pool, seen by its client (submit, wait,
take). Part 3: the same row through lane client, batcher and worker in one process, where no wake-up
costs anything: the work of each step. Then the batcher's work for groups of such rows, from one
lane and from many, and what quiet lanes cost it.
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

from batchpool.batcher.batcher import Batcher
from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.model_queue import ModelQueue
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.client.lane_client import LaneClient
from batchpool.client.session import Session
from batchpool.core.config.schema import ModelConfig
from batchpool.core.layout.segments import lane_layout, worker_layout
from batchpool.core.scheduler.decide import Limits
from batchpool.core.tensors.rows import check_rows
from batchpool.model import spec_of
from batchpool.shm import segment
from batchpool.shm.lane import Lane
from batchpool.shm.worker_segment import WorkerSegment
from batchpool.worker.backends.cpu import NumpyBackend
from batchpool.worker.worker import Worker
from bench.support.machine import percentile, report
from bench.support.models import WIDTH, Affine
from bench.support.serving import serving

POLICY = ModelConfig(import_name="bench.support.models:Affine")
# Of part 3: title, rows of a group, lanes they come from, lanes beside them that are quiet.
GROUPS = (
    ("1 row", 1, 1, 0),
    ("16 rows", 16, 1, 0),
    ("64 rows", 64, 1, 0),
    ("16 rows, 16 lanes", 16, 16, 0),
    ("1 row, 33 lanes", 1, 1, 32),
)


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
    lane_client = session.open_lane_client("affine")
    x = np.random.default_rng(1).standard_normal((1, WIDTH), dtype=np.float32)
    poll = select.poll()
    poll.register(session.bell.fd, select.POLLIN)
    took: dict[str, list[float]] = {k: [] for k in ("submit", "wait", "take", "total")}
    for _ in range(count):
        start = time.monotonic_ns()
        rows = check_rows(lane_client.spec, {"x": x})
        pending = lane_client.submit(rows, start, start + 10**10)
        lane_client.flush()
        session.ring()
        submitted = time.monotonic_ns()
        finished: list[Any] = []
        while not finished:
            poll.poll(1000)
            session.bell.clear()
            finished = lane_client.reap(time.monotonic_ns())
        done = time.monotonic_ns()
        y = lane_client.result(pending)["y"]
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


class OneProcess:
    """Lane clients, the batcher and a worker in this process, with the policy of a pool."""

    def __init__(self, lanes: int) -> None:
        spec = self.spec = spec_of(Affine)
        self.took: dict[str, list[float]] = {}
        self.batcher = Batcher([ModelQueue("affine", Limits.of(POLICY))], lanes)
        records_layout = worker_layout(64, lanes)
        worker_fd = segment.create(records_layout, sealed=False)

        def worker_segment() -> WorkerSegment:
            return WorkerSegment(segment.map_checked(worker_fd, records_layout), records_layout)

        own = worker_segment()
        self.worker = Worker(spec, own, NumpyBackend(Affine()), lambda: None, time.monotonic_ns)
        own.ready.set(1)
        self.batcher.add_worker(WorkerProxy(0, 0, worker_segment(), lambda: None))
        self.lane_clients = [self._add_lane(number) for number in range(lanes)]

    def _add_lane(self, number: int) -> LaneClient:
        layout = lane_layout(self.spec, 1024)
        fd = segment.create(layout, sealed=True)

        def lane() -> Lane:
            return Lane(self.spec, segment.map_checked(fd, layout), layout)

        self.worker.add_lane(number, number + 1, lane())
        self.batcher.add_lane(AdmittedLane(number, number + 1, 0, lane(), lambda: None))
        lane_client = LaneClient(lane())
        os.close(fd)
        return lane_client

    def group(self, rows: int, lane_clients: list[LaneClient]) -> None:
        """`rows` requests of one row come together, over these lane clients by turns."""
        rows_of = [check_rows(self.spec, {"x": np.full((1, WIDTH), i, "f4")}) for i in range(rows)]
        pending: list[tuple[LaneClient, Any]] = []
        self._at = time.perf_counter_ns()
        now_ns = time.monotonic_ns()
        for i in range(rows):
            lane_client = lane_clients[i % len(lane_clients)]
            pending.append((lane_client, lane_client.submit(rows_of[i], now_ns, now_ns + 10**10)))
        for lane_client in lane_clients:
            lane_client.flush()
        self._lap("client: submit")
        self.batcher.step(now_ns)
        self._lap("batcher: admit, dispatch")
        while not self.worker.step():  # the policy may wait for company
            self.batcher.step(time.monotonic_ns())
        while self.worker.step():
            pass
        self._lap("worker: launch, finish")
        self.batcher.step(time.monotonic_ns())
        self._lap("batcher: complete")
        done = [p for lane_client in lane_clients for p in lane_client.reap(now_ns)]
        found = [lane_client.result(p)["y"] for lane_client, p in pending]
        self._lap("client: reap, take")
        if len(done) != rows or any((y != 2 * i + 1).any() for i, y in enumerate(found)):
            raise SystemExit("wrong answer")

    def nothing(self) -> None:
        """A step that finds nothing to do."""
        self._at = time.perf_counter_ns()
        self.batcher.step(time.monotonic_ns())
        self._lap("batcher: nothing to do")

    def _lap(self, name: str) -> None:
        now = time.perf_counter_ns()
        self.took.setdefault(name, []).append((now - self._at) / 1e3)
        self._at = time.perf_counter_ns()


def steps_us(count: int, rows: int = 1, lanes: int = 1, quiet: int = 0) -> dict[str, list[float]]:
    """The work of each step for `count` groups of so many rows, over so many lanes, with others
    that are quiet."""
    pool = OneProcess(lanes + quiet)
    for _ in range(count):
        pool.group(rows, pool.lane_clients[:lanes])
        pool.nothing()
    return {name: values[count // 10 :] for name, values in pool.took.items()}


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
    with serving(
        ["bench.support.models:Affine"], "--max-wait-ms", "0", "--frontends", "1"
    ) as served:
        for name, values in hops_us(served.socket, args.rows).items():
            rows[f"{name}: p50, p99 us"] = [
                round(percentile(values, 0.5), 1),
                round(percentile(values, 0.99), 1),
            ]
    for title, n, lanes, quiet in GROUPS:
        for name, values in steps_us(max(args.rows // n, 100), n, lanes, quiet).items():
            p50_us = round(percentile(values, 0.5), 1)
            if lanes + quiet == n == 1:
                rows[f"work of {name}: p50 us"] = p50_us
            elif name.startswith("batcher: "):
                rows[f"{title}: {name.removeprefix('batcher: ')}: p50 us"] = p50_us
    report("Hops of a lone row through the pool", rows, args.save)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--link"]:
        pass_on(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
