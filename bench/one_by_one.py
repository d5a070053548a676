"""Batching against one by one: the same requests over HTTP, max_batch 64 beside max_batch 1.

    python -m bench.one_by_one [--rate 1000] [--rounds 3] [--seconds 8] [--save FILE.json]

The model has a cost per call: 2 ms + 0.02 ms a row, which is 495 rows/s one by one and 19,512 in
batches of 64. Requests are sent at their intended times; goodput counts right answers within
100 ms of them. There are more connections than the pool has room for, so that the senders are on
time although one by one falls behind.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from bench.load.open_load import RIGHT, offer
from bench.policy_pool.models import sleeping
from bench.support.machine import report, spread
from bench.support.serving import serving

GOOD_MS = 100.0
BASE_MS, ROW_MS = 2.0, 0.02


def measure(
    rate: float, rounds: int, seconds: float, processes: int
) -> Iterator[tuple[str, dict[str, float]]]:
    """Figures by name, load by load, in turns."""
    with ExitStack() as stack:
        running = {
            f"max_batch {n}": stack.enter_context(
                serving(
                    ["bench.policy_pool.models:Sleeper"],
                    *("--max-batch", str(n), "--frontends", "1"),
                    env=sleeping(BASE_MS, ROW_MS),
                )
            )
            for n in (64, 1)
        }
        for round_ in range(rounds):
            for name, served in running.items():
                load = offer("http", str(served.port), [(rate, seconds)], processes, round_)
                good = (load.what == RIGHT) & (load.took_ms <= GOOD_MS)
                yield name, {"goodput_per_s": int(good.sum()) / seconds, **load.figures()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--save")
    args = parser.parse_args()
    seen: dict[str, dict[str, list[float]]] = {}
    for name, found in measure(args.rate, args.rounds, args.seconds, args.processes):
        for key, value in found.items():
            seen.setdefault(name, {}).setdefault(key, []).append(value)
    rows: dict[str, Any] = {
        f"{name}: {key}": spread(values, 1)
        for name, figures in seen.items()
        for key, values in figures.items()
    }
    title = f"{BASE_MS:g} ms + {ROW_MS:g} ms a row; {args.rate:,.0f} requests/s over HTTP"
    report(title, rows, args.save)


if __name__ == "__main__":
    main()
