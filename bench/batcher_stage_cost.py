"""The batcher's cost of a batch while texts go through two stages with many processes.

    python -m bench.batcher_stage_cost [--callers 64 1024] [--processes 10 25] [--seconds 0.5]
                                       [--rounds 5] [--cold-mib 8] [--save FILE.json]

The pool of `bench.stage_latency` in virtual time: the batcher has many busy workers, short batches
and rows of several lengths. Measured is the CPU time of the real batcher's steps, in us for each
batch that it sends. In virtual time a batch takes the batcher 170 us whatever it takes in truth, so
that the batches are the same ones on every machine, and after every change that keeps the
decisions: the texts that were answered, the batches and the steps are printed too.

--cold-mib: so much memory is read before each step, so that it finds the caches full of other
data, as in a pool; 0 for a tight loop.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import defaultdict
from typing import Any

import numpy as np

from batchpool.batcher.batcher import Batcher
from bench.stage_latency import Pool
from bench.support.machine import report, spread

_BATCH_US, _SEED = 170, 1


class TimedBatcher:
    """A batcher whose steps are counted and timed."""

    def __init__(self, batcher: Batcher, cold_mib: int) -> None:
        self.workers = batcher.workers
        self._batcher = batcher
        self._other_data = np.zeros(cold_mib * 2**20 // 8, np.int64)
        self.steps = self.spent_ns = 0

    @property
    def dispatched(self) -> int:
        return self._batcher.dispatched

    def step(self, now_ns: int) -> int:
        self._other_data.sum()
        start_ns = time.thread_time_ns()
        wake_at_ns = self._batcher.step(now_ns)
        self.spent_ns += time.thread_time_ns() - start_ns
        self.steps += 1
        return wake_at_ns


def measure(processes: int, callers: str, seconds: float, cold_mib: int) -> dict[str, float]:
    """The figures of one run."""
    pool: Any = Pool(processes, callers, _SEED, _BATCH_US)
    pool.batcher = timed = TimedBatcher(pool.batcher, cold_mib)
    gc.collect()
    gc.disable()
    pool.clock.run(pool.clock.now_ns + int(seconds * 1e9))
    gc.enable()
    return {
        "us a batch": timed.spent_ns / 1e3 / timed.dispatched,
        "texts": len(pool.took),
        "batches": timed.dispatched,
        "steps": timed.steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.batcher_stage_cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--callers", nargs="+", default=["64", "1024"], help="of HTTP")
    parser.add_argument("--processes", type=int, nargs="+", default=[10, 25], help="of preprocess")
    parser.add_argument("--seconds", type=float, default=0.5, help="of virtual time")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cold-mib", type=int, default=8)
    parser.add_argument("--save")
    args = parser.parse_args()
    found: dict[tuple[int, str], list[dict[str, float]]] = defaultdict(list)
    for _ in range(args.rounds):
        for processes in args.processes:
            for callers in args.callers:
                run = measure(processes, callers, args.seconds, args.cold_mib)
                found[processes, callers].append(run)
    table = {
        f"{processes} processes, {callers} callers": {
            "us a batch": spread([run["us a batch"] for run in runs], 1),
            **{what: runs[0][what] for what in ("texts", "batches", "steps")},
        }
        for (processes, callers), runs in found.items()
    }
    report("batcher, texts through two stages: CPU time of a batch", table, args.save)


if __name__ == "__main__":
    main()
