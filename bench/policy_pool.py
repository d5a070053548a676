"""Batching policies in a real pool, whose model sleeps as long as a device would take.

    python -m bench.policy_pool waits  [--rounds 3] [--seconds 6] [--save FILE.json]
    python -m bench.policy_pool engine [--road local|http] [--scale 1] [--save FILE.json]

waits   20 ms + 0.2 ms a row, 5, 50 and 95 % of what 64 at once allow (1,951 rows/s): the
        adaptive policy beside fixed waits of 0, 5, 20 and 50 ms, all in turns
engine  an engine that takes 64 rows only and 64/12000 s for them; 10,000 requests/s from four
        processes, then the same with 30,000 for two seconds in the middle: the adaptive
        policy, the same with a target of 100 ms, and a fixed wait of 10 ms. --scale 0.25
        makes the engine, the requests and the room for them a quarter of that, for a machine
        with few cores

Requests are sent at their intended times (bench/open_load.py), from which latencies count. Where
`behind_p99_ms` is large, the senders had no cores left, and the figures say nothing about a pool.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from bench.machine import report, spread
from bench.open_load import REFUSED, RIGHT, Load, Phase, offer
from bench.policy_models import sleeping
from bench.serving import Served, serving

_MODEL = "bench.policy_models:Sleeper"
_WAITS_MS = (0, 5, 20, 50)
_BASE_MS, _ROW_MS = 20.0, 0.2
_CAPACITY = 64 / (_BASE_MS + 64 * _ROW_MS) * 1e3
_SHARES = (0.05, 0.5, 0.95)

_ENGINE_MS = 64 / 12.0
_STEADY, _SPIKE = 10_000, 30_000
_SPIKE_AT_S, _SPIKE_S, _AFTER_S = 4.0, 2.0, 6.0
_AGAIN_S = 1.0  # after the spike nobody is refused; with a target latencies are usual again
_TARGET_MS = 100.0


@contextmanager
def pools(
    policies: dict[str, tuple[str, ...]], env: dict[str, str], *flags: str
) -> Iterator[dict[str, Served]]:
    """A pool for each policy, all at the same time; those that are not asked are idle."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(serving([_MODEL], *of_policy, *flags, env=env))
            for name, of_policy in policies.items()
        }


def fixed(wait_ms: float) -> tuple[str, ...]:
    return "--policy", "fixed", "--max-wait-ms", f"{wait_ms:g}"


def scene_waits(args: argparse.Namespace) -> dict[str, Any]:
    policies = {f"fixed {wait} ms": fixed(wait) for wait in _WAITS_MS}
    policies["adaptive"] = ("--policy", "adaptive")
    seen: dict[tuple[float, str], list[dict[str, float]]] = {}
    with pools(policies, sleeping(_BASE_MS, _ROW_MS), "--frontends", "1") as running:
        for round_ in range(args.rounds):
            for share in _SHARES:
                for name, served in running.items():
                    phases: list[Phase] = [(share * _CAPACITY, args.seconds)]
                    load = offer("local", served.socket, phases, args.processes, round_)
                    seen.setdefault((share, name), []).append(load.figures())
    rows: dict[str, Any] = {}
    for (share, name), rounds in seen.items():
        for key in ("p50_ms", "p99_ms", "right_per_s", "refused", "lost", "behind_p99_ms"):
            told = f"{share * 100:.0f} %, {name}: {key}"
            rows[told] = spread([one[key] for one in rounds], 1)
    return rows


def after_spike(load: Load, usual_ms: float) -> dict[str, float]:
    """Seconds from the end of the spike until nobody is refused any more, and until latencies are
    usual for good: of every tenth of a second the 99th percentile at most twice that of before,
    or 20 ms. A full lane takes its rows over (capacity - load) to drain, at best."""
    end_s = _SPIKE_AT_S + _SPIKE_S
    refused_s = load.at_s[(load.what == REFUSED) & (load.at_s >= end_s)] - end_s
    usual_at_s = 0.0
    for tenth in np.arange(0.0, _AFTER_S, 0.1):
        of = (load.at_s >= end_s + tenth) & (load.at_s < end_s + tenth + 0.1)
        of &= load.what == RIGHT
        if of.any() and np.quantile(load.took_ms[of], 0.99) > max(2 * usual_ms, 20.0):
            usual_at_s = tenth + 0.1
    return {
        "last_refused_s": float(refused_s.max(initial=0.0)),
        "usual_again_s": float(usual_at_s),
    }


def scene_engine(args: argparse.Namespace) -> dict[str, Any]:
    adaptive = ("--policy", "adaptive")
    target = ("--target-p99-ms", f"{_TARGET_MS:g}")
    policies = {"adaptive": adaptive, "target": (*adaptive, *target), "fixed 10 ms": fixed(10)}
    room = ("--slots", str(int(4096 * args.scale)), "--client-slots", str(int(1024 * args.scale)))
    flags = ("--batch-sizes", "64", "--frontends", str(args.frontends), *room)
    steady_phases: list[Phase] = [(_STEADY * args.scale, args.seconds)]
    spike_phases: list[Phase] = [
        (_STEADY * args.scale, _SPIKE_AT_S),
        (_SPIKE * args.scale, _SPIKE_S),
        (_STEADY * args.scale, _AFTER_S),
    ]
    # Over HTTP one request at a time on each: more than the pool has room for, so that it refuses.
    connections = int(6144 * args.scale)
    seen: dict[tuple[str, str], list[dict[str, float]]] = {}
    with pools(policies, sleeping(_ENGINE_MS / args.scale, 0.0), *flags) as running:
        for round_ in range(args.rounds):
            for name, served in running.items():
                where = served.socket if args.road == "local" else str(served.port)
                load = offer(args.road, where, steady_phases, args.processes, round_, connections)
                steady = load.figures(1.0)
                seen.setdefault(("steady", name), []).append(steady)
                load = offer(args.road, where, spike_phases, args.processes, round_, connections)
                spike = load.figures(_SPIKE_AT_S, _SPIKE_AT_S + _SPIKE_S)
                seen.setdefault(("spike", name), []).append(spike)
                before = load.figures(1.0, _SPIKE_AT_S)
                again = load.figures(_SPIKE_AT_S + _SPIKE_S + _AGAIN_S)
                again |= after_spike(load, before["p99_ms"])
                seen.setdefault(("after", name), []).append(again)
    rows: dict[str, Any] = {}
    for (phase, name), rounds in seen.items():
        for key in rounds[0]:
            rows[f"{name}, {phase}: {key}"] = spread([one[key] for one in rounds], 1)
    return rows | engine_verdicts(seen)


def engine_verdicts(seen: dict[tuple[str, str], list[dict[str, float]]]) -> dict[str, bool]:
    """What every round must show. The target is the pool's: from its submit, not from the time
    that was meant, so that its 99th percentile here has the senders' own lateness in it."""
    steady, spike, after = (seen[phase, "adaptive"] for phase in ("steady", "spike", "after"))
    return {
        "requests left at their times; else INVALID": all(
            one["invalid"] == 0 for rounds in seen.values() for one in rounds
        ),
        "adaptive, steady: p99 < 100 ms, nothing refused or lost": all(
            one["p99_ms"] < 100 and one["refused"] + one["lost"] == 0 for one in steady
        ),
        "adaptive, spike: the excess refused, nothing lost, p99 < 500 ms": all(
            one["refused"] > 0 and one["lost"] == 0 and one["p99_ms"] < 500 for one in spike
        ),
        "adaptive: nothing refused or lost from 1 s after the spike on": all(
            one["last_refused_s"] <= _AGAIN_S and one["lost"] == 0 for one in after
        ),
        "target: latencies as usual within 1 s after the spike, nothing lost": all(
            one["usual_again_s"] <= _AGAIN_S and one["lost"] == 0 for one in seen["after", "target"]
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scene", choices=("waits", "engine"))
    parser.add_argument("--road", choices=("local", "http"), default="local")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--scale", type=float, default=1.0, help="engine: of everything")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--frontends", type=int, default=1)
    parser.add_argument("--save")
    args = parser.parse_args()
    if args.scene == "waits":
        title = f"{_BASE_MS:g} ms + {_ROW_MS:g} ms a row, {_CAPACITY:,.0f} rows/s at 64 at once"
        rows = scene_waits(args)
    else:
        title = f"An engine of 64 rows, {12_000 * args.scale:,.0f} rows/s, {args.road}"
        rows = scene_engine(args)
    report(title, rows, args.save)


if __name__ == "__main__":
    main()
