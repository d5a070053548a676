"""The cost of one row in the batcher: its own steps without waiting, clients and workers.

    python -m bench.batcher_cost [--groups 1 8 28 64 256] [--lanes 1 4] [--turns 2000] [--save F]

A real batcher with real lanes and records in one process. In each turn every lane gets a group of
rows; the batcher admits and dispatches them, each worker "runs" its batches, and the batcher
completes them. Only its own steps are timed, in CPU time of the thread.
"""

from __future__ import annotations

import argparse
import os
import time

import numpy as np

from batchpool.batcher.batcher import Batcher
from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.model_queue import ModelQueue
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.client.lane_client import LaneClient
from batchpool.core.layout.segments import lane_layout, worker_layout
from batchpool.core.layout.states import BatchOutcome
from batchpool.core.scheduler.decide import Limits
from batchpool.core.tensors.rows import Rows
from batchpool.model import spec_of
from batchpool.shm.lane import Lane
from batchpool.shm.segment import create, map_checked
from batchpool.shm.worker_segment import WorkerSegment
from bench.support.machine import report, spread
from bench.support.models import WIDTH, Affine

_SLOTS = 4096
_MAX_LANES = 16


class _Worker:
    """Finishes every batch at once without looking at its rows."""

    def __init__(self, worker_segment: WorkerSegment) -> None:
        self._worker_segment = worker_segment
        self._sq, self._cq = worker_segment.sq_consumer(), worker_segment.cq_producer()

    def run(self) -> None:
        worker_segment = self._worker_segment
        entries = self._sq.peek()
        for entry in entries.tolist():
            record = entry & 0xFFFFFFFF
            token = int(worker_segment.token[record])
            worker_segment.launched.set(token)
            worker_segment.extents[record] = 1
            worker_segment.outcome[record] = int(BatchOutcome.OK)
            worker_segment.finished[record] = token
            self._cq.push_few([record | (token & 0xFFFFFFFF) << 32])
        self._sq.advance(len(entries))


class _Pool:
    def __init__(self, lanes: int, workers: int, max_batch: int) -> None:
        spec = spec_of(Affine)
        limits = Limits(max_batch, 0)
        self.batcher = Batcher([ModelQueue(spec.name, limits)], _MAX_LANES)
        self.workers: list[_Worker] = []
        self.lane_clients: list[LaneClient] = []
        layout, of_worker = lane_layout(spec, _SLOTS), worker_layout(max_batch, _MAX_LANES)
        for number in range(1, workers + 1):
            fd = create(of_worker, sealed=False)
            proxy = WorkerProxy(
                number,
                0,
                WorkerSegment(map_checked(fd, of_worker), of_worker),
                lambda: None,
            )
            theirs = WorkerSegment(map_checked(fd, of_worker), of_worker)
            os.close(fd)
            for lane in range(lanes):
                theirs.lanes[lane] = lane + 1
            theirs.ready.set(1)
            self.batcher.add_worker(proxy)
            self.workers.append(_Worker(theirs))
        for number in range(lanes):
            fd = create(layout, sealed=False)
            lane_here = Lane(spec, map_checked(fd, layout), layout)
            self.lane_clients.append(LaneClient(Lane(spec, map_checked(fd, layout), layout)))
            os.close(fd)
            self.batcher.add_lane(
                AdmittedLane(number, number + 1, 0, lane_here, lambda: None, own_flow=False)
            )


def costs_us(group: int, lanes: int, workers: int, max_batch: int, turns: int) -> list[float]:
    """CPU microseconds of the batcher per row, one figure a turn."""
    pool = _Pool(lanes, workers, max_batch)
    row = Rows(1, {"x": np.zeros((1, WIDTH), np.float32)}, {})
    found = []
    for turn in range(turns):
        for lane_client in pool.lane_clients:
            now_ns = time.monotonic_ns()
            for _ in range(group):
                lane_client.submit(row, now_ns, now_ns + 30_000_000_000, flow=1)
            lane_client.flush()
        spent_ns = 0
        left = group * lanes
        while left:
            start_ns = time.thread_time_ns()
            pool.batcher.step(time.monotonic_ns())
            spent_ns += time.thread_time_ns() - start_ns
            for worker in pool.workers:
                worker.run()
            now_ns = time.monotonic_ns()
            for lane_client in pool.lane_clients:
                for pending in lane_client.reap(now_ns):
                    left -= 1
                    lane_client.release(pending)
        if turn >= turns // 10:
            found.append(spent_ns / (group * lanes) / 1e3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 8, 28, 64, 256])
    parser.add_argument("--lanes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--max-batch", type=int, default=64)
    parser.add_argument("--turns", type=int, default=500)
    parser.add_argument("--save")
    args = parser.parse_args()
    rows = {}
    for lanes in args.lanes:
        for group in args.groups:
            found = costs_us(group, lanes, args.workers, args.max_batch, args.turns)
            rows[f"us a row, {lanes} lanes, groups of {group}"] = spread(found, 2)
    report(f"batcher, max_batch {args.max_batch}, {args.workers} workers", rows, args.save)


if __name__ == "__main__":
    main()
