"""CPU time of a front end for each token of its event streams, of this checkout and of another one.

    python -m bench.generate.stream_cost [--streams 64] [--tokens 150] [--step-ms 20] [--rounds 5]
                                         [--before FOLDER] [--save FILE.json]

A generator makes a token for each of the streams at even times, slowly enough that each goes out in
an event of its own. The pools of both checkouts run side by side and are asked in turns. Every
token is checked. User and system time of the front end, as the kernel counts it for its threads.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.generate.overload import Call, Connections
from bench.support.machine import report, spread
from bench.support.serving import Served, serving

HERE = Path(__file__).resolve().parents[2]


def cpu_ns(pid: int) -> int:
    """The time that all threads of a process have had a core, ns."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_bytes().split()[0]) for task in tasks.iterdir())


async def round_of(served: Served, streams: int, tokens: int) -> tuple[float, float]:
    """CPU time of the front end, in us a token, and tokens an event."""
    front_end = next(pid for name, pid in served.pids().items() if "front" in name)
    calls = [Call("bench", time.perf_counter()) for _ in range(streams)]
    connections, began_ns = Connections(served.port), cpu_ns(front_end)
    await asyncio.gather(*(connections.ask(call, tokens) for call in calls))
    took_ns = cpu_ns(front_end) - began_ns
    connections.close()
    for call in calls:
        if call.steps != list(range(tokens)):
            raise SystemExit("a token was lost")
    return took_ns / 1e3 / (streams * tokens), streams * tokens / sum(c.events for c in calls)


def measure(trees: dict[str, Path | None], args: argparse.Namespace) -> dict[str, Any]:
    flags = ["--max-batch", str(args.streams), "--slots", str(4 * args.streams)]
    flags += ["--option", f"step_ms={args.step_ms}", "--frontends", "1"]
    with ExitStack() as stack:
        pools = {}
        for name, tree in trees.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            (folder / "bench").symlink_to(HERE / "bench")  # with the model, for any checkout
            env = {"PYTHONPATH": str(folder)}
            model = "paced=bench.support.paced:Paced"
            pools[name] = stack.enter_context(serving([model], *flags, env=env, tree=tree))
            asyncio.run(round_of(pools[name], args.streams, 10))
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in trees}
        for number in range(args.rounds):
            for name in sorted(pools, reverse=number % 2 == 0):
                figures = asyncio.run(round_of(pools[name], args.streams, args.tokens))
                found[name].append(figures)
    rows: dict[str, Any] = {}
    for name, rounds in found.items():
        rows[f"{name}: us a token"] = spread([us for us, _ in rounds], 1)
        rows[f"{name}: tokens an event"] = spread([each for _, each in rounds], 2)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.generate.stream_cost", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=150, help="of each stream")
    parser.add_argument("--step-ms", type=float, default=20.0, help="from one step to the next")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", type=Path, help="another checkout, with its own .venv")
    parser.add_argument("--save", help="a JSON file for the figures")
    args = parser.parse_args()
    trees: dict[str, Path | None] = {"here": None}
    if args.before:
        trees["before"] = args.before.resolve()
    report("The front end's share of a token", measure(trees, args), args.save)


if __name__ == "__main__":
    main()
