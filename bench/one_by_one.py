"""Batching against one by one: the same requests over HTTP, max_batch 64 beside max_batch 1.

    python -m bench.one_by_one [--rate 1000] [--rounds 3] [--seconds 8] [--save FILE.json]

The model has a cost per call: 2 ms + 0.02 ms a row, which is 495 rows/s one by one and 19,512 in
batches of 64. Requests are sent at their intended times; goodput counts right answers within
100 ms of them.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import Any

from bench.machine import report, spread
from bench.open_load import RIGHT, offer
from bench.policy_models import sleeping
from bench.serving import serving

_GOOD_MS = 100.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--save")
    args = parser.parse_args()
    seen: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        running = {
            f"max_batch {n}": stack.enter_context(
                serving(
                    ["bench.policy_models:Sleeper"],
                    *("--max-batch", str(n), "--frontends", "1"),
                    env=sleeping(2.0, 0.02),
                )
            )
            for n in (64, 1)
        }
        for round_ in range(args.rounds):
            for name, served in running.items():
                phases = [(args.rate, args.seconds)]
                load = offer("http", str(served.port), phases, args.processes, round_, 2048)
                good = (load.what == RIGHT) & (load.took_ms <= _GOOD_MS)
                found = {"goodput_per_s": int(good.sum()) / args.seconds, **load.figures()}
                for key, value in found.items():
                    seen.setdefault(name, {}).setdefault(key, []).append(value)
    rows: dict[str, Any] = {
        f"{name}: {key}": spread(values, 1)
        for name, figures in seen.items()
        for key, values in figures.items()
    }
    report(f"2 ms + 0.02 ms a row; {args.rate:,.0f} requests/s over HTTP", rows, args.save)


if __name__ == "__main__":
    main()
