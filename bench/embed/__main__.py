"""The command line of `python -m bench.embed`; what it is for stands in bench/embed/__init__.py."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench.embed
from batchpool.supervisor.plan.devices import available_cores
from bench.embed import infinity
from bench.embed.bare import model_folder
from bench.embed.infinity import PASSIVE
from bench.peers.envs import DEFAULT
from bench.process_cost import ran_ns
from bench.support.busy import busy_loops
from bench.support.children import Child
from bench.support.machine import percentile, report, spread
from bench.support.serving import serving
from bench.support.texts import make_texts

TEXTS = 400
_MODEL = "batchpool.examples.minilm:MiniLM"


@dataclass(frozen=True)
class Way:
    """One way to the vectors. ask: takes requests under way and seconds, and returns what it has
    seen. pids: of the processes that do the work; None where the answer tells their CPU time."""

    name: str
    ask: Callable[[int, float], dict[str, Any]]
    pids: Callable[[], list[int]] | None


@contextmanager
def ways(device: str, envs: Path, peers: bool) -> Iterator[list[Way]]:
    """All ways, started and ready."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "texts.json").write_text(json.dumps(make_texts(TEXTS)))
        cores = available_cores()
        env = {"OMP_NUM_THREADS": str(cores), **PASSIVE}
        bare = stack.enter_context(Child("bench.embed.bare", str(folder), device, env=env))
        bare.ask("right")
        load = stack.enter_context(Child("bench.embed.load", str(folder)))
        flags = ("--devices", "cpu" if device == "cpu" else "0")
        pool = stack.enter_context(serving([_MODEL], *flags))

        def http(port: int, path: str, form: str) -> Callable[[int, float], dict[str, Any]]:
            return lambda at_once, seconds: load.ask(
                "http", port=port, path=path, form=form, at_once=at_once, seconds=seconds
            )

        def ours() -> list[int]:
            return list(pool.pids().values())

        found = [
            Way("batchpool, infer", http(pool.port, "/v2/models/minilm/infer", "infer"), ours),
            Way("batchpool, embeddings", http(pool.port, "/v1/embeddings", "embeddings"), ours),
            Way(
                "batchpool, local",
                lambda at_once, seconds: load.ask(
                    "local", socket=pool.socket, at_once=at_once, seconds=seconds
                ),
                ours,
            ),
        ]
        if peers:
            started = infinity.serving(device, cores, folder / "infinity.log", envs)
            port, pid = stack.enter_context(started)
            ask = http(port, "/embeddings", "embeddings")
            found.append(Way("infinity, embeddings", ask, lambda: [pid]))
        for way in ("encoder", "encode"):
            found.append(
                Way(
                    f"{way}, bare",
                    lambda at_once, seconds, way=way: bare.ask(  # type: ignore[misc]
                        way, at_once=at_once, seconds=seconds
                    ),
                    None,
                )
            )
        yield found


def turn(way: Way, at_once: int, seconds: float) -> dict[str, float]:
    """One way's figures of one turn."""
    pids = way.pids() if way.pids else []
    before_ns = sum(map(ran_ns, pids))
    seen = way.ask(at_once, seconds)
    cpu_s = seen.get("cpu_s", (sum(map(ran_ns, pids)) - before_ns) / 1e9)
    return {
        "texts/s": seen["answers"] / seen["seconds"],
        "p50 ms": statistics.median(seen["took_ms"]),
        "p99 ms": percentile(seen["took_ms"], 0.99),
        "CPU ms a text": cpu_s * 1e3 / seen["answers"],
    }


def measure(args: argparse.Namespace) -> dict[str, list[float]]:
    """Every round's figures by load and way."""
    found: dict[str, list[float]] = defaultdict(list)
    with ways(args.device, args.envs, not args.without_peer) as all_ways:
        for way in all_ways:
            turn(way, 8, min(2.0, args.seconds))  # warms up
        for number in range(args.rounds):
            for loops in dict.fromkeys((0, args.busy)):
                with busy_loops(loops):
                    for at_once in args.connections:
                        first = number % len(all_ways)
                        for way in all_ways[first:] + all_ways[:first]:
                            beside = f"beside {loops} busy loops" if loops else "quiet"
                            name = f"{beside}, {at_once} at once, {way.name}"
                            for what, value in turn(way, at_once, args.seconds).items():
                                found[f"{name}: {what}"].append(value)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.embed",
        description=bench.embed.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--envs", type=Path, default=DEFAULT, help=f"default {DEFAULT}")
    verbs = parser.add_subparsers(dest="verb", required=True)
    setup = verbs.add_parser("setup", help="make the environment of infinity")
    setup.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    run = verbs.add_parser("run", help="measure all in turns")
    run.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    run.add_argument("--connections", type=int, nargs="+", default=[1, 8, 64], metavar="N")
    run.add_argument("--rounds", type=int, default=5)
    run.add_argument("--seconds", type=float, default=4.0, help="of each turn")
    run.add_argument("--busy", type=int, default=2, help="loops that compute; 0 for none")
    run.add_argument("--without-peer", action="store_true", help="do not start infinity")
    run.add_argument("--save", help="JSON, as bench/results/embed_MACHINE.json")
    args = parser.parse_args()
    if args.verb == "setup":
        infinity.setup(args.device, args.envs)
        return
    if not args.without_peer and (why := infinity.missing(args.device, args.envs)):
        raise SystemExit(f"{why}; or say --without-peer")
    model_folder()
    rows = {name: spread(values, 2) for name, values in measure(args).items()}
    report("MiniLM: texts to vectors", rows, args.save)


if __name__ == "__main__":
    main()
