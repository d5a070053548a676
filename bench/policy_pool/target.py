"""A target for the 99th percentile, in a real pool: kept at every load, and at what cost?"""

from __future__ import annotations

from bench.load.open_load import RIGHT, Load, Phase, offer
from bench.policy.loads import PROFILES
from bench.policy.sweep import MS, TARGET, Point
from bench.policy.target import Task, target_ns
from bench.policy.verdicts import of_targets
from bench.policy_pool.findings import Findings, Settings
from bench.policy_pool.sites import Site, everywhere, sites
from bench.policy_pool.waits import (
    PROFILE,
    ROOM,
    SENDERS,
    SHAPES,
    fixed_flags,
    late,
    phases_of,
    point,
    start_of,
)

_LOADS = (0.05, 0.5, 0.95, 1.1, 2.0)
_SECONDS = 10.0
# Fixed settings: waits in ms and largest batches, and the shares of their own capacity at which
# they are tried, until their 99th percentile keeps the target.
_FIXED = ((0, 64), (5, 64), (20, 64), (0, 32), (5, 32))
_SHARES = (0.99, 0.97, 0.95, 0.92, 0.89, 0.85, 0.8, 0.7)
_FIXED_SECONDS = 4.0
_SETTLED = 0.1  # of the time, until the policy knows the model


def run(findings: Findings, settings: Settings) -> None:
    within_ms = target_ns(PROFILES[PROFILE]) / MS
    findings.add("target_p99_ms", within_ms)
    task = Task(PROFILE, 1, "steady", 0)
    best = _best_fixed(findings, settings, within_ms)
    points: list[Point] = []
    behind: dict[str, float] = {}
    profile = PROFILES[PROFILE]
    with_target = ("--policy", "adaptive", "--target-p99-ms", f"{within_ms:g}")
    with sites({f"{load:g}": with_target for load in _LOADS}, profile, *ROOM) as places:
        for seed, shape in enumerate(SHAPES):

            def phases_at(name: str, shape: str = shape) -> list[Phase]:
                rate = float(name) * profile.capacity_per_s()
                return phases_of(shape, rate, settings.seconds(_SECONDS), profile)

            def offered(site: Site, seed: int = seed) -> Load:
                return offer("local", site.served.socket, phases_at(site.name), SENDERS, seed)

            for name, load in everywhere(places, offered).items():
                phases = phases_at(name)
                start_s = start_of(phases, _SETTLED)
                found = point(load, phases, start_s, shape, float(name), TARGET)
                right = (load.what == RIGHT) & (load.at_s >= start_s)
                found["late"] = float((load.took_ms[right] > within_ms).sum() / max(1, right.sum()))
                points.append(found)
                cell = f"{shape} {float(name) * 100:.0f} %"
                behind[cell] = found["behind_p99_ms"]
                findings.add(cell, found)
            findings.judge([late(behind), *of_targets([(task, best, points)])])


def _best_fixed(findings: Findings, settings: Settings, within_ms: float) -> Point:
    """The highest rate at which fixed settings keep the target, by the measured 99th percentile."""
    profile = PROFILES[PROFILE]
    best: Point = {"rate": 0.0, "wait_ms": None, "max_batch": None}
    flags = {
        f"{wait} ms, batch {n}": (*fixed_flags(wait), "--max-batch", str(n)) for wait, n in _FIXED
    }
    kept: set[str] = set()
    with sites(flags, profile, *ROOM) as places:
        settings_of = dict(zip(flags, _FIXED, strict=True))
        for seed, share in enumerate(_SHARES):

            def rate_of(site: Site, share: float = share) -> float:
                return share * profile.capacity_per_s(1, settings_of[site.name][1])

            def offered(site: Site, seed: int = seed, share: float = share) -> Load:
                phases = [(rate_of(site, share), settings.seconds(_FIXED_SECONDS))]
                return offer("local", site.served.socket, phases, SENDERS, seed)

            open_ = [s for s in places if s.name not in kept and rate_of(s) > best["rate"]]
            if not open_:
                break
            for name, load in everywhere(open_, offered).items():
                found = load.figures(_SETTLED * float(load.at_s.max(initial=0.0)))
                findings.add(f"fixed {name}, {share * 100:.0f} % of its capacity", found)
                if found["p99_ms"] <= within_ms and not found["refused"] and not found["lost"]:
                    kept.add(name)
                    if found["right_per_s"] > best["rate"]:
                        wait_ms, n = settings_of[name]
                        best = {"rate": found["right_per_s"], "wait_ms": wait_ms, "max_batch": n}
    findings.add("best fixed settings that keep the target", best)
    return best
