"""The adaptive policy beside fixed waits: the same arrivals for all of them, at the same time."""

from __future__ import annotations

from typing import Any

from bench.load.open_load import LATE_MS, Load, Phase, offer
from bench.policy.loads import PROFILES, Profile
from bench.policy.sweep import ADAPTIVE, FIXED_MS, fixed
from bench.policy.verdicts import Verdict, of_sweep
from bench.policy_pool.findings import Findings, Settings
from bench.policy_pool.sites import Site, everywhere, sites

PROFILE = "slow-call"
LOADS = (0.05, 0.5, 0.95, 1.1)
SHAPES = ("poisson", "on-off")
SENDERS = 2
# Together as much room as a model has over all front ends.
ROOM = ("--frontends", "1", "--client-slots", str(4096 // SENDERS))
_ON = 0.25  # of a cycle, in which everything comes
_CYCLE = 40  # batch times
# A light load has few requests, and its verdict is about single milliseconds. Above capacity the
# lanes must have filled first.
_SECONDS = {0.05: 25.0, 0.5: 8.0, 0.95: 8.0, 1.1: 12.0}
_FILLED = {1.1: 0.5}  # of the time, until the lanes are full
_SETTLED = 0.05  # of the time, until a policy knows the model


def fixed_flags(wait_ms: float) -> tuple[str, ...]:
    return "--policy", "fixed", "--max-wait-ms", f"{wait_ms:g}"


def phases_of(shape: str, rate_per_s: float, seconds: float, profile: Profile) -> list[Phase]:
    """Rates and times of the offered load; on and off in whole cycles, at least one."""
    if shape == "poisson":
        return [(rate_per_s, seconds)]
    cycle_s = min(seconds, _CYCLE * profile.time_ns(profile.max_batch) / 1e9)
    on_off = [(rate_per_s / _ON, _ON * cycle_s), (0.0, (1 - _ON) * cycle_s)]
    return on_off * max(1, round(seconds / cycle_s))


def start_of(phases: list[Phase], share: float) -> float:
    """The second from which on figures count: after that share of the time, in whole cycles."""
    total_s = sum(seconds for _, seconds in phases)
    if len(phases) == 1:
        return share * total_s
    cycle_s = phases[0][1] + phases[1][1]
    return int(share * total_s / cycle_s) * cycle_s


def late(loads: dict[str, float]) -> Verdict:
    """behind_p99_ms by cell."""
    verdict = Verdict(
        f"requests left at their times (p99 at most {LATE_MS:g} ms late), else INVALID"
    )
    for cell, behind_ms in loads.items():
        verdict.add(behind_ms / LATE_MS, f"{cell}: {behind_ms:.1f} ms late")
    return verdict


def point(
    load: Load, phases: list[Phase], start_s: float, shape: str, share: float, policy: str
) -> dict[str, Any]:
    """As one of bench/policy/sweep.py."""
    figures = load.figures(start_s)
    named = {"profile": PROFILE, "workers": 1, "shape": shape, "load": share, "policy": policy}
    rate = figures["right"] / (sum(seconds for _, seconds in phases) - start_s)
    return {**named, **figures, "rate": rate, "missed": figures["lost"]}


def run(findings: Findings, settings: Settings) -> None:
    profile = PROFILES[PROFILE]
    capacity = profile.capacity_per_s()
    flags = {fixed(wait): fixed_flags(wait) for wait in FIXED_MS}
    flags[ADAPTIVE] = ("--policy", "adaptive")
    points: list[dict[str, Any]] = []
    behind: dict[str, float] = {}
    with sites(flags, profile, *ROOM) as places:
        findings.add("cores of a pool and its senders", sorted(len(site.cores) for site in places))
        for seed, (shape, share) in enumerate((s, load) for s in SHAPES for load in LOADS):
            phases = phases_of(shape, share * capacity, settings.seconds(_SECONDS[share]), profile)
            start_s = start_of(phases, _FILLED.get(share, _SETTLED))

            def offered(site: Site, phases: list[Phase] = phases, seed: int = seed) -> Load:
                return offer("local", site.served.socket, phases, SENDERS, seed)

            for name, load in everywhere(places, offered).items():
                cell = f"{shape} {share * 100:.0f} %, {name}"
                points.append(found := point(load, phases, start_s, shape, share, name))
                behind[cell] = found["behind_p99_ms"]
                findings.add(cell, found)
            findings.judge([late(behind), *of_sweep(points)])
