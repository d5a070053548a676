"""Texts a second to vectors on a GPU: over HTTP by wrk, by local clients; the tokenizer alone.

    python -m bench.text_rates [--connections 64 1024] [--seconds 5] [--rounds 3] [--devices 0]
                               [--preprocess-workers auto 3] [--tokenizer FILE] [--serve=FLAG ...]
                               [--save FILE.json]

The shape of all-MiniLM-L6-v2 with random weights, in half precision by CUDA graphs; 400 texts of 4
to 120 words. In turns: HTTP with so many connections, one text a request, JSON in and binary out,
heads that differ; local clients with windows of texts; local clients with texts one by one; the
tokenizer in one process that has all cores. Each vector is compared with that of single precision
on the CPU. "cores" of a role is the CPU time of its processes over the time of the run.

--preprocess-workers: one pool after the other with so many processes of preprocess, the figures of
each under its number; "auto" as the pool chooses.

--tokenizer: a tokenizer.json of the library tokenizers; without it words become numbers by their
checksum, which is cheaper than a tokenizer.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import batchpool as bp
from batchpool.client.control import ask_status
from bench.embed.load import infer_body
from bench.embed.texts_file import COSINE, Known
from bench.http import need_wrk
from bench.load import heads as load_heads
from bench.support.children import Child, together
from bench.support.machine import report, spread
from bench.support.rounds import Rounds, cores_used, run_in_turns
from bench.support.serving import Served, serving
from bench.support.stage_times import stage_times
from bench.support.texts import make_texts

_TEXTS = 400
_LOAD = Path(__file__).parent / "load"
_WINDOW, _SINGLES = 256, 128
_CALL = 256  # texts of one call of the tokenizer alone


def known_texts(tokenizer: str) -> Known:
    """The texts with their vectors in single precision on the CPU."""
    from bench.support.minilm_random import RandomMiniLM
    from tests.unit.models.staged import Pair

    texts = [text.encode() for text in make_texts(_TEXTS)]
    batch = bp.Batch(len(texts), {"text": np.array(texts, object)})
    right = Pair(lambda: RandomMiniLM(tokenizer)).run(batch)["embedding"]
    likeness = right @ right.T - np.eye(len(texts))
    if (likeness.max(axis=1) > COSINE).mean() > 0.5:
        raise SystemExit("the vectors are so alike that a mix-up would not show")
    return Known(texts, right)


def run_wrk(
    served: Served, folder: Path, connections: int, seconds: float, threads: int
) -> dict[str, Any]:
    """One closed loop; SystemExit for a wrong or a broken answer."""
    headers = {"Content-Type": "application/json"}
    env = {
        **os.environ,
        "TALLY": str(_LOAD / "wrk_tally.lua"),
        "BODIES": str(folder / "bodies"),
        "RIGHT": str(folder / "right"),
        "WIDTH": "384",
        "COSINE": str(COSINE),
        "HEADS": load_heads.DIFFERING,
        "AGENT": load_heads.AGENT,
        "HEADERS": "\n".join(f"{key}: {value}" for key, value in headers.items()),
    }
    command = ["wrk", f"-t{threads}", f"-c{connections}", f"-d{max(1, round(seconds))}s"]
    command += ["--timeout", "30s", "-s", str(_LOAD / "wrk_texts.lua")]
    done = subprocess.run(
        [*command, f"http://127.0.0.1:{served.port}/v2/models/minilm/infer"],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    line = next(text for text in done.stdout.splitlines() if text.startswith("JSON "))
    found: dict[str, Any] = json.loads(line[5:])
    if found["wrong"] or found["other"] or found["broken"] or not found["right"]:
        raise SystemExit(f"not every answer was right: {found}")
    return found


def tokenizer_alone(known: Known, path: str, seconds: float) -> float:
    """Texts a second of one process with all cores; 0 without a tokenizer."""
    if not path:
        return 0.0
    tokenizer: Any = importlib.import_module("tokenizers").Tokenizer.from_file(path)
    tokenizer.no_padding()
    texts = [text.decode() for text in known.texts[:_CALL]]
    done, begun_s = 0, time.monotonic()
    while time.monotonic() - begun_s < seconds:
        tokenizer.encode_batch_fast(texts)
        done += len(texts)
    return done / (time.monotonic() - begun_s)


def measure(
    args: argparse.Namespace, folder: Path, known: Known, preprocess_workers: str
) -> dict[str, Any]:
    rounds: Rounds = defaultdict(list)
    flags = ["--devices", args.devices, "--max-batch", str(args.max_batch)]
    flags += ["--preprocess-workers", preprocess_workers, *args.serve]
    if args.tokenizer:
        flags += ["--option", f"tokenizer={args.tokenizer}"]
    begun_s = time.monotonic()
    with ExitStack() as stack:
        served = stack.enter_context(serving(["bench.support.minilm_random:RandomMiniLM"], *flags))
        ready_s = time.monotonic() - begun_s
        children = [
            stack.enter_context(Child("bench.load.text_client", str(folder), served.socket))
            for _ in range(args.clients)
        ]

        def over_http(connections: int) -> None:
            of = f"HTTP, {connections} connections"
            with stage_times(served, rounds, of), cores_used(served, rounds, of):
                found = run_wrk(served, folder, connections, args.seconds, args.threads)
            rounds[f"{of}: texts/s"].append(found["right"] / (found["duration_us"] / 1e6))
            rounds[f"{of}: p50 ms"].append(found["p50_us"] / 1e3)
            rounds[f"{of}: p99 ms"].append(found["p99_us"] / 1e3)
            rounds[f"{of}: refused"].append(found["refused"])

        def by_clients(do: str, window: int) -> None:
            of = f"{args.clients} local clients, {do} of {window}"
            with stage_times(served, rounds, of), cores_used(served, rounds, of):
                found = together(children, do, args.seconds, window=window)
            rounds[f"{of}: texts/s"].append(sum(each["texts"] for each in found) / args.seconds)

        local: list[Callable[[], None]] = [
            lambda: by_clients("windows", _WINDOW),
            lambda: by_clients("singles", _SINGLES),
        ]
        turns: list[Callable[[], None]] = [
            *(lambda n=n: over_http(n) for n in args.connections),
            *(local if children else ()),
            lambda: rounds["tokenizer alone, all cores: texts/s"].append(
                tokenizer_alone(known, args.tokenizer, min(2.0, args.seconds))
            ),
        ]
        run_in_turns(turns, args.rounds, rounds)
        status = ask_status(served.socket)["models"]["minilm"]
        for stage, counts in status.get("stages", {}).items():
            rounds[f"rows of a batch of {stage}, mean of all"].append(counts["mean_batch"])
    figures: dict[str, Any] = {of: spread(values, 2) for of, values in rounds.items()}
    figures["ready after, s"] = round(ready_s, 1)
    figures["preprocess"] = status["preprocess"]
    figures["tokenizer"] = "of a file" if args.tokenizer else "checksums of words"
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.text_rates",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--connections", type=int, nargs="+", default=[64, 1024])
    parser.add_argument(
        "--clients", type=int, default=4, help="local clients, a process each, or 0"
    )
    parser.add_argument("--threads", type=int, default=4, help="of wrk")
    parser.add_argument("--max-batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--preprocess-workers", nargs="+", default=["auto"])
    parser.add_argument("--tokenizer", default="", help="a tokenizer.json")
    parser.add_argument("--devices", default="0", help='of the pool, as "0" or "cpu"')
    parser.add_argument("--serve", action="append", default=[], help="a flag of batchpool serve")
    parser.add_argument("--save")
    args = parser.parse_args()
    need_wrk()
    known = known_texts(args.tokenizer)
    with tempfile.TemporaryDirectory(prefix="bp-") as place:
        folder = Path(place)
        known.write(folder)
        known.right.astype(np.float32).tofile(folder / "right")
        bodies = [
            {"id": str(number), **infer_body(text.decode())}
            for number, text in enumerate(known.texts)
        ]
        (folder / "bodies").write_text("\n".join(json.dumps(body) for body in bodies))
        pools = {each: measure(args, folder, known, each) for each in args.preprocess_workers}
        rows = pools[args.preprocess_workers[0]]
        if len(pools) > 1:
            rows = {
                f"preprocess_workers {each}, {name}": value
                for each, found in pools.items()
                for name, value in found.items()
            }
        report("Texts to vectors", rows, args.save)


if __name__ == "__main__":
    main()
