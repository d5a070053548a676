"""`batchpool size`: what a load of tasks needs, by formulas that stand beside their results."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, fields

from batchpool.tasks.sizing import BUSY_MOST, Demand, Figure, figures

SIZE_HELP = "say what a load of tasks needs: boxes, cores, memory, servers"
SIZE_EPILOG = """\
It asks no pool and no server. Beside each number stands its formula. The time of a batch and its
size are those of your model (batchpool_batch_seconds in /metrics); the costs of a task are measured
ones, which docs/tasks.md names.

examples:
  batchpool size --rate 1000 --input-bytes 2048 --output-bytes 1536 --batch-ms 14 --batch 64
  batchpool size --rate 1000 --input-bytes 2048 --output-bytes 1536 --batch-ms 14 --batch 64 \\
                 --uncollected 1                a result that nobody reads stays an hour
  batchpool size --rate 100 --input-bytes 150000 --output-bytes 4000 --batch-ms 30 --batch 16 \\
                 --store sqlite --json

"""
SIZE_EXITS = ("printed, and --boxes are enough", "printed, and --boxes are too few")

_NUMBERS: dict[str, tuple[type[int] | type[float], str]] = {
    "rate": (float, "tasks a second, of one row each"),
    "input_bytes": (int, "bytes of a task's inputs"),
    "output_bytes": (int, "bytes of its result"),
    "batch_ms": (float, "time of a batch in a worker"),
    "batch": (int, "rows of such a batch"),
    "workers": (int, "workers (GPUs) of a box"),
    "frontends": (int, "front ends of a box"),
    "boxes": (int, "machines"),
    "wait_s": (float, "time from the submission of a task to its end"),
    "collect_s": (float, "time from its end until its caller reads the result"),
    "grace_s": (float, "task_collect_grace_s"),
    "uncollected": (float, "part of the results that nobody reads, from 0 to 1"),
    "ttl_s": (float, "task_result_ttl_s, the time that those stay"),
    "copies": (int, "copies of Redis' memory: 2 with a replica of each server"),
}


def add_size_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `batchpool size`."""
    defaults = {field.name: field.default for field in fields(Demand)}
    for name, (kind, text) in _NUMBERS.items():
        default = defaults[name]
        is_needed = not isinstance(default, int | float)
        parser.add_argument(
            "--" + name.replace("_", "-"), metavar="N", type=kind, required=is_needed,
            default=None if is_needed else default,
            help=text if is_needed else f"{text} (default {default:g})",
        )  # fmt: skip
    parser.add_argument(
        "--store", choices=("redis", "sqlite"), default="redis",
        help="where tasks are kept: a server for all boxes, or a database of each (default redis)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def size(args: argparse.Namespace) -> int:
    """Print the figures; 1 where the boxes given are too few."""
    demand = Demand(store=args.store, **{name: getattr(args, name) for name in _NUMBERS})
    found = figures(demand)
    needed = next(int(figure.value) for figure in found if figure.name == "boxes needed")
    if args.json:
        rows = [asdict(figure) for figure in found]
        print(json.dumps({"demand": asdict(demand), "figures": rows}, indent=1))
    else:
        print(_table(found))
        if needed > demand.boxes:
            print(
                f"\n{demand.boxes} of {needed} boxes: with these, workers or task processes would"
                f" be busy for more than {BUSY_MOST:.0%} of the time"
            )
    return 1 if needed > demand.boxes else 0


def _table(found: list[Figure]) -> str:
    values = [f"{_short(figure.value)} {figure.unit}".strip() for figure in found]
    names = max(len(figure.name) for figure in found)
    width = max(map(len, values))
    return "\n".join(
        f"{figure.name:<{names}}  {value:>{width}}  = {figure.formula}"
        for figure, value in zip(found, values, strict=True)
    )


def _short(value: float) -> str:
    """A number to three digits, whole where it is large."""
    if value == 0 or math.log10(abs(value)) >= 2:
        return f"{value:,.0f}"
    return f"{value:.3g}"
