"""Batching policies under many loads, in virtual time: the pool's own batcher, pretended workers.

    python -m bench.policy [--rows 20000] [--quick] [--processes 1] [--save FILE.json]
    python -m bench.policy --check

Fixed waits of 0, 5, 20 and 50 ms beside the adaptive policy, without and with a target for the
99th percentile; models and loads: bench/policy/loads.py, simulated workers and callers:
bench/policy/simulation.py. Then the target against the best fixed settings
(bench/policy/target.py) and fairness between callers (bench/policy/fairness.py). Printed are the
verdicts of bench/policy/verdicts.py with their worst cases; saved are all points as well. A run
gives the same figures everywhere: no clock is read.

--check compares the simulator with latencies that were worked out by hand, and stops.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from batchpool.core.scheduler.decide import Limits
from bench.policy import fairness as policy_fairness
from bench.policy import sweep
from bench.policy import target as policy_target
from bench.policy import verdicts as policy_verdicts
from bench.policy.loads import SWEPT, Profile
from bench.policy.simulation import Simulation
from bench.policy.sweep import ADAPTIVE, MS, fixed
from bench.support.machine import facts, report

_TOLD = ("rate", "p50_ms", "p99_ms", "mean_batch", "refused", "turned_away", "missed")


def check() -> None:
    """Latencies of a few rows against those that follow from the rules; AssertionError if not.

    One worker, 5 ms + 1 ms a row, at most 4 rows, no noise; turns and ways take no time.
    """
    model = Profile("by hand", 5.0, 1.0, 4)

    def latencies_ms(wait_ms: int, *send_ms: float) -> list[float]:
        send_ns = np.array([at * MS for at in send_ms], dtype=np.int64)
        for shortcuts in (True, False):
            found = Simulation(
                model,
                Limits(4, wait_ms * MS),
                noise=None,
                step_ns=0,
                way_ns=0,
                shortcuts=shortcuts,
            ).run(send_ns)
            took = (found.took_ns / MS).round(6).tolist()
        return list(took)

    # The first leaves alone (until 7), the two that came meanwhile together (7 more).
    assert latencies_ms(0, 1, 2, 3) == [6, 12, 11]
    # All three wait until 10 ms after the first came, then take 8.
    assert latencies_ms(10, 1, 2, 3) == [18, 17, 16]
    # Four are a full batch and leave at once, at 4; the fifth waits till 15, and takes 6.
    assert latencies_ms(10, 1, 2, 3, 4, 5) == [12, 11, 10, 9, 16]
    # A full batch queues behind the running one: 4 to 13, 13 to 22.
    assert latencies_ms(10, 1, 2, 3, 4, 5, 6, 7, 8) == [12, 11, 10, 9, 17, 16, 15, 14]


def run_fairness(rows: int, pool: Executor | None) -> dict[Any, policy_fairness.Found]:
    """One worker of every profile, and several of one."""
    cases = [
        *product(SWEPT, (1,), (ADAPTIVE, fixed(0))),
        *product(("per-call",), (4,), (ADAPTIVE, fixed(0))),
    ]
    found = (pool.map if pool else map)(
        policy_fairness.compute, *zip(*cases, strict=True), [rows] * len(cases)
    )
    return dict(zip(cases, found, strict=True))


def save(path: str, rows: dict[str, Any], points: list[Any], targets: list[Any]) -> None:
    """The verdicts, and every point as one line."""

    def lines(what: list[Any]) -> str:
        return ",\n".join(json.dumps(one) for one in what)

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(
        f'{{"machine": {json.dumps(facts())},\n"rows": {json.dumps(rows, indent=1)},\n'
        f'"points": [\n{lines(points)}\n],\n"targets": [\n{lines(targets)}\n]}}\n'
    )
    print(f"\n  saved {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000, help="of a point")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--save")
    args = parser.parse_args()
    check()
    if args.check:
        print("the simulator agrees with what was worked out by hand")
        return
    rows = args.rows // 10 if args.quick else args.rows
    start = time.monotonic()
    with ProcessPoolExecutor(args.processes) if args.processes > 1 else nullcontext() as pool:
        points = sweep.run(rows, pool)
        targets = policy_target.run(rows // 2, pool)
        fairness = run_fairness(rows // 40, pool)
    verdicts = [
        *policy_verdicts.of_sweep(points),
        *policy_verdicts.of_targets(targets),
        policy_verdicts.of_fairness(fairness),
    ]
    told = {verdict.demand: verdict.told() for verdict in verdicts}
    report("Batching policies, simulated", {}, None)
    for verdict in verdicts:
        found = told[verdict.demand]
        print(f"  {'PASS' if found['holds'] else 'FAIL'}  {verdict.demand}")
        print(f"        {found['of'] - found['failed']} of {found['of']} cases; nearest or worst:")
        for text in found["worst"]:
            print(f"        {text}")
    print(f"\n  {len(points)} points, {time.monotonic() - start:.0f} s")
    if args.save:
        brief = [
            {key: p[key] for key in ("profile", "workers", "shape", "load", "policy", *_TOLD)}
            for p in points
        ]
        kept = [
            {"profile": task.profile, "workers": task.workers, "times": task.noise,
             "best_fixed": best, "points": of_task}
            for task, best, of_task in targets
        ]  # fmt: skip
        save(args.save, told, brief, kept)
    if not all(verdict.holds for verdict in verdicts):
        sys.exit(1)


if __name__ == "__main__":
    main()
