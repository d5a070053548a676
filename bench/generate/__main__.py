"""The command line of `python -m bench.generate`; its package says what it is for."""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import bench.generate
from bench.embed.infinity import PASSIVE
from bench.generate.answers import Answer, equal, figures
from bench.generate.bare import Bare, options_of
from bench.generate.folders import SIZES, write_folder
from bench.generate.library import Library, Static
from bench.generate.loads import Load, arrivals, mixed, nano, with_long_prompts
from bench.generate.pool import Http, Local
from bench.support.machine import report, spread


class Engine(Protocol):
    """One that is ready. run: the answers to a load, in its order."""

    def run(self, load: Load) -> list[Answer]: ...


# By the folder, the device, the slots and the options of CausalLM.
ENGINES: dict[str, Callable[[Path, str, int, dict[str, Any]], Engine]] = {
    "bare": Bare,
    "local": Local,
    "http": Http,
    "static": Static,
    "library": Library,
}
LOADS = {"mixed": mixed, "nano": nano}


def load_of(args: argparse.Namespace, folder: Path) -> Load:
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    requests = LOADS[args.load](args.requests, vocabulary, args.shorten)
    requests = [replace(request, sampled=args.sampled) for request in requests]
    due_s = arrivals(len(requests), args.rate) if args.rate else ()
    load = Load(requests, args.at_once, due_s)
    return with_long_prompts(load, vocabulary, args.long_prompts) if args.long_prompts else load


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Every engine's figures, one engine after the other, as each needs the device for itself."""
    load = load_of(args, folder)
    warm_up = Load(load.requests[:4])
    options = options_of(load, compile=args.compile)
    found: dict[str, Any] = {}
    expected: list[Answer] | None = None
    for name in ["bare", *(name for name in args.engines if name != "bare")]:
        engine = ENGINES[name](folder, args.device, args.slots, options)
        with ExitStack() as stack:
            if close := getattr(engine, "close", None):
                stack.callback(close)
            engine.run(warm_up)
            rounds = defaultdict(list)
            for _ in range(args.rounds):
                answers = engine.run(load)
                expected = expected or answers
                same = equal(answers, expected)
                if same < len(answers) and args.device == "cpu":
                    raise SystemExit(f"{name}: {same} of {len(answers)} sequences are equal")
                for what, value in {**figures(answers), "equal": same}.items():
                    rounds[what].append(value)
        figures_of = {what: spread(values, 2) for what, values in rounds.items()}
        told = ", ".join(f"{what} {each['median']:,}" for what, each in figures_of.items())
        print(f"{name}: {told}", flush=True)  # as they come: a run may be cut short
        found |= {f"{name}: {what}": each for what, each in figures_of.items()}
        del engine
        gc.collect()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.generate",
        description=bench.generate.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--path", type=Path, help="a folder of a decoder, instead of --model")
    parser.add_argument("--model", choices=SIZES, default="tiny", help="random weights")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--load", choices=LOADS, default="mixed")
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--shorten", type=int, default=8, help="divide all lengths; 1 on a GPU")
    parser.add_argument("--slots", type=int, default=16, help="sequences that run at once")
    parser.add_argument("--sampled", action="store_true", help="by temperature, top-k and top-p")
    parser.add_argument("--compile", action="store_true", help="the option compile of CausalLM")
    parser.add_argument("--at-once", type=int, default=0, help="closed loop; 0: all at once")
    parser.add_argument("--rate", type=float, default=0.0, help="open loop: requests a second")
    parser.add_argument(
        "--long-prompts",
        type=int,
        default=0,
        metavar="TOKENS",
        help="a prompt of so many tokens besides, once a second; with --rate",
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--save", help="JSON, as bench/results/generate_MACHINE.json")
    args = parser.parse_args()
    if args.long_prompts and not args.rate:
        parser.error("--long-prompts needs an open loop: --rate")
    if args.sampled and {"static", "library"} & set(args.engines):
        parser.error("--sampled is for the engines bare, local and http")
    os.environ.update(PASSIVE)  # as in the pool's worker; torch reads it when it is imported
    with tempfile.TemporaryDirectory() as place:
        folder = args.path or write_folder(Path(place), args.model)
        report("Tokens by mixed lengths", measure(args, folder), args.save)


if __name__ == "__main__":
    main()
