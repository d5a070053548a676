"""A lone row on a GPU: the bare loop, the worker's own steps, and the whole pool.

    python -m bench.lone [--rows 2000] [--save FILE.json]

Bare: copy the row in from pinned memory, run the MLP of the examples, copy the answer out,
synchronise. That once by spinning, as `torch.cuda.synchronize` does, and once by an event that
lets the thread sleep. Runner: launch and finish of the worker's CUDA backend, in this process.
Pool: `bp.Client.infer` from another process, and of its last batches the hops as the flight
recorder has them; what is left of the whole are the client's own work and its wake-up. Every answer
is checked against the bare one.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch

import batchpool as bp
from batchpool.client.control import ask_batches
from batchpool.examples.mlp import MLP
from batchpool.model import spec_of
from batchpool.worker.backends.cuda import CudaBackend
from batchpool.worker.warm_up import warm_up, warm_up_rows
from bench.support.machine import percentile, report, spread
from bench.support.serving import serving

WIDTH = 512
_FLIGHTS = 200
_HOPS = {
    "queued_ms": "submitted to dispatched",
    "sent_ms": "dispatched to begun by the worker",
    "ran_ms": "in the worker",
    "back_ms": "from there to complete",
}


def timed_us(count: int, one: Callable[[], Any], right: Any) -> list[float]:
    """Times of `count` calls without the first tenth; the last answer is checked."""
    took = []
    for _ in range(count):
        start = time.perf_counter()
        found = one()
        took.append((time.perf_counter() - start) * 1e6)
        if right is not None and not np.array_equal(found, right):
            raise SystemExit("wrong answer")
    return took[count // 10 :]


def bare(model: MLP, x: np.ndarray, blocking: bool) -> Callable[[], Any]:
    pinned = torch.empty((1, WIDTH), pin_memory=True)
    out = torch.empty((1, WIDTH), pin_memory=True)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch states no types

    def one() -> Any:
        with torch.cuda.stream(stream), torch.inference_mode():
            pinned.numpy()[...] = x
            batch = {"x": pinned.to("cuda:0", non_blocking=True)}
            y = model.infer(cast(bp.Batch, batch))["y"]
            out.copy_(y, non_blocking=True)
            if blocking:
                event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # as above
                event.record(stream)
                event.synchronize()
            else:
                stream.synchronize()
        return out.numpy().copy()

    return one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200, help="of each way in a round")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--save")
    args = parser.parse_args()
    model = MLP()
    model.load("cuda:0")
    x = np.random.default_rng(1).standard_normal((1, WIDTH), dtype=np.float32)
    right = bare(model, x, False)()
    backend = CudaBackend(model, spec_of(MLP), "cuda:0", 64)
    warm_up(spec_of(MLP), backend, warm_up_rows(model, spec_of(MLP)), backend.graph_sizes)

    def through_backend() -> Any:
        return backend.finish(backend.launch(1, {"x": x}, {"x": None}, True))["y"]

    with (
        serving(["batchpool.examples.mlp:MLP"], "--frontends", "1") as served,
        bp.Client(served.socket) as pool,
    ):
        ways: dict[str, Callable[[], Any]] = {
            "bare, spinning": bare(model, x, False),
            "bare, sleeping": bare(model, x, True),
            "backend, launch and finish": through_backend,
            "pool, Client.infer": lambda: pool.infer("mlp", x=x)["y"],
        }
        took: dict[str, list[list[float]]] = {name: [] for name in (*ways, *_HOPS.values())}
        gc.collect()
        gc.freeze()  # torch's own objects; a full collection of them would be counted as ours
        for _ in range(args.rounds):
            for name, one in ways.items():
                took[name].append(timed_us(args.rows, one, right))
            flights = ask_batches(served.socket, min(_FLIGHTS, args.rows // 2))
            for hop, name in _HOPS.items():
                took[name].append([flight[hop] * 1e3 for flight in flights])
    rows: dict[str, Any] = {}
    for name, rounds in took.items():
        for share in (0.5, 0.99):
            values = [percentile(values, share) for values in rounds]
            rows[f"{name}: p{share * 100:.0f} us"] = spread(values, 1)
    beyond = [
        percentile(whole, 0.5) - percentile(alone, 0.5)
        for whole, alone in zip(took["pool, Client.infer"], took["bare, spinning"], strict=True)
    ]
    rows["pool beyond the bare loop, p50 us"] = spread(beyond, 1)
    report("A lone row on a GPU, rounds in turns", rows, args.save)


if __name__ == "__main__":
    main()
