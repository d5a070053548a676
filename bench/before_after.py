"""Two checkouts of batchpool measured in turns: benchmarks of each, round after round.

    python -m bench.before_after FOLDER [--rounds 5] [--only pool http] [--save FILE.json]

FOLDER is a checkout of the state before, with an environment of its own in .venv. Each round runs
every benchmark that both have once in each tree, the trees in the other order every second round,
so that a change of the machine meets both alike. For each figure: all values of both trees, their
medians, and the least, median and greatest of the ratios after/before of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.support.machine import facts

HERE = Path(__file__).resolve().parents[1]
BENCHMARKS = {
    "pool": ["bench.pool", "--rounds", "1", "--seconds", "2"],
    "http": ["bench.http", "--connections", "64", "--rounds", "1", "--seconds", "3"],
    "process_cost": [
        "bench.process_cost",
        "--connections",
        "64",
        "--rounds",
        "1",
        "--seconds",
        "3",
    ],
    "front_cost": ["bench.front_cost", "--turns", "600", "--heads", "equal"],
    "front_cost_differing": ["bench.front_cost", "--turns", "600", "--heads", "differing"],
    "front_cost_parsed": ["bench.front_cost", "--turns", "600", "--parsed"],
    "arriving_bodies": ["bench.arriving_bodies", "--rounds", "1", "--seconds", "3"],
    "batcher_cost": ["bench.batcher_cost", "--groups", "1", "64", "--lanes", "1", "4"],
    "batcher_stage_cost": ["bench.batcher_stage_cost", "--rounds", "1"],
}


def figures(rows: dict[str, Any], prefix: str) -> dict[str, float]:
    """The numbers in a benchmark's rows by name; of a spread its median."""
    found: dict[str, float] = {}
    for name, value in rows.items():
        name = f"{prefix}: {name}"
        if isinstance(value, dict) and "median" in value:
            found[name] = value["median"]
        elif isinstance(value, dict):
            found |= figures(value, name)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[name] = value
    return found


def measure(tree: Path, name: str) -> dict[str, float]:
    """Run one benchmark in a checkout; its figures."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        own = tree / ".venv/bin/python"  # a pool's processes import what is installed
        python = str(own) if own.exists() else sys.executable
        command = [python, "-m", *BENCHMARKS[name], "--save", str(path)]
        # A pool's processes do not look into the folder that they are started in, so that they
        # would take what is installed, which is the same for both.
        env = {**os.environ, "PYTHONPATH": str(tree)}
        run = subprocess.run(
            command, check=False, cwd=tree, env=env, capture_output=True, text=True
        )
        if run.returncode != 0:
            raise SystemExit(f"{' '.join(command)} in {tree}: {run.stderr[-2000:]}")
        return figures(json.loads(path.read_text())["rows"], name)


def compared(before: list[float], after: list[float]) -> dict[str, Any]:
    ratios = sorted(b / a for a, b in zip(before, after, strict=True) if a)
    spread = [round(ratios[0], 3), round(statistics.median(ratios), 3), round(ratios[-1], 3)]
    return {
        "before": before,
        "after": after,
        "median before": statistics.median(before),
        "median after": statistics.median(after),
        "ratio after/before": spread if ratios else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path, help="a checkout of the state before")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS)
    parser.add_argument("--save", type=Path)
    args = parser.parse_args()
    trees = {"before": args.before.resolve(), "after": HERE}
    names = args.only or [
        name
        for name, (module, *_) in BENCHMARKS.items()
        if (trees["before"] / f"{module.replace('.', '/')}.py").exists()
    ]
    values: dict[str, dict[str, list[float]]] = {}
    for round_ in range(args.rounds):
        for which in sorted(trees, reverse=round_ % 2 == 0):
            for name in names:
                for figure, value in measure(trees[which], name).items():
                    each = values.setdefault(figure, {"before": [], "after": []})
                    each[which].append(value)
        print(f"round {round_ + 1} of {args.rounds}", flush=True)
        rows = {
            figure: compared(each["before"], each["after"])
            for figure, each in values.items()
            if len(each["before"]) == len(each["after"])
        }
        if args.save:
            args.save.parent.mkdir(parents=True, exist_ok=True)
            args.save.write_text(json.dumps({"machine": facts(), "rows": rows}, indent=1) + "\n")
    for figure, row in rows.items():
        print(f"  {figure:<66} {row['ratio after/before']}")


if __name__ == "__main__":
    main()
