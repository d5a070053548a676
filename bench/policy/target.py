"""The target for the 99th percentile, simulated: is it kept, and what does keeping it cost?

Beside the policy with a target stands the best that fixed settings can do: of every wait and
every largest batch, the highest offered load at which their 99th percentile keeps the target.
Somebody would have to find those settings, and to keep the load there by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import product

from batchpool.core.scheduler.decide import Limits
from bench.policy.loads import PROFILES, SWEPT, Profile, arrivals_ns, seed_of
from bench.policy.simulation import Noise, Simulation
from bench.policy.sweep import MS, TARGET, TARGET_TIMES, Point, figures, limits_of

WAITS_MS = (0, 1, 2, 5, 10, 20, 50)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
LOADS = (0.05, 0.2, 0.5, 0.8, 0.95, 1.1, 2.0)
_SLOW_LOADS = (0.5, 0.95, 1.1, 2.0)
_SLOW_ROWS = 3  # times as many: two slow batches in a row are not the tail of the whole run then
_SHARES = (0.99, 0.97, 0.95, 0.92, 0.89, 0.85, 0.8, 0.7, 0.6, 0.5, 0.3, 0.1)
STEADY = "steady"
_SLOW = (0.005, 0.01, 0.02, 0.05)  # of the batches take TAIL_TIMES as long
NOISES = {STEADY: Noise()} | {f"{share:.1%} slow": Noise(tail_share=share) for share in _SLOW}


@dataclass(frozen=True)
class Task:
    """One profile with all its loads, and the best fixed settings beside them."""

    profile: str
    workers: int
    noise: str
    rows: int


def tasks(rows: int) -> Iterator[Task]:
    """One worker of each profile; several, and slow batches, of two."""
    for name in (*SWEPT, "engine-steps"):
        yield Task(name, 1, STEADY, rows)
    for name in ("per-call", "gpu"):
        yield Task(name, 4, STEADY, rows)
        for noise in NOISES:
            if noise != STEADY:
                yield Task(name, 1, noise, _SLOW_ROWS * rows)


def target_ns(profile: Profile) -> float:
    return TARGET_TIMES * profile.time_ns(profile.max_batch)


def best_fixed(task: Task) -> Point:
    """The highest rate that fixed settings keep the target at, and which they are."""
    profile = PROFILES[task.profile]
    best: Point = {"rate": 0.0, "wait_ms": None, "max_batch": None}
    sizes = profile.sizes or BATCHES
    for max_batch in sorted(sizes, key=lambda n: -profile.capacity_per_s(task.workers, n)):
        capacity = profile.capacity_per_s(task.workers, max_batch)
        for wait_ms in WAITS_MS:
            limits = Limits(max_batch, wait_ms * MS, sizes=profile.sizes)
            for share in _SHARES:
                rate = share * capacity
                if rate <= best["rate"]:
                    break
                seed = seed_of(task.profile, task.workers, share)
                found = Simulation(
                    profile, limits, task.workers, noise=NOISES[task.noise], seed=seed
                ).run(arrivals_ns("poisson", rate, task.rows, profile.time_ns(64), seed))
                if found.percentile_ms(0.99) * MS <= target_ns(profile):
                    best = {"rate": round(rate, 1), "wait_ms": wait_ms, "max_batch": max_batch}
                    break
    return best


def compute(task: Task) -> tuple[Task, Point, list[Point]]:
    """The best fixed settings, and the policy with a target at every load."""
    profile = PROFILES[task.profile]
    capacity = profile.capacity_per_s(task.workers)
    points = []
    loads = LOADS if task.noise == STEADY else _SLOW_LOADS
    for shape, load in product(("poisson", "bursts"), loads):
        seed = seed_of(task.profile, task.workers, shape, load)
        limits = replace(limits_of(TARGET, profile), target_ns=round(target_ns(profile)))
        simulation = Simulation(profile, limits, task.workers, noise=NOISES[task.noise], seed=seed)
        # Half as many again above capacity, where half may be refused.
        rows = task.rows * (2 if load > 1 else 1)
        found = simulation.run(arrivals_ns(shape, load * capacity, rows, profile.time_ns(64), seed))
        late = float((found.took_ns > target_ns(profile)).mean())
        named = {"shape": shape, "load": load, "offered": load * capacity, "sent": rows}
        points.append({**named, "late": round(late, 5), **figures(found)})
    return task, best_fixed(task), points


def run(rows: int, pool: Executor | None) -> list[tuple[Task, Point, list[Point]]]:
    """Everything, for the verdicts."""
    return list((pool.map if pool else map)(compute, tasks(rows)))
