"""Every policy under every load, simulated: the points of bench.policy.

A point is named by (profile, workers, shape, load, policy) and carries offered, rate, p50_ms,
p99_ms, mean_batch, refused (and turned_away: those by the lane alone), missed, reasons.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from batchpool.core.scheduler.decide import Limits
from bench.policy.loads import LOADS, PROFILES, SWEPT, Profile, arrivals_ns, seed_of
from bench.policy.simulation import Outcome, Simulation

MS = 1_000_000
FIXED_MS = (0, 5, 20, 50)
ADAPTIVE = "adaptive"
TARGET = "target"
TARGET_TIMES = 3  # of the time of a full batch
STEP_LOAD = 0.9 * 11 / 27  # mean of a step whose peak is 90 %
CLOSED_CLIENTS = 64

_CASES: tuple[tuple[int, str, Sequence[float]], ...] = (
    (1, "poisson", LOADS),
    (4, "poisson", LOADS),
    (1, "bursts", (0.05, *LOADS[2:])),
    (4, "bursts", LOADS[2:]),
    (1, "diurnal", LOADS[2:]),
    (1, "step", (STEP_LOAD,)),
    (4, "step", (STEP_LOAD,)),
    (1, "closed", (1.0,)),
    (4, "closed", (1.0,)),
)

Point = dict[str, Any]


def fixed(wait_ms: float) -> str:
    """The name of a fixed policy."""
    return f"fixed {wait_ms:g} ms"


def limits_of(policy: str, profile: Profile, target_times: float = TARGET_TIMES) -> Limits:
    """A policy by its name; the adaptive ones with the defaults of the configuration."""
    limits = Limits(profile.max_batch, 0, sizes=profile.sizes)
    if policy.startswith("fixed"):
        return replace(limits, max_wait_ns=round(float(policy.split()[1]) * MS))
    target_ns = round(target_times * profile.time_ns(profile.max_batch)) if policy == TARGET else 0
    return replace(
        limits,
        adaptive=True,
        max_wait_ns=10 * MS,
        max_wait_peak_ns=100 * MS,
        target_ns=target_ns,
    )


@dataclass(frozen=True)
class Task:
    """One point to be computed."""

    profile: str
    workers: int
    shape: str
    load: float
    policy: str
    rows: int


def tasks(rows: int) -> Iterator[Task]:
    """The sweep. Light loads cost most and differ least, so that not every shape has them."""
    policies = [*map(fixed, FIXED_MS), ADAPTIVE]
    for name, (workers, shape, loads) in product(SWEPT, _CASES):
        for load, policy in product(loads, policies):
            # Above capacity, enough that the lane fills and a steady state is seen.
            yield Task(name, workers, shape, load, policy, rows * (3 if load > 1 else 1))


def compute(task: Task) -> Point:
    """Simulate one point."""
    profile = PROFILES[task.profile]
    capacity = profile.capacity_per_s(task.workers)
    batch_ns = profile.time_ns(profile.max_batch)
    seed = seed_of(task.profile, task.workers, task.shape, task.load)
    simulation = Simulation(profile, limits_of(task.policy, profile), task.workers, seed=seed)
    if task.shape == "closed":
        offered = float("nan")
        starts = np.linspace(0, batch_ns, CLOSED_CLIENTS).astype(np.int64)
        until_ns = task.rows / (0.5 * capacity) * 1e9
        found = simulation.run(starts, again=np.ones(CLOSED_CLIENTS, bool), until_ns=until_ns)
    else:
        offered = task.load * capacity
        found = simulation.run(arrivals_ns(task.shape, offered, task.rows, batch_ns, seed))
    point: Point = {
        **vars(task),
        "offered": offered,
        "capacity": capacity,
        "batch_ms": batch_ns / MS,
    }
    return point | figures(found)


def figures(found: Outcome) -> Point:
    """The reported figures of an outcome."""
    return {
        "rate": round(found.rate_per_s, 1),
        "p50_ms": round(found.percentile_ms(0.50), 3),
        "p99_ms": round(found.percentile_ms(0.99), 3),
        "mean_batch": round(found.mean_batch, 2),
        "refused": found.refused,
        "turned_away": found.turned_away,
        "missed": found.missed,
        "reasons": found.reasons,
    }


def run(rows: int, pool: Executor | None) -> list[Point]:
    """All points."""
    todo = list(tasks(rows))
    return list(pool.map(compute, todo, chunksize=4) if pool else map(compute, todo))
