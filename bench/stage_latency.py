"""Texts through a pool of two stages in virtual time: where they wait, and how many are answered.

    python -m bench.stage_latency [--callers 64 1024 4x256] [--processes 10] [--seconds 2]
                                  [--batch-us 80] [--seed 1] [--save FILE.json]

The real batcher, with real lanes, records and rings, on a clock that only this program moves, so
that the figures are the same on any machine. What stands for the rest of the pool takes so long as
was measured on 16 cores with one H200, for texts of 4 to 120 words and a tokenizer of BERT:

    a batcher's step   STEP_NS, and BATCH_US for each batch that it sends or takes back
    a wake-up          WAKE_NS from a bell to the first instruction of who sleeps there
    preprocess         CALL_NS a call and TOKEN_NS a token, a process each
    infer              LAUNCH_NS a batch on the CPU; then one batch after the other on the GPU,
                       with the times of CUDA graphs by padded rows and tokens; then COPY_NS to the
                       host, and FINISH_NS on the CPU
    a front end        TURN_NS a turn, and FRONT_NS a text on its way in, and on its way out
    a local client     the same, with CLIENT_NS a text

Callers: 64 is 64 connections in closed loops over four front ends; 4x256 is four local clients with
windows of 256 texts each. The times of a text in each part of its way are in ms: the mean, and the
99th percentile.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import os
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import mean
from typing import Any

import numpy as np

import batchpool as bp
from batchpool.batcher.batcher import Batcher
from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.model_queue import ModelQueue
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.client.lane_client import LaneClient
from batchpool.core.config.schema import ModelConfig
from batchpool.core.layout.segments import lane_layout, worker_layout
from batchpool.core.layout.stage_numbers import stage_number
from batchpool.core.layout.states import BatchOutcome
from batchpool.core.scheduler.limits import NEVER_NS, Limits
from batchpool.core.tensors.rows import Rows
from batchpool.core.tensors.stages import Stage, stage_spec, stages_of
from batchpool.model import spec_of
from batchpool.shm.lane import Lane
from batchpool.shm.segment import create, map_checked
from batchpool.shm.worker_segment import WorkerSegment
from bench.support.machine import report
from bench.support.texts import make_texts

_US = 1_000
STEP_NS, BATCH_US, WAKE_NS = 70 * _US, 80, 40 * _US
CALL_NS, TOKEN_NS = 140 * _US, 3_400
LAUNCH_NS, FINISH_NS, COPY_NS = 250 * _US, 200 * _US, 60 * _US
FRONT_NS, CLIENT_NS, TURN_NS = 25 * _US, 6 * _US, 40 * _US
_FRONTENDS, _SLOTS, _MAX_LANES, _MAX_BATCH = 4, 4096, 16, 256
_GPU = {16: (320, 3.1), 32: (330, 4.3), 64: (290, 7.2), 128: (210, 14.4), 256: (100, 31.0)}
_LEAST_NS = 400 * _US  # of a graph
_WARM = 0.2  # the share of the time before the first figures
_TOKENS_A_WORD, _MARKS, _MOST = 1.04, 2, 256


class _Texts(bp.Model):
    """As a tokenizer and an encoder; nothing runs."""

    framework = "numpy"
    inputs = (bp.Tensor("x", "float32", (1,)),)
    features = (bp.Tensor("ids", "int32", (bp.Dim(max=_MOST),)),)
    outputs = (bp.Tensor("y", "float32", (1,)),)

    def preprocess(self, batch: bp.Batch) -> dict[str, Any]:
        raise NotImplementedError

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        raise NotImplementedError


class Clock:
    """Virtual time: what is to happen, in order."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def at(self, at_ns: int, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(self.now_ns, at_ns), next(self._numbers), what))

    def run(self, until_ns: int) -> None:
        while self._events and self._events[0][0] <= until_ns:
            self.now_ns, _, what = heapq.heappop(self._events)
            what()


class Sleeper:
    """A process that sleeps until it is rung, and then works until nothing is left."""

    def __init__(self, clock: Clock, work: Callable[[], int]) -> None:
        self._clock, self._work = clock, work
        self._is_awake = self._is_rung = False
        self.busy_ns = 0

    def ring(self) -> None:
        self._is_rung = True
        if not self._is_awake:
            self._is_awake = True
            self._clock.at(self._clock.now_ns + WAKE_NS, self._go_on)

    def _go_on(self) -> None:
        if not self._is_rung:
            self._is_awake = False
            return
        self._is_rung = False
        took_ns = self._work()
        self.busy_ns += took_ns
        self._clock.at(self._clock.now_ns + took_ns, self._go_on)


class Process:
    """A worker of a stage: takes records from its ring, gives them back when their time is over."""

    def __init__(
        self, clock: Clock, pool: Pool, stage: Stage, segment: WorkerSegment, tokens: list[int]
    ) -> None:
        self._clock, self._pool, self._stage, self.segment = clock, pool, stage, segment
        self._sq, self._cq = segment.sq_consumer(), segment.cq_producer()
        self._tokens = tokens
        self._taken = 0
        self._gpu_free_ns = self._cpu_free_ns = 0
        self.batches: list[int] = []
        self.sleeper = Sleeper(clock, self._work)

    def _work(self) -> int:
        entries = self._sq.peek()
        if len(entries) <= self._taken or (self._stage is Stage.PREPROCESS and self._taken):
            return 0
        record = int(entries[self._taken]) & 0xFFFFFFFF
        if self._stage is Stage.INFER and self._taken >= 2:
            return 0
        self._taken += 1
        segment = self.segment
        n = segment.n_of[record]
        lanes, slots = segment.tickets[record, 0, :n], segment.tickets[record, 1, :n]
        segment.launched.set(segment.token_of[record])
        self.batches.append(n)
        now_ns = self._clock.now_ns
        numbers = [self._pool.text_of[int(a), int(b)] for a, b in zip(lanes, slots, strict=True)]
        self._pool.note("run", self._stage, numbers, now_ns)
        tokens = [self._tokens[number % len(self._tokens)] for number in numbers]
        if self._stage is Stage.PREPROCESS:
            took_ns = CALL_NS + TOKEN_NS * sum(tokens)
            for lane, slot, each in zip(lanes.tolist(), slots.tolist(), tokens, strict=True):
                self._pool.lanes[lane].feature_sizes[slot, 0] = each
            self._clock.at(now_ns + took_ns, lambda: self._finish(record, numbers))
            return took_ns
        start_ns = max(now_ns, self._cpu_free_ns)
        self._cpu_free_ns = start_ns + LAUNCH_NS
        self._gpu_free_ns = max(self._gpu_free_ns, self._cpu_free_ns) + _gpu_ns(n, max(tokens))
        self._clock.at(self._gpu_free_ns + COPY_NS, lambda: self._store(record, numbers))
        return self._cpu_free_ns - now_ns

    def _store(self, record: int, numbers: list[int]) -> None:
        """The outputs of a batch are on the host: they are written into their slots."""
        self._cpu_free_ns = max(self._clock.now_ns, self._cpu_free_ns) + FINISH_NS
        self.sleeper.busy_ns += FINISH_NS
        self._clock.at(self._cpu_free_ns, lambda: self._finish(record, numbers))

    def _finish(self, record: int, numbers: list[int]) -> None:
        segment, token = self.segment, self.segment.token_of[record]
        segment.extents_of[record] = 1
        segment.outcome_of[record] = int(BatchOutcome.OK)
        segment.finished_of[record] = token
        self._pool.note("queue" if self._stage is Stage.PREPROCESS else "out", self._stage,
                        numbers, self._clock.now_ns)  # fmt: skip
        self._cq.push_few([record | (token & 0xFFFFFFFF) << 32])
        self._sq.advance(1)
        self._taken -= 1
        self._pool.batcher_process.ring()
        self.sleeper.ring()


def _gpu_ns(n: int, tokens: int) -> int:
    rows = 1 << (n - 1).bit_length()
    base_us, row_us = _GPU[max(16, 1 << (tokens - 1).bit_length())]
    return max(_LEAST_NS, int((base_us + rows * row_us) * _US))


@dataclass
class Caller:
    """A client with its lane: a front end with connections, or a local one with windows."""

    lane: int
    client: LaneClient
    each_ns: int
    window: int
    to_send: list[int] = field(default_factory=list)
    left: int = 0
    sleeper: Sleeper | None = None


class Pool:
    """A batcher of one model with its processes and callers."""

    def __init__(self, processes: int, callers: str, seed: int, batch_us: int) -> None:
        self._batch_ns = batch_us * _US
        self.clock = clock = Clock()
        self.random = random.Random(seed)
        spec = spec_of(_Texts)
        config = ModelConfig("bench.stage_latency:_Texts", max_batch=_MAX_BATCH)
        self.batcher = Batcher([], _MAX_LANES)
        self.batcher_process = Sleeper(clock, self._step)
        self._wake_at_ns = NEVER_NS
        words = [len(text.split()) for text in make_texts(400)]
        tokens = [min(_MOST, int(n * _TOKENS_A_WORD) + _MARKS) for n in words]
        self.text_of: dict[tuple[int, int], int] = {}
        self.sent_ns: dict[int, int] = {}
        self._marks: dict[int, dict[str, int]] = defaultdict(dict)
        self.took: list[tuple[int, int, dict[str, int]]] = []
        self._texts = itertools.count()
        self.stages: dict[Stage, list[Process]] = {}
        earlier: ModelQueue | None = None
        for stage in stages_of(spec):
            limits = Limits.of(config, stage).of_stage(stage_spec(spec, stage))
            model = ModelQueue(spec.name, limits, stage=stage)
            if earlier is not None:
                model.follow(earlier)
            earlier = model
            self.batcher.add_model(stage_number(0, stage), model)
            count = processes if stage is Stage.PREPROCESS else 1
            self.stages[stage] = [self._process(stage, limits, tokens) for _ in range(count)]
        self.lanes: list[Lane] = []
        self.callers: list[Caller] = []
        clients, _, window = callers.partition("x")
        local = bool(window)
        layout = lane_layout(spec, _SLOTS)
        for number in range(int(clients) if local else _FRONTENDS):
            fd = create(layout, sealed=False)
            here, there = (Lane(spec, map_checked(fd, layout), layout) for _ in range(2))
            os.close(fd)
            caller = Caller(
                number, LaneClient(there), CLIENT_NS if local else FRONT_NS, int(window or 1)
            )
            caller.sleeper = Sleeper(clock, partial(self._serve, caller))
            self.callers.append(caller)
            self.lanes.append(here)
            first = stage_number(0, stages_of(spec)[0])
            ring = caller.sleeper.ring
            self.batcher.add_lane(
                AdmittedLane(number, number + 1, first, here, ring, own_flow=local)
            )
            each = 1 if local else int(clients) // _FRONTENDS
            for _ in range(each):
                clock.at(
                    clock.now_ns + self.random.randrange(5_000_000), partial(self._ask, caller)
                )
        for workers in self.stages.values():
            for worker in workers:
                for number in range(len(self.lanes)):
                    worker.segment.lanes[number] = number + 1
                worker.segment.ready.set(1)

    def _process(self, stage: Stage, limits: Limits, tokens: list[int]) -> Process:
        layout = worker_layout(_MAX_BATCH, _MAX_LANES)
        fd = create(layout, sealed=False)
        here, there = (WorkerSegment(map_checked(fd, layout), layout) for _ in range(2))
        os.close(fd)
        process = Process(self.clock, self, stage, there, tokens)
        number = len(self.batcher.workers.by_number) + 1
        self.batcher.add_worker(
            WorkerProxy(number, stage_number(0, stage), here, process.sleeper.ring)
        )
        return process

    def _step(self) -> int:
        before = self.batcher.dispatched
        ended = sum(
            len(w.finished()) for w in self.batcher.workers.by_number.values() if not w.is_quiet()
        )
        wake_at_ns = self.batcher.step(self.clock.now_ns)
        if wake_at_ns < NEVER_NS and wake_at_ns != self._wake_at_ns:
            self._wake_at_ns = wake_at_ns
            self.clock.at(wake_at_ns, self.batcher_process.ring)
        return STEP_NS + self._batch_ns * (self.batcher.dispatched - before + ended)

    def note(self, what: str, stage: Stage, numbers: list[int], now_ns: int) -> None:
        for number in numbers:
            self._marks[number][f"{what} {stage.label}"] = now_ns

    def _ask(self, caller: Caller) -> None:
        """A caller of this client wants `window` texts."""
        caller.to_send.append(self.clock.now_ns)
        assert caller.sleeper is not None
        caller.sleeper.ring()

    def _serve(self, caller: Caller) -> int:
        """One turn of a client: what has come is submitted, what is answered goes out."""
        now_ns, spent_ns = self.clock.now_ns, TURN_NS
        row = Rows(1, {"x": np.zeros((1, 1), np.float32)}, {})
        done = caller.client.reap(now_ns)
        for pending in done:
            slot = pending.slots[0]
            number = self.text_of[caller.lane, slot]
            caller.client.release(pending)
            spent_ns += caller.each_ns
            marks = self._marks.pop(number)
            asked_ns = self.sent_ns.pop(number)
            self.took.append(
                (now_ns + spent_ns, now_ns + spent_ns - asked_ns, marks | {"asked": asked_ns})
            )
            caller.left -= 1
            if caller.window == 1 or not caller.left:
                think_ns = self.random.randrange(20, 60) * _US
                self.clock.at(now_ns + spent_ns + think_ns, lambda: self._ask(caller))
        if caller.to_send and (caller.window == 1 or not caller.left):
            sends, caller.to_send = caller.to_send, []
            for _ in sends:
                spent_ns += caller.each_ns * caller.window
                caller.left += caller.window
            self.clock.at(now_ns + spent_ns, lambda: self._submit(caller, sends, row))
        return spent_ns

    def _submit(self, caller: Caller, sends: list[int], row: Rows) -> None:
        now_ns = self.clock.now_ns
        for asked_ns in sends:
            for _ in range(caller.window):
                pending = caller.client.submit(row, now_ns, now_ns + 30_000_000_000, flow=1)
                number = next(self._texts) * 400 + self.random.randrange(400)
                self.text_of[caller.lane, pending.slots[0]] = number
                self.sent_ns[number] = asked_ns
                self._marks[number]["in"] = now_ns
        caller.client.flush()
        self.batcher_process.ring()


def measure(processes: int, callers: str, seconds: float, *seed_and_us: int) -> dict[str, Any]:
    pool = Pool(processes, callers, *seed_and_us)
    start_ns = pool.clock.now_ns
    end_ns = start_ns + int(seconds * 1e9)
    pool.clock.run(end_ns)
    from_ns = start_ns + int(_WARM * seconds * 1e9)
    rows = [(took, marks) for at, took, marks in pool.took if at >= from_ns]
    took = np.array([each for each, _ in rows]) / 1e6
    parts = {
        "front end, in": ("asked", "in"),
        "queue preprocess": ("in", "run preprocess"),
        "run preprocess": ("run preprocess", "queue preprocess"),
        "queue infer": ("queue preprocess", "run infer"),
        "run infer": ("run infer", "out infer"),
    }
    found: dict[str, Any] = {
        "texts/s": round(len(rows) / ((1 - _WARM) * seconds)),
        "p50 ms": round(float(np.quantile(took, 0.5)), 2),
        "p99 ms": round(float(np.quantile(took, 0.99)), 2),
        **{
            name: [
                round(float(f([m[b] - m[a] for _, m in rows])) / 1e6, 2)
                for f in (mean, lambda v: np.quantile(v, 0.99))
            ]
            for name, (a, b) in parts.items()
        },
        "batcher, cores": round(pool.batcher_process.busy_ns / (end_ns - start_ns), 2),
    }
    for stage, workers in pool.stages.items():
        found[f"rows of a batch of {stage.label}"] = round(
            mean(n for w in workers for n in w.batches), 1
        )
    busy_ns = sum(w.sleeper.busy_ns for w in pool.stages[Stage.PREPROCESS])
    found["preprocess, cores"] = round(busy_ns / (end_ns - start_ns), 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.stage_latency",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--callers", nargs="+", default=["64", "1024", "4x256"])
    parser.add_argument("--processes", type=int, default=10, help="of preprocess")
    parser.add_argument("--seconds", type=float, default=2, help="of virtual time")
    parser.add_argument("--batch-us", type=int, default=BATCH_US, help="of the batcher, a batch")
    parser.add_argument("--seed", type=int, default=1, help="rates depend on it by 5 %%")
    parser.add_argument("--save")
    args = parser.parse_args()
    last = args.seconds, args.seed, args.batch_us
    table = {each: measure(args.processes, each, *last) for each in args.callers}
    report("texts through two stages, in virtual time", table, args.save)


if __name__ == "__main__":
    main()
