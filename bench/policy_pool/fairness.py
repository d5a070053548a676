"""Fairness in a real pool: one caller keeps 10,000 rows queued, others send a row now and then.

A lone row may have to wait until the batches in flight are done, and its own is a full one;
nothing else may stand between it and its answer. How long a full batch takes is measured by the
rate at which the bulk is answered.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

from batchpool.client.control import ask_status
from batchpool.core.scheduler.limits import Limits
from bench.policy.fairness import BULK_ROWS
from bench.policy.loads import PROFILES
from bench.policy.verdicts import Verdict
from bench.policy_pool.findings import Findings, Settings
from bench.policy_pool.models import sleeping
from bench.policy_pool.sites import SLEEPER
from bench.scaling.pool import Pool
from bench.support.children import Child
from bench.support.serving import Served

_PROFILE = "per-call"
_SECONDS = 12.0
_FILL_S, _FILL_MOST_S = 1.0, 15.0  # the queue stands usually, at the latest
_TRANSPORTS = ("local", "http")
# Over HTTP a flow may have half of a lane while others are active.
_ROOM = ("--frontends", "1", "--slots", "32768", "--client-slots", "16384")


def run(findings: Findings, settings: Settings) -> None:
    profile, seconds = PROFILES[_PROFILE], settings.seconds(_SECONDS)
    depth = Limits(profile.max_batch, 0).depth
    verdict = Verdict(
        f"beside {BULK_ROWS:,} queued rows: p99 grows by at most the {depth} batches in flight and"
        " its own"
    )
    with ExitStack() as stack:
        env = sleeping(profile.base_ms, profile.row_ms)
        pool = stack.enter_context(Pool(SLEEPER, _ROOM, env))
        pool.await_ready()
        served = pool.served
        where = {"local": served.socket, "http": str(served.port)}
        callers = {
            transport: stack.enter_context(
                Child("bench.policy_pool.caller", transport, where[transport])
            )
            for transport in _TRANSPORTS
        }

        def call(seed: int) -> dict[str, dict[str, float]]:
            for i, caller in enumerate(callers.values()):
                caller.tell("call", seconds=seconds, seed=2 * seed + i)
            return {transport: caller.hear() for transport, caller in callers.items()}

        alone = call(0)
        for transport, figures in alone.items():
            findings.add(f"{transport}, alone", figures)
        for seed, bulk_transport in enumerate(_TRANSPORTS, 1):
            bulk = stack.enter_context(
                Child("bench.policy_pool.bulk", bulk_transport, where[bulk_transport])
            )
            bulk.tell("run", seconds=seconds + 2 * _FILL_S)
            queued = _await_queue(served)
            beside = call(seed)
            still = queued_rows(served)
            bulk_figures = bulk.hear()
            findings.add(
                f"bulk, {bulk_transport}", {**bulk_figures, "queued": queued, "queued_after": still}
            )
            full_ms = profile.max_batch / bulk_figures["rows_per_s"] * 1e3
            allowed_ms = (depth + 1) * full_ms
            for transport, figures in beside.items():
                grown_ms = figures["p99_ms"] - alone[transport]["p99_ms"]
                findings.add(
                    f"{transport}, beside bulk over {bulk_transport}",
                    {**figures, "grown_ms": grown_ms, "allowed_ms": allowed_ms},
                )
                verdict.add(
                    grown_ms / allowed_ms,
                    f"{transport}, bulk over {bulk_transport}: {alone[transport]['p99_ms']:.2f} ->"
                    f" {figures['p99_ms']:.2f} ms (allowed +{allowed_ms:.2f})",
                )
            findings.judge([verdict])


def queued_rows(served: Served) -> int:
    """Rows that clients hold: nearly all of them queued."""
    return sum(lane["claimed"] for lane in ask_status(served.socket)["lanes"])


def _await_queue(served: Served) -> int:
    until_s = time.monotonic() + _FILL_MOST_S
    while (queued := queued_rows(served)) < BULK_ROWS:
        if time.monotonic() > until_s:
            raise RuntimeError(f"the bulk caller holds {queued:,} rows only")
        time.sleep(0.05)
    return queued
