"""Demands on the simulated points: one verdict for each, with its worst figures.

A verdict holds for all its cases or fails; `worst` are the cases nearest to the limit or beyond.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.policy.fairness import Found
from bench.policy.loads import PROFILES
from bench.policy.sweep import ADAPTIVE, MS, Point, fixed
from bench.policy.target import STEADY, Task, target_ns

Case = tuple[str, int, str, float]  # profile, workers, shape, load

LIGHT = 0.05
LIGHT_P50 = 1.15
LIGHT_P99_MS = 1.0
FULL = 0.95
FULL_RATE = 0.97
ANY_P99 = 1.25
TARGET_RATE = 0.90


@dataclass
class Verdict:
    """A demand. figures: (how much of what is allowed was used, the case in words)."""

    demand: str
    figures: list[tuple[float, str]] = field(default_factory=list)

    def add(self, used: float, told: str) -> None:
        """used: above 1 the demand is not met, nor if it is not a number."""
        self.figures.append((used if used == used else float("inf"), told))

    @property
    def holds(self) -> bool:
        return all(used <= 1 for used, _ in self.figures)

    def told(self, most: int = 5) -> dict[str, Any]:
        """For the printed report and the saved one."""
        ranked = sorted(self.figures, reverse=True)
        failed = sum(used > 1 for used, _ in ranked)
        shown = [text for _, text in ranked[: max(most, 2) if failed else 2]]
        return {"holds": self.holds, "failed": failed, "of": len(ranked), "worst": shown}


def _words(case: Case) -> str:
    name, workers, shape, load = case
    return f"{name} x{workers}, {shape} {load * 100:.0f} %"


def _over(a: float, b: float) -> float:
    return a / b if b else float("inf")


def by_case(points: Sequence[Point]) -> dict[Case, dict[str, Point]]:
    """The policies of each case, by name."""
    cases: dict[Case, dict[str, Point]] = defaultdict(dict)
    for p in points:
        cases[p["profile"], p["workers"], p["shape"], p["load"]][p["policy"]] = p
    return cases


def of_sweep(points: Sequence[Point]) -> list[Verdict]:
    """Adaptive against the fixed waits."""
    light50 = Verdict(f"at 5 %: p50 at most {LIGHT_P50:g} x that of no wait")
    light99 = Verdict(f"at 5 %: p99 at most {LIGHT_P99_MS:g} ms above that of no wait")
    full = Verdict(f"at 95 % and above: rate at least {FULL_RATE:g} of the best fixed wait's")
    tail = Verdict(f"at every load: p99 at most {ANY_P99:g} x the best fixed wait's")
    closed = Verdict(f"in a closed loop: rate at least {FULL_RATE:g} of the best fixed wait's")
    missed = Verdict("no deadline is missed")
    for case, policies in by_case(points).items():
        fixed_ones = [p for name, p in policies.items() if name.startswith("fixed")]
        ours, none = policies[ADAPTIVE], policies[fixed(0)]
        words = _words(case)
        missed.add(1.0 + ours["missed"] if ours["missed"] else 0.0, f"{words}: {ours['missed']}")
        if case[3] == LIGHT:
            used = ours["p50_ms"] / none["p50_ms"] / LIGHT_P50
            light50.add(used, f"{words}: {ours['p50_ms']:.2f} ms, no wait {none['p50_ms']:.2f}")
            used = (ours["p99_ms"] - none["p99_ms"]) / LIGHT_P99_MS
            light99.add(used, f"{words}: {ours['p99_ms']:.2f} ms, no wait {none['p99_ms']:.2f}")
        best = max(fixed_ones, key=lambda p: p["rate"])
        rate_told = f"{words}: {ours['rate']:,.0f} rows/s, {best['policy']} {best['rate']:,.0f}"
        if case[2] == "closed":
            closed.add(_over(FULL_RATE * best["rate"], ours["rate"]), rate_told)
        elif case[3] >= FULL:
            full.add(_over(FULL_RATE * best["rate"], ours["rate"]), rate_told)
        best = min(fixed_ones, key=lambda p: p["p99_ms"])
        tail.add(
            ours["p99_ms"] / best["p99_ms"] / ANY_P99,
            f"{words}: {ours['p99_ms']:.2f} ms, {best['policy']} {best['p99_ms']:.2f}"
            f" (x{ours['p99_ms'] / best['p99_ms']:.2f})",
        )
    return [light50, light99, full, tail, closed, missed]


def of_targets(found: Sequence[tuple[Task, Point, list[Point]]]) -> list[Verdict]:
    """The policy with a target against it, and against the best fixed settings."""
    verdicts = []
    for steady in (True, False):
        told = "target" if steady else "target, slow batches"
        kept = Verdict(f"{told}: p99 within it at every load up to 200 %")
        lost = Verdict(f"{told}: refusals, no missed deadlines")
        rate = Verdict(
            f"{told}, 110 and 200 %: accepted at least {TARGET_RATE:g} of what the best fixed"
            " settings keep it at"
        )
        for task, best, points in found:
            if (task.noise == STEADY) != steady:
                continue
            within_ms = target_ns(PROFILES[task.profile]) / MS
            for p in points:
                words = _words((task.profile, task.workers, p["shape"], p["load"]))
                words += "" if task.noise == STEADY else f", {task.noise}"
                kept.add(
                    p["p99_ms"] / within_ms,
                    f"{words}: {p['p99_ms']:.2f} of {within_ms:.2f} ms"
                    f" ({100 * p['late']:.2f} % late)",
                )
                lost.add(1.0 + p["missed"] if p["missed"] else 0.0, f"{words}: {p['missed']}")
                # Bursts leave the workers idle between them: 110 % of these is no full load.
                if p["load"] > 1 and p["shape"] == "poisson":
                    rate.add(
                        _over(TARGET_RATE * best["rate"], p["rate"]),
                        f"{words}: {p['rate']:,.0f} rows/s, best fixed {best['rate']:,.0f}"
                        f" (wait {best['wait_ms']} ms, batch {best['max_batch']})",
                    )
        verdicts += [kept, lost, rate]
    return verdicts


def of_fairness(found: dict[tuple[str, int, str], Found]) -> Verdict:
    """The interactive flow beside the bulk."""
    verdict = Verdict("beside 10,000 queued rows: p99 grows by the batches in flight and its own")
    for (name, workers, policy), f in found.items():
        verdict.add(
            (f.beside_ms - f.alone_ms) / f.allowed_ms,
            f"{name} x{workers}, {policy}: {f.alone_ms:.2f} -> {f.beside_ms:.2f} ms"
            f" (allowed +{f.allowed_ms:.2f})",
        )
    return verdict
