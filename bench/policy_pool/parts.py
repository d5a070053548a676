"""The parts by name, in the order in which they are worth running when time is short."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench import batch_gain, one_by_one
from bench.policy.verdicts import Verdict
from bench.policy_pool import engine, fairness, target, waits
from bench.policy_pool.findings import Findings, Settings

_RATE, _ONE_BY_ONE_S = 1000.0, 7.0
_GAIN_S = 1.0
_GPU_GAIN = 5.0  # at the largest batch, at least


@dataclass(frozen=True)
class Part:
    """run: measures and judges. usual_s: what it takes on 16 cores with whole measuring times."""

    run: Callable[[Findings, Settings], None]
    usual_s: float


def run_one_by_one(findings: Findings, settings: Settings) -> None:
    """The bound is for batches; one by one stands beside it."""
    late = Verdict("requests left at their times, else INVALID")
    batched = Verdict(f"batched: goodput at least 0.99 of {_RATE:,.0f} requests/s")
    slow = Verdict(f"batched: p99 at most {one_by_one.GOOD_MS:g} ms")
    for name, found in one_by_one.measure(_RATE, 1, settings.seconds(_ONE_BY_ONE_S), 2):
        findings.add(name, found)
        late.add(found["behind_p99_ms"] / 10, f"{name}: {found['behind_p99_ms']:.1f} ms late")
        if name == "max_batch 64":
            offered = found["sent"] / settings.seconds(_ONE_BY_ONE_S)
            told = f"{found['goodput_per_s']:,.0f} of {offered:,.0f} /s"
            batched.add(0.99 * offered / max(found["goodput_per_s"], 1e-9), told)
            slow.add(found["p99_ms"] / one_by_one.GOOD_MS, f"{found['p99_ms']:.1f} ms")
    findings.judge([late, batched, slow])


def run_gain_mlp(findings: Findings, settings: Settings) -> None:
    on = batch_gain.device_of("mlp")
    if not on.startswith(settings.device):
        raise RuntimeError(f"--device {settings.device}: torch sees {on} only")
    _gain(findings, settings, "mlp", 3, _GPU_GAIN if on.startswith("cuda") else 0.0)


def run_gain_minilm(findings: Findings, settings: Settings) -> None:
    _gain(findings, settings, "minilm", 1, 0.0)


def _gain(findings: Findings, settings: Settings, name: str, rounds: int, least: float) -> None:
    findings.add("model", batch_gain.import_of(name))
    findings.add("device", batch_gain.device_of(name))
    rates: batch_gain.Rates = {}
    for side, n, rate in batch_gain.measure(name, rounds, settings.seconds(_GAIN_S)):
        rates.setdefault((side, n), []).append(rate)
        findings.add(f"{side}, batch {n}: rows/s", rates[side, n])
    verdict = Verdict(f"batch {batch_gain.BATCHES[-1]} gives at least {least:g} x batch 1")
    for side in ("pool", "bare"):
        for n in batch_gain.BATCHES[1:]:
            found = batch_gain.gains(rates, side, n)
            findings.add(f"{side}: batch {n} / batch 1", found)
        middle = sorted(found)[len(found) // 2]
        if least:
            verdict.add(least / middle, f"{side}: x {middle:.1f}")
    findings.judge([verdict])


PARTS = {
    "engine-http": Part(engine.run_http, 60),
    "engine-local": Part(engine.run_local, 45),
    "waits": Part(waits.run, 150),
    "target": Part(target.run, 70),
    "fairness": Part(fairness.run, 60),
    "engine-two-cores": Part(engine.run_two_cores, 25),
    "gain-mlp": Part(run_gain_mlp, 60),
    "one-by-one": Part(run_one_by_one, 35),
    "gain-minilm": Part(run_gain_minilm, 60),
}
