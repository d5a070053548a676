"""Token ids of many lengths through a pool with CUDA graphs, beside graphs without a pool.

    python -m bench.dynamic_graphs [--device 0] [--seconds 4] [--rounds 3] [--clients 6]
                                   [--max-batch 256] [--window 512] [--no-eager]
                                   [--save FILE.json]

    bare     one process without a pool: the rows lie sorted by length, one graph for each shape,
             two batches in flight on two streams, copies in and out
    graphs   local clients, each with windows of mixed rows, through a worker with cuda_graphs
    eager    the same through a worker that starts the kernels one by one

In turns. Every vector is compared with that of the network called with that row alone: cosine
over 0.999 in half precision.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import time
from collections import defaultdict
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

import batchpool as bp
from bench.support.machine import report, spread
from bench.support.rounds import Rounds, cores_used
from bench.support.serving import serving
from bench.support.stage_times import stage_times

_ROWS = 2048
_LEAST_COSINE = 0.999
_BUCKETS = (16, 32, 64, 128)
_MODELS = {"graphs": "IdsEncoder", "eager": "EagerIdsEncoder"}
_NAMES = {"graphs": "ids_encoder", "eager": "eager_ids_encoder"}
F32 = npt.NDArray[np.float32]


def reference(device: str) -> F32:
    """The vectors [rows, 384] of all rows, each alone."""
    import torch

    from bench.support.ids_encoder import embed, make_encoder, make_rows

    encoder = make_encoder(device)
    found = []
    with torch.inference_mode():
        for row in make_rows(_ROWS):
            ids = torch.from_numpy(row)[None].to(device)
            found.append(embed(encoder, ids, torch.tensor([[len(row)]], device=device)).cpu())
    return torch.cat(found).numpy()


def worst_cosine(found: F32, expected: F32) -> float:
    """The least cosine of two lists of vectors of length one, [n, 384]."""
    return float((found * expected).sum(axis=1).min())


# -- children ------------------------------------------------------------------------------------


def bare(pipe: Connection, device: str, size: int) -> None:
    """Answers the reference first, then the rows per second of each run of so many seconds."""
    torch: Any = importlib.import_module("torch")  # its streams have no types
    from bench.support.ids_encoder import embed, make_encoder, make_rows

    expected = reference(device)
    pipe.send(expected)
    encoder, rows = make_encoder(device), make_rows(_ROWS)
    order = sorted(range(_ROWS), key=lambda at: len(rows[at]))
    batches = [order[at : at + size] for at in range(0, _ROWS, size)]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]

    def captured(stream: Any, n: int, tokens: int, pool: Any) -> tuple[Any, ...]:
        ids = torch.zeros((n, tokens), dtype=torch.int64, device=device)
        lengths = torch.ones((n, 1), dtype=torch.int64, device=device)
        host = torch.empty((n, 384), pin_memory=True)
        with torch.cuda.stream(stream):
            embed(encoder, ids, lengths)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                host.copy_(embed(encoder, ids, lengths), non_blocking=True)
        return graph, ids, lengths, host

    def ready(batch: list[int]) -> tuple[Any, Any, int]:
        tokens = next(b for b in _BUCKETS if b >= max(len(rows[at]) for at in batch))
        ids = torch.zeros((len(batch), tokens), dtype=torch.int64)
        for at, row in enumerate(batch):
            ids[at, : len(rows[row])] = torch.from_numpy(rows[row])
        lengths = torch.tensor([[len(rows[row])] for row in batch])
        return ids.pin_memory(), lengths.pin_memory(), tokens

    with torch.inference_mode():
        prepared = [ready(batch) for batch in batches]
        pools = [torch.cuda.graph_pool_handle() for _ in streams]
        graphs = [
            {tokens: captured(stream, size, tokens, pool) for tokens in _BUCKETS}
            for stream, pool in zip(streams, pools, strict=True)
        ]
        events = [torch.cuda.Event() for _ in streams]

        def run(seconds: float) -> tuple[float, float]:
            begun, done, worst = time.perf_counter(), 0, 1.0
            waiting: list[tuple[int, Any, list[int]]] = []
            at = 0
            while waiting or time.perf_counter() - begun < seconds:
                if len(waiting) < 2 and time.perf_counter() - begun < seconds:
                    side, which = at % 2, at % len(batches)
                    ids, lengths, tokens = prepared[which]
                    graph, on_ids, on_lengths, host = graphs[side][tokens]
                    with torch.cuda.stream(streams[side]):
                        on_ids.copy_(ids, non_blocking=True)
                        on_lengths.copy_(lengths, non_blocking=True)
                        graph.replay()
                        events[side].record()
                    waiting.append((side, host, batches[which]))
                    at += 1
                    continue
                side, host, batch = waiting.pop(0)
                events[side].synchronize()
                if done < _ROWS:  # the first pass is checked
                    worst = min(worst, worst_cosine(host.numpy(), expected[batch]))
                done += len(batch)
            return done / (time.perf_counter() - begun), worst

        while (seconds := pipe.recv()) is not None:
            pipe.send(run(seconds))


def client(pipe: Connection, socket: str, model: str, number: int, window: int) -> None:
    """Receives the reference, then answers each run with its rows and the worst cosine."""
    from bench.support.ids_encoder import make_rows

    expected: F32 = pipe.recv()
    rows = make_rows(_ROWS)
    rng = np.random.default_rng(number)
    with bp.Client(socket, timeout_s=60) as pool:
        pipe.send("ready")
        while (order := pipe.recv()) is not None:
            start_s, seconds = order
            time.sleep(max(0.0, start_s - time.monotonic()))
            done, worst = 0, 1.0
            while time.monotonic() < start_s + seconds:
                at = int(rng.integers(0, _ROWS - window))
                found = pool.infer(model, ids=rows[at : at + window])["embedding"]
                worst = min(worst, worst_cosine(found, expected[at : at + window]))
                done += window
            pipe.send((done / (time.monotonic() - start_s), worst))


class Clients:
    """The client processes of one served model."""

    def __init__(self, socket: str, model: str, n: int, window: int, expected: F32) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipes = []
        for number in range(n):
            ours, theirs = spawn.Pipe()
            arguments = theirs, socket, model, number, window
            spawn.Process(target=client, args=arguments, daemon=True).start()
            ours.send(expected)
            self._pipes.append(ours)
        for pipe in self._pipes:
            pipe.recv()

    def run(self, seconds: float) -> tuple[float, float]:
        """The rows per second of all clients, and the worst cosine."""
        start_s = time.monotonic() + 0.2
        for pipe in self._pipes:
            pipe.send((start_s, seconds))
        found = [pipe.recv() for pipe in self._pipes]
        return sum(rate for rate, _ in found), min(worst for _, worst in found)

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--max-batch", type=int, default=256)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--no-eager", action="store_true", help="leave the eager worker out")
    parser.add_argument("--save")
    args = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    spawn.Process(
        target=bare, args=(theirs, f"cuda:{args.device}", args.max_batch), daemon=True
    ).start()
    expected: F32 = ours.recv()
    alike = float((expected @ expected.T - 2 * np.eye(len(expected))).max())
    if alike > _LEAST_COSINE:
        raise SystemExit(f"two rows have vectors of cosine {alike}: a mix-up would not show")
    rates: dict[str, list[float]] = {"bare": [], "graphs": [], "eager": []}
    if args.no_eager:
        del rates["eager"]
    worst = dict.fromkeys(rates, 1.0)
    where: Rounds = defaultdict(list)
    flags = ("--devices", str(args.device), "--max-batch", str(args.max_batch))
    begun_s = time.monotonic()
    with ExitStack() as stack:
        pools = {
            name: stack.enter_context(
                serving([f"bench.support.ids_encoder:{_MODELS[name]}"], *flags)
            )
            for name in rates
            if name != "bare"
        }
        started_s = time.monotonic() - begun_s
        sides = {
            name: Clients(pool.socket, _NAMES[name], args.clients, args.window, expected)
            for name, pool in pools.items()
        }
        for turn in range(args.rounds + 1):
            for name, found in rates.items():
                if name == "bare":
                    ours.send(args.seconds)
                    rate, cosine = ours.recv()
                else:
                    with (
                        stage_times(pools[name], where, name),
                        cores_used(pools[name], where, name),
                    ):
                        rate, cosine = sides[name].run(args.seconds)
                worst[name] = min(worst[name], cosine)
                if turn:  # the first turn warms up
                    found.append(rate)
                else:
                    where.clear()
        for side in sides.values():
            side.close()
        ours.send(None)
    ratios = [a / b for a, b in zip(rates["graphs"], rates["bare"], strict=True)]
    rows: dict[str, Any] = {f"{name}: rows/s": spread(found) for name, found in rates.items()}
    rows["graphs through the pool / bare graphs"] = spread(ratios, 2)
    if "eager" in rates:
        gains = [a / b for a, b in zip(rates["graphs"], rates["eager"], strict=True)]
        rows["graphs / eager, both through a pool"] = spread(gains, 2)
    rows |= {name: spread(values, 2) for name, values in where.items()}
    rows["worst cosine"] = {name: round(found, 5) for name, found in worst.items()}
    rows["both pools ready after, s"] = round(started_s, 1)
    report("token ids of 6 to 122 tokens", rows, args.save)
    if min(worst.values()) < _LEAST_COSINE:
        raise SystemExit(f"wrong vectors: {worst}")


if __name__ == "__main__":
    main()
