"""Fairness, simulated: one caller keeps thousands of rows queued, another sends one now and then.

Both have the default priority. The second may have to wait until the batches in flight are
done, and its own is a full one; nothing else may stand between it and its answer. The times of
batches have no noise here, so that the bound is a sharp one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.policy.loads import PROFILES, seed_of
from bench.policy.simulation import STEP_NS, WAY_NS, Simulation
from bench.policy.sweep import MS, limits_of

BULK, INTERACTIVE = 1, 2
BULK_ROWS = 10_000
EVERY_NS = 20 * MS


@dataclass(frozen=True)
class Found:
    """The 99th percentile of the interactive flow in ms, without and with the other one; what it
    may grow by; and the rows per second of the other one, over what the workers can do."""

    alone_ms: float
    beside_ms: float
    allowed_ms: float
    bulk_share: float


def compute(name: str, workers: int, policy: str, rows: int) -> Found:
    """`rows` interactive rows, EVERY_NS apart."""
    profile = PROFILES[name]
    limits = limits_of(policy, profile)
    seed = seed_of(name, workers, policy)
    # The first tenth comes when the bulk is there already.
    send_ns = np.arange(1, rows + 1, dtype=np.int64) * EVERY_NS
    alone = Simulation(profile, limits, workers, noise=None).run(send_ns, INTERACTIVE)
    both_ns = np.concatenate([np.ones(BULK_ROWS, dtype=np.int64), send_ns])
    flow = np.concatenate([np.full(BULK_ROWS, BULK), np.full(rows, INTERACTIVE)])
    beside = Simulation(
        profile, limits, workers, noise=None, seed=seed, watermark=2 * BULK_ROWS
    ).run(both_ns, flow, again=flow == BULK, until_ns=int(send_ns[-1]) + EVERY_NS)
    bulk = beside.rate_per_s * float((beside.flow == BULK).mean())
    full_ns = profile.time_ns(profile.max_batch)
    return Found(
        alone.percentile_ms(0.99),
        beside.percentile_ms(0.99, INTERACTIVE),
        (limits.depth * full_ns + full_ns - profile.time_ns(1) + 2 * WAY_NS + STEP_NS) / MS,
        bulk / profile.capacity_per_s(workers),
    )
