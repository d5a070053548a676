"""The batcher's cost of small batches over several lanes, by step, without clients and workers.

    python -m bench.batcher_small_batches [--stages 2 1] [--lanes 1 4 8] [--rows 4 8 16]
                                          [--turns 2000] [--rounds 5] [--profile] [--save FILE.json]

A real batcher with real lanes, records and bells in one process, of a model with `preprocess` and
`infer`, or with `infer` alone. In each turn so many rows come in, spread evenly over the lanes, and
become one batch of each stage. CPU time of the batcher's thread, in us of a turn:

    in      rows are admitted, decided upon and dispatched to their first stage
    onward  a batch of the first stage has ended: its rows are queued for the next one, and sent
    out     a batch of the last stage has ended: its rows are completed and their clients rung
    quiet   a step in which nothing has happened

--profile: which functions take the time, of the last case; the interpreted build only.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import os
import pstats
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

import batchpool as bp
from batchpool.batcher.batcher import Batcher
from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.model_queue import ModelQueue
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.client.lane_client import LaneClient
from batchpool.core.layout.segments import lane_layout, worker_layout
from batchpool.core.layout.stage_numbers import stage_number
from batchpool.core.layout.states import BatchOutcome
from batchpool.core.scheduler.decide import Limits
from batchpool.core.tensors.rows import Rows
from batchpool.core.tensors.spec import ModelSpec
from batchpool.core.tensors.stages import stage_spec, stages_of
from batchpool.model import spec_of
from batchpool.shm.doorbell import Doorbell
from batchpool.shm.lane import Lane
from batchpool.shm.segment import create, map_checked
from batchpool.shm.worker_segment import WorkerSegment
from bench.support.machine import report, spread
from bench.support.models import WIDTH, Affine

_SLOTS, _MAX_LANES, _MAX_BATCH = 1024, 64, 256
_PREPROCESSORS = 6
_STEPS = ("in", "onward", "out", "quiet")


class _Staged(bp.Model):
    """As a tokenizer and an encoder; nothing runs."""

    framework = "numpy"
    inputs = (bp.Tensor("x", "float32", (WIDTH,)),)
    features = (bp.Tensor("ids", "int32", (bp.Dim(max=256),)),)
    outputs = (bp.Tensor("y", "float32", (WIDTH,)),)

    def preprocess(self, batch: bp.Batch) -> Mapping[str, Any]:
        raise NotImplementedError

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        raise NotImplementedError


class _Worker:
    """Finishes every batch at once without looking at its rows."""

    def __init__(self, segment: WorkerSegment) -> None:
        self._segment = segment
        self._sq, self._cq = segment.sq_consumer(), segment.cq_producer()

    def run(self) -> int:
        segment, entries = self._segment, self._sq.peek()
        for entry in entries.tolist():
            record = entry & 0xFFFFFFFF
            token = segment.token_of[record]
            segment.launched.set(token)
            segment.extents_of[record] = 1
            segment.outcome_of[record] = int(BatchOutcome.OK)
            segment.finished_of[record] = token
            self._cq.push_few([record | (token & 0xFFFFFFFF) << 32])
        self._sq.advance(len(entries))
        return len(entries)


class _Pool:
    """A batcher of one model with its workers and lanes."""

    def __init__(self, spec: ModelSpec, lanes: int) -> None:
        self.batcher = Batcher([], _MAX_LANES)
        self.stages: list[list[_Worker]] = []
        self.lane_clients: list[LaneClient] = []
        self.spent_ns = dict.fromkeys(_STEPS, 0)
        numbers = [stage_number(0, stage) for stage in stages_of(spec)]
        earlier: ModelQueue | None = None
        for number, stage in zip(numbers, stages_of(spec), strict=True):
            limits = Limits(_MAX_BATCH, 0).of_stage(stage_spec(spec, stage))
            model = ModelQueue(spec.name, limits, stage=stage)
            if earlier is not None:
                model.follow(earlier)
            self.batcher.add_model(number, model)
            earlier = model
            workers = 1 if stage is stages_of(spec)[-1] else _PREPROCESSORS
            self.stages.append([self._worker(number, lanes) for _ in range(workers)])
        layout = lane_layout(spec, _SLOTS)
        for number in range(lanes):
            fd = create(layout, sealed=False)
            here, there = (Lane(spec, map_checked(fd, layout), layout) for _ in range(2))
            os.close(fd)
            self.lane_clients.append(LaneClient(there))
            bell = Doorbell()
            self.batcher.add_lane(
                AdmittedLane(number, number + 1, numbers[0], here, bell.ring, own_flow=False)
            )

    def _worker(self, model: int, lanes: int) -> _Worker:
        layout = worker_layout(_MAX_BATCH, _MAX_LANES)
        fd = create(layout, sealed=False)
        here, there = (WorkerSegment(map_checked(fd, layout), layout) for _ in range(2))
        os.close(fd)
        for lane in range(lanes):
            there.lanes[lane] = lane + 1
        there.ready.set(1)
        number, bell = len(self.batcher.workers.by_number) + 1, Doorbell()
        self.batcher.add_worker(WorkerProxy(number, model, here, bell.ring))
        return _Worker(there)

    def step(self, of: str) -> None:
        start_ns = time.thread_time_ns()
        self.batcher.step(time.monotonic_ns())
        self.spent_ns[of] += time.thread_time_ns() - start_ns

    def turn(self, rows: int, row: Rows) -> None:
        """So many rows come in and go through all stages in one batch each."""
        lanes = self.lane_clients[: min(rows, len(self.lane_clients))]
        now_ns = time.monotonic_ns()
        for lane_client in lanes:
            for _ in range(rows // len(lanes)):
                lane_client.submit(row, now_ns, now_ns + 30_000_000_000, flow=1)
            lane_client.flush()
        self.step("in")
        for workers in self.stages:
            batches = sum(worker.run() for worker in workers)
            assert batches == 1, f"{rows} rows became {batches} batches"
            self.step("out" if workers is self.stages[-1] else "onward")
        done, now_ns = 0, time.monotonic_ns()
        for lane_client in lanes:
            for pending in lane_client.reap(now_ns):
                lane_client.release(pending)
                done += 1
        assert done == rows, f"{done} of {rows} rows are done"
        self.step("quiet")


def costs_us(pool: _Pool, rows: int, turns: int) -> dict[str, float]:
    """CPU microseconds of the batcher of a turn, by step."""
    row = Rows(1, {"x": np.zeros((1, WIDTH), np.float32)}, {})
    for _ in range(turns // 10):
        pool.turn(rows, row)
    pool.spent_ns = dict.fromkeys(_STEPS, 0)
    gc.disable()
    for _ in range(turns):
        pool.turn(rows, row)
    gc.enable()
    return {of: ns / turns / 1e3 for of, ns in pool.spent_ns.items()}


def measure(
    cases: Sequence[tuple[int, int, int]], turns: int, rounds: int
) -> dict[str, dict[str, Any]]:
    """The costs of each case (stages, lanes, rows), the cases in turns."""
    specs = {1: spec_of(Affine), 2: spec_of(_Staged)}
    pools = {(stages, lanes): _Pool(specs[stages], lanes) for stages, lanes, _ in cases}
    found: dict[tuple[int, int, int], list[dict[str, float]]] = {case: [] for case in cases}
    for _ in range(rounds):
        for case in cases:
            stages, lanes, rows = case
            found[case].append(costs_us(pools[stages, lanes], rows, turns))
    table = {}
    for (stages, lanes, rows), each in found.items():
        used, sums = min(lanes, rows), [sum(us.values()) - us["quiet"] for us in each]
        parts = {of: round(median(us[of] for us in each), 1) for of in _STEPS}
        table[f"{stages} stages, {lanes} lanes, {rows} rows"] = {
            "a batch": spread([us / stages for us in sums], 1),
            "a row": round(median(sums) / rows, 2),
            "a batch and lane": round(median(sums) / stages / used, 1),
            **{of: us for of, us in parts.items() if of != "onward" or stages > 1},
        }
    return table


def profile(stages: int, lanes: int, rows: int, turns: int) -> None:
    pool = _Pool(spec_of(_Staged if stages == 2 else Affine), lanes)
    row = Rows(1, {"x": np.zeros((1, WIDTH), np.float32)}, {})
    profiler, inner = cProfile.Profile(), pool.batcher.step
    pool.turn(rows, row)
    vars(pool.batcher)["step"] = lambda now_ns: profiler.runcall(inner, now_ns)
    for _ in range(turns):
        pool.turn(rows, row)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(40)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.batcher_small_batches",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--stages", type=int, nargs="+", default=[2, 1], choices=(1, 2))
    parser.add_argument("--lanes", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--rows", type=int, nargs="+", default=[4, 8, 16], help="of a batch")
    parser.add_argument("--turns", type=int, default=500, help="of each case in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--save")
    args = parser.parse_args()
    cases = [(s, lanes, n) for s in args.stages for lanes in args.lanes for n in args.rows]
    if args.profile:
        profile(*cases[-1], args.turns)
        return
    table = measure(cases, args.turns, args.rounds)
    report("batcher, small batches: us of CPU time", table, args.save)


if __name__ == "__main__":
    main()
