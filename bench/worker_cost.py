"""The cost of one batch in the worker, step by step, without a pool.

    python -m bench.worker_cost [--model mlp|encoder|resnet] [--device cuda:0] [--rows 256]
                                [--parts 4] [--extents 1] [--eager] [--batches 400]
                                [--save FILE.json]

A real worker with real lanes and records in one process; the batcher's side fills its ring before
each step, outside the timing. Each batch has its rows from `--parts` lanes, in so many extents
of each. Beside it stands the bare loop of bench.scaling, in turns. The parts of a step are timed
by wrapping the functions that do them, which costs about 0.3 us a call; those of a compiled class
cannot be wrapped, and are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.core.layout.segments import lane_layout, worker_layout
from batchpool.core.layout.states import BatchOutcome, DispatchReason
from batchpool.core.scheduler.limits import NEVER_NS
from batchpool.core.scheduler.queue import QUEUE_COLUMNS, QueueColumn
from batchpool.model import spec_of
from batchpool.process import bootstrap
from batchpool.shm.lane import Lane
from batchpool.shm.segment import create, map_checked
from batchpool.shm.worker_segment import WorkerSegment
from batchpool.worker import worker
from batchpool.worker.backends.select import make_backend
from batchpool.worker.load import load_class
from batchpool.worker.warm_up import warm_up, warm_up_rows
from bench.scaling.bare import Bare
from bench.scaling.workloads import WORKLOADS
from bench.support.machine import report, spread

_WARM_BATCHES = 30
_IN_RING = 3


class _Timed:
    """Functions with the wall time that their calls took, in ns by name."""

    def __init__(self) -> None:
        self.spent_ns: dict[str, int] = defaultdict(int)

    def wrap(self, owner: Any, name: str, label: str) -> None:
        inner: Callable[..., Any] = getattr(owner, name)
        spent = self.spent_ns

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter_ns()
            try:
                return inner(*args, **kwargs)
            finally:
                spent[label] += time.perf_counter_ns() - start

        with contextlib.suppress(AttributeError):  # of a compiled class
            setattr(owner, name, timed)


class _Scene:
    """One worker, its lanes and what the batcher would send it."""

    def __init__(
        self, name: str, device: str, rows: int, parts: int, extents: int, *, eager: bool
    ) -> None:
        of = WORKLOADS[name]
        cls = load_class(of.import_name)
        self.spec = spec = spec_of(cls)
        model = cls()
        if eager:
            vars(model)["cuda_graphs"] = False
        model.load(device)
        self.backend = make_backend(model, spec, device, rows)
        warm_up(spec, self.backend, warm_up_rows(model, spec), (1, rows))
        layout = worker_layout(rows, parts)
        fd = create(layout, sealed=False)
        theirs = WorkerSegment(map_checked(fd, layout), layout)
        self.proxy = WorkerProxy(0, 0, WorkerSegment(map_checked(fd, layout), layout), lambda: None)
        os.close(fd)
        self.worker = worker.Worker(spec, theirs, self.backend, lambda: None, time.monotonic_ns)
        self.blocks = self._lanes(rows, parts, extents, of.make_rows())
        self.turn = 0

    def _lanes(self, rows: int, parts: int, extents: int, values: Any) -> list[Any]:
        """Lanes with four batches' worth of slots; the rows of each batch as the batcher has
        them: by lane, then slot."""
        each, turns = rows // parts, 4
        slots = max(64, 2 * each * turns)
        blocks = np.zeros((turns, QUEUE_COLUMNS, each * parts), np.int64)
        blocks[:, QueueColumn.SEQUENCE] = 1
        blocks[:, QueueColumn.DEADLINE_NS] = NEVER_NS
        layout = lane_layout(self.spec, slots)
        for number in range(parts):
            fd = create(layout, sealed=False)
            lane = Lane(self.spec, map_checked(fd, layout), layout)
            os.close(fd)
            for tensor in self.spec.inputs:
                lane.inputs[tensor.name].values[...] = np.resize(
                    values[: min(len(values), slots)], (slots, *tensor.max_shape)
                )
            lane.deadline_ns[:] = NEVER_NS
            for column in lane.outputs.values():
                column.values[...] = 0
            self.worker.add_lane(number, number + 1, lane, pinned=True)
            run = -(-each // extents)
            places = np.arange(each)
            for turn in range(turns):
                at = slice(number * each, (number + 1) * each)
                blocks[turn, QueueColumn.LANE, at] = number
                blocks[turn, QueueColumn.SLOT, at] = 2 * turn * each + places + places // run
        return list(blocks)

    def fill(self) -> None:
        """As the batcher does: take what is finished, keep the ring filled."""
        for batch in self.proxy.finished():
            if int(self.proxy.worker_segment.outcome[batch.record]) != int(BatchOutcome.OK):
                raise SystemExit("a batch failed")
            if self.proxy.worker_segment.expired_of[batch.record]:
                raise SystemExit("rows were left out as late")
            self.proxy.free(batch)
        self.proxy.advance()
        while self.proxy.in_flight < _IN_RING:
            self.turn += 1
            block = self.blocks[self.turn % len(self.blocks)]
            batch = self.proxy.prepare(block, DispatchReason.FULL, time.monotonic_ns(), 1)
            self.proxy.publish(batch)

    def run(self, batches: int) -> tuple[float, float]:
        """Wall and CPU time in us of a batch, without the batcher's side."""
        wall_ns = cpu_ns = 0
        until = int(self.worker._worker_segment.batches.get()) + batches
        while self.worker._worker_segment.batches.get() < until:
            self.fill()
            start_ns, start_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
            self.worker.step()
            wall_ns += time.perf_counter_ns() - start_ns
            cpu_ns += time.thread_time_ns() - start_cpu_ns
        return wall_ns / batches / 1e3, cpu_ns / batches / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(WORKLOADS), default="mlp")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--extents", type=int, default=1)
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs")
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save")
    args = parser.parse_args()
    scene = _Scene(args.model, args.device, args.rows, args.parts, args.extents, eager=args.eager)
    of = WORKLOADS[args.model]
    bare = Bare(of, args.device, of.make_rows())
    bare.right, _ = bare.all_answers([args.rows])
    bootstrap.settle()
    scene.run(_WARM_BATCHES)
    walls, cpus, bares = [], [], []
    for _ in range(args.rounds):
        wall, cpu = scene.run(args.batches)
        walls.append(wall)
        cpus.append(cpu)
        rows, took_s, _ = bare.loop(args.rows, time.monotonic_ns(), 0.3)
        bares.append(took_s * args.rows / rows * 1e6)
    table: dict[str, Any] = {
        "us a batch, wall": spread(walls, 1),
        "us a batch, CPU": spread(cpus, 1),
        "us a batch, bare loop": spread(bares, 1),
    }
    timed = _Timed()
    torch_backend: Any = scene.backend  # its private parts are timed
    for owner, name, label in (
        (scene.worker, "_launch", "launch, all"),
        (scene.worker, "_load", "  inputs put together"),
        (torch_backend, "fetch", "    read from the lanes by the device"),
        (torch_backend, "launch", "  backend.launch"),
        (torch_backend._model, "infer", "    the model's own call"),
        (torch_backend, "_to_host", "    copy out started"),
        (scene.worker, "_finish_oldest", "finish, all"),
        (torch_backend, "finish", "  backend.finish (waiting included)"),
        (scene.worker, "_store", "  outputs stored"),
        (scene.worker, "_publish", "  published"),
    ):
        if hasattr(owner, name):
            timed.wrap(owner, name, label)
    scene.run(args.batches)
    for label, ns in timed.spent_ns.items():
        table[label] = round(ns / args.batches / 1e3, 1)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    name = f"{args.model}, batches of {args.rows} rows from {args.parts} lanes"
    report(f"worker: {name}", table, args.save)


if __name__ == "__main__":
    main()
