"""An engine that takes 64 rows only: 10,000 requests a second, and a spike of 30,000.

The senders go on as meant whatever becomes of the answers. Over HTTP there are more connections
than the pool has room for, so that it refuses before the senders run out of them.
"""

from __future__ import annotations

import os

import numpy as np

from bench.load.open_load import LATE_MS, REFUSED, RIGHT, Load, Phase, offer
from bench.policy.loads import PROFILES
from bench.policy.verdicts import Verdict
from bench.policy_pool.findings import Findings, Settings
from bench.policy_pool.models import sleeping
from bench.policy_pool.sites import SLEEPER
from bench.scaling.pool import Pool
from bench.support.children import on_cores

_STEADY, _SPIKE = 10_000, 30_000
_STEADY_S, _SPIKE_S, _AFTER_S = 8.0, 2.0, 5.0
_WARM_S = 1.0  # what a policy learns in it is not judged
_AGAIN_S = 1.0  # after the spike nobody is refused; with a target latencies are usual again
_TARGET_MS = 100.0
_SLOTS = 4096
_CONNECTIONS = _SLOTS + _SLOTS // 2
_POLICIES = {
    "adaptive": ("--policy", "adaptive"),
    "target": ("--policy", "adaptive", "--target-p99-ms", f"{_TARGET_MS:g}"),
}
STEADY_P99_MS, SPIKE_P99_MS = 100.0, 500.0


def run_http(findings: Findings, settings: Settings) -> None:
    """Half of the cores for the senders, a quarter for the front ends."""
    cores = len(os.sched_getaffinity(0))
    frontends, senders = max(1, min(4, cores // 4)), max(1, min(8, cores // 2))
    _run(findings, settings, "http", tuple(_POLICIES), senders, "--frontends", str(frontends))


def run_local(findings: Findings, settings: Settings) -> None:
    _run(findings, settings, "local", tuple(_POLICIES), 4)


def run_two_cores(findings: Findings, settings: Settings) -> None:
    with on_cores(frozenset(sorted(os.sched_getaffinity(0))[:2])):
        _run(findings, settings, "local", ("adaptive",), 4)


def _run(
    findings: Findings,
    settings: Settings,
    transport: str,
    policies: tuple[str, ...],
    senders: int,
    *flags: str,
) -> None:
    steady_s, spike_s = settings.seconds(_STEADY_S), settings.seconds(_SPIKE_S)
    after_s = settings.seconds(_AFTER_S)
    phases: list[Phase] = [(_STEADY, steady_s), (_SPIKE, spike_s), (_STEADY, after_s)]
    end_s = steady_s + spike_s
    findings.add(
        "set", {"transport": transport, "senders": senders, "cores": _cores(), "flags": flags}
    )
    profile = PROFILES["engine-64"]
    room = ("--slots", str(_SLOTS), "--client-slots", str(_SLOTS // 4))
    verdicts = [late] = [Verdict(f"requests left at most {LATE_MS:g} ms late (p99), else INVALID")]
    for name in policies:
        own = ("--batch-sizes", "64", *room, *_POLICIES[name], *(flags or ("--frontends", "1")))
        with Pool(SLEEPER, own, sleeping(profile.base_ms, profile.row_ms)) as pool:
            pool.await_ready()
            served = pool.served
            where = served.socket if transport == "local" else str(served.port)
            load = offer(transport, where, phases, senders, 1, _CONNECTIONS)
        before = load.figures(min(_WARM_S, steady_s / 2), steady_s)
        spike = load.figures(steady_s, end_s)
        after = load.figures(end_s) | after_spike(load, end_s, after_s, before["p99_ms"])
        for part, figures in (("steady", before), ("spike", spike), ("after", after)):
            findings.add(f"{name}, {part}", figures)
            behind_ms = figures["behind_p99_ms"]
            late.add(behind_ms / LATE_MS, f"{name}, {part}: {behind_ms:.1f} ms late")
        verdicts += _verdicts(name, before, spike, after)
        findings.judge(verdicts)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def after_spike(load: Load, end_s: float, after_s: float, usual_ms: float) -> dict[str, float]:
    """Seconds from the end of the spike until nobody is refused any more, and until latencies are
    usual for good: of every tenth of a second the 99th percentile at most twice that of before,
    or 20 ms. A full lane takes its rows over (capacity - load) to drain, at best."""
    refused_s = load.at_s[(load.what == REFUSED) & (load.at_s >= end_s)] - end_s
    usual_at_s = 0.0
    for tenth in np.arange(0.0, after_s, 0.1):
        of = (load.at_s >= end_s + tenth) & (load.at_s < end_s + tenth + 0.1)
        of &= load.what == RIGHT
        if of.any() and np.quantile(load.took_ms[of], 0.99) > max(2 * usual_ms, 20.0):
            usual_at_s = tenth + 0.1
    return {
        "seen_s": after_s,
        "last_refused_s": float(refused_s.max(initial=0.0)),
        "usual_again_s": float(usual_at_s),
    }


def _verdicts(
    name: str, before: dict[str, float], spike: dict[str, float], after: dict[str, float]
) -> list[Verdict]:
    """With a target latencies are usual again in time; without one the full lanes still drain,
    but nobody is refused."""

    def verdict(demand: str, used: float, told: str) -> Verdict:
        made = Verdict(f"{name}, {demand}")
        made.add(used, told)
        return made

    def none(n: float) -> float:
        return 1.0 + n if n else 0.0

    lost = before["lost"] + spike["lost"] + after["lost"]
    again_s, what = after["last_refused_s"], "nobody is refused"
    if name == "target":
        again_s = max(again_s, after["usual_again_s"])
        what += " and latencies are as usual"
    steady_ms = _TARGET_MS if name == "target" else STEADY_P99_MS
    spike_ms = _TARGET_MS if name == "target" else SPIKE_P99_MS
    again_told = f"{again_s:.2f} s"
    if after["seen_s"] <= _AGAIN_S:
        again_s, again_told = float("inf"), f"only {after['seen_s']:.1f} s were seen"
    told = f"{before['p99_ms']:.1f} ms of {before['sent']:,} requests, p50 {before['p50_ms']:.1f}"
    return [
        verdict(f"steady: p99 at most {steady_ms:g} ms", before["p99_ms"] / steady_ms, told),
        verdict("steady: nobody refused", none(before["refused"]), f"{before['refused']} refused"),
        verdict("no request lost", none(lost), f"{lost} lost"),
        verdict(
            "spike: the excess is refused",
            0.0 if spike["refused"] else 2.0,
            f"{spike['refused']:,} of {spike['sent']:,} refused",
        ),
        verdict(
            f"spike: p99 of the accepted at most {spike_ms:g} ms",
            spike["p99_ms"] / spike_ms,
            f"{spike['p99_ms']:.1f} ms",
        ),
        verdict(f"{what} from {_AGAIN_S:g} s after the spike on", again_s / _AGAIN_S, again_told),
    ]
