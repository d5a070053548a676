"""Several boxes on one Redis: their rate, and what becomes of tasks when parts of them end.

    python -m bench.boxes scaling [--boxes 1,2,3] [--tasks 3000] [--batch-ms 20] [--row-ms 1]
        [--rounds 3] [--save FILE.json]
    python -m bench.boxes kills [--boxes 2,3] [--tasks 3000] [--only "box killed"]
        [--save FILE.json]
    python -m bench.boxes cost [--groups 16,64,256] [--tasks 2048] [--fsync everysec]
        [--save FILE.json]
    python -m bench.boxes http [--connections 64] [--seconds 8] [--rounds 3] [--before CHECKOUT]
        [--save FILE.json]

scaling: boxes are processes with the store, the runner and the upkeep of the task process, and an
engine that sleeps, so that several have room on few cores; each finds `--tasks` in the store. What
became of the engines' time is told: idle, late since the machine was busy, rows a batch.
kills: boxes are whole pools. Callers submit over HTTP and collect every result, and in the middle a
box or the server is killed, stopped, filled or emptied.
cost: CPU of one task of 2 KB in the server and in the thread of a box's store, step by step.
http: CPU of each process of a box under such tasks over HTTP, in turns with a pool of another
checkout where one is named.

Exit status 1, with a list, if a task ended wrong, twice or not at all.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from bench.boxes.cost import cost
from bench.boxes.http_cost import http_cost
from bench.boxes.kills import STRIKES, kill_cell
from bench.boxes.scaling import scaling
from bench.support.machine import report, spread


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    rates = parts.add_parser("scaling", help="tasks per second")
    kills = parts.add_parser("kills", help="tasks accounted for while parts end")
    costs = parts.add_parser("cost", help="CPU of a task, step by step")
    costs.add_argument("--groups", type=_numbers, default=_numbers("16,64,256"))
    costs.add_argument("--tasks", type=int, default=2048)
    costs.add_argument("--fsync", choices=("no", "everysec", "always"), default="everysec")
    costs.add_argument("--save", metavar="FILE.json")
    roads = parts.add_parser("http", help="CPU of a task over HTTP, by process")
    roads.add_argument("--connections", type=int, default=64)
    roads.add_argument("--seconds", type=float, default=8)
    roads.add_argument("--rounds", type=int, default=3)
    roads.add_argument("--before", type=Path, metavar="CHECKOUT")
    roads.add_argument("--save", metavar="FILE.json")
    for part, boxes in ((rates, "1,2,3"), (kills, "2,3")):
        part.add_argument("--boxes", type=_numbers, default=_numbers(boxes))
        part.add_argument("--tasks", type=int, default=3000)
        part.add_argument("--save", metavar="FILE.json")
    rates.add_argument("--batch-ms", type=float, default=20)
    rates.add_argument("--row-ms", type=float, default=1)
    rates.add_argument("--rounds", type=int, default=3, help="of all numbers of boxes, in turns")
    kills.add_argument("--only", choices=STRIKES)
    args = parser.parse_args()
    rows: dict[str, Any] = {}
    faults = []
    if args.part == "cost":
        for group in args.groups:
            rows[f"groups of {group}, us [Redis, store]"] = cost(group, args.tasks, args.fsync)
    elif args.part == "http":
        for number in range(args.rounds):
            for name, tree in {"before": args.before, "now": None}.items():
                if name == "now" or tree:
                    row = http_cost(args.connections, args.seconds, tree)
                    rows[f"{name}, round {number}"] = row
    elif args.part == "scaling":
        rates_of: dict[int, list[float]] = {boxes: [] for boxes in args.boxes}
        for number in range(args.rounds):
            for boxes in args.boxes:
                row = scaling(boxes, args.tasks, args.batch_ms, args.row_ms)
                rates_of[boxes].append(row["tasks_per_s"])
                rows[f"{boxes} boxes, round {number}"] = row
                if row["wrong"] or row["states"] != {"done": row["tasks"]}:
                    faults.append(f"{boxes} boxes: {row['wrong']} wrong, {row['states']}")
        rows |= {f"{boxes} boxes, tasks/s": spread(of) for boxes, of in rates_of.items()}
    else:
        for name in [args.only] if args.only else STRIKES:
            for boxes in args.boxes:
                row, found = kill_cell(name, boxes, args.tasks)
                print(name, boxes, json.dumps(row), flush=True)
                rows[f"{name}, {boxes} boxes"] = row
                faults += found
    rows["violated"] = faults
    report("boxes on one Redis", rows, args.save)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
