"""Many seeds of the simulator, on all cores: `python -m tests.sim.run --kind all --seeds 100000`.

Prints every seed that failed, with the last steps that led to the fault; exit status 1 if any.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.support.machine import facts
from tests.sim.callers import ClientActor
from tests.sim.memory import Fault
from tests.sim.profiles import PROFILES
from tests.sim.world import simulate

CHUNK = 50
FEW = 100  # so few seeds are not worth a second process


@dataclass
class Count:
    """Sums over some runs."""

    runs: int = 0
    answers: int = 0
    events: int = 0
    deaths: int = 0

    def add(self, other: Count) -> None:
        self.runs += other.runs
        self.answers += other.answers
        self.events += other.events
        self.deaths += other.deaths


def run_some(kind: str, first: int, seeds: int) -> tuple[Count, list[str]]:
    """The faults of these seeds."""
    count, faults = Count(), []
    for seed in range(first, first + seeds):
        try:
            world = simulate(seed, kind)
        except Fault as fault:
            faults.append(str(fault))
            continue
        clients = [actor for actor in world.actors if isinstance(actor, ClientActor)]
        answers = sum(client.answered for client in clients)
        count.add(Count(1, answers, world.events, world.deaths))
    return count, faults


def sweep(kind: str, first: int, seeds: int) -> tuple[Count, list[str]]:
    """Runs these seeds on as many cores as are worth it, and adds up."""
    if seeds <= FEW:
        return run_some(kind, first, seeds)
    total, faults = Count(), []
    for count, some in _in_parallel(kind, first, seeds):
        total.add(count)
        faults += some
    return total, faults


def _in_parallel(kind: str, first: int, seeds: int) -> Iterator[tuple[Count, list[str]]]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        os.cpu_count(), context, initializer=logging.disable, initargs=(logging.WARNING,)
    ) as pool:
        starts = range(first, first + seeds, CHUNK)
        jobs = [
            pool.submit(run_some, kind, start, min(CHUNK, first + seeds - start))
            for start in starts
        ]
        for job in jobs:
            yield job.result()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=[*PROFILES, "each"], default="each")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--save", metavar="FILE", help="write the counts as JSON")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # batches fail on purpose
    failed = 0
    counts = {}
    for kind in PROFILES if options.kind == "each" else [options.kind]:
        count, faults = sweep(kind, options.first, options.seeds)
        for fault in faults:
            print(fault, end="\n\n")
        print(f"{kind}: {len(faults)} faults; without a fault: {count}", flush=True)
        counts[kind] = {"faults": len(faults), **vars(count)}
        failed += len(faults)
    if options.save:
        Path(options.save).write_text(json.dumps({"machine": facts(), **counts}, indent=2) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
