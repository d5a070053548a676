"""What batches gain: rows per second at a largest batch of 1, 8, 32 and 64.

    python -m bench.batch_gain [--models minilm mlp] [--rounds 3] [--seconds 3] [--save FILE.json]

The examples MiniLM (on the CPU) and MLP (on a GPU where there is one), through a pool with that
max_batch and one local client that keeps four batches of rows under way; beside it the bare
model, called with batches of that size in a loop. The answers of a pool are compared with those
of the bare model.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from contextlib import ExitStack
from typing import Any

import numpy as np

import batchpool as bp
from bench.machine import report, spread
from bench.serving import serving

BATCHES = (1, 8, 32, 64)
_IMPORTS = {
    "minilm": "batchpool.examples.minilm:MiniLM",
    "mlp": "batchpool.examples.mlp:MLP",
}
_TEXT = "the pool runs small requests of many callers together on one device in a batch"
_ROWS = 256


def device_of(name: str) -> str:
    import torch

    return "cuda:0" if name == "mlp" and torch.cuda.is_available() else "cpu"


def rows_of(name: str) -> tuple[str, Any]:
    """The input's name and `_ROWS` rows: texts of 20 words, or 512 floats."""
    random = np.random.default_rng(3)
    if name == "mlp":
        return "x", random.standard_normal((_ROWS, 512), dtype=np.float32)
    words = _TEXT.split()
    texts = [" ".join(random.choice(words, 20)).encode() for _ in range(_ROWS)]
    return "text", np.array(texts, dtype=object)


class Bare:
    """The model without a pool."""

    def __init__(self, name: str) -> None:
        import importlib

        module, _, cls = _IMPORTS[name].partition(":")
        self._model = getattr(importlib.import_module(module), cls)()
        self._device = device_of(name)
        self._model.load(self._device)
        self._name, self.rows = rows_of(name)

    def call(self, rows: Any) -> Any:
        """The output for these rows, as a numpy array on the host."""
        import torch

        if rows.dtype != object:
            rows = torch.from_numpy(rows).to(self._device)
        with torch.inference_mode():
            (out,) = self._model.infer({self._name: rows}).values()
            return out.cpu().numpy()

    def rate(self, n: int, seconds: float) -> float:
        done = at = 0
        start = time.perf_counter()
        while (took := time.perf_counter() - start) < seconds:
            self.call(self.rows[at : at + n])
            at = (at + n) % (_ROWS - n + 1)
            done += n
        return done / took


def pool_rate(pool: bp.Client, name: str, right: Any, n: int, seconds: float) -> float:
    """Rows per second with 4 n single rows under way."""
    tensor, rows = rows_of(name)
    under_way: deque[Any] = deque()
    done = i = 0
    start = time.perf_counter()
    while (took := time.perf_counter() - start) < seconds or under_way:
        while len(under_way) < 4 * n and took < seconds:
            at = i % _ROWS
            under_way.append((at, pool.submit(name, {tensor: rows[at : at + 1]})))
            i += 1
        at, future = under_way.popleft()
        (out,) = future.result().values()
        if not np.allclose(out[0], right[at], rtol=2e-2, atol=2e-3):
            raise SystemExit(f"{name}: wrong answer")
        done += 1
    return done / took


def measure(name: str, rounds: int, seconds: float) -> dict[str, Any]:
    bare = Bare(name)
    right = np.concatenate([bare.call(bare.rows[i : i + 1]) for i in range(_ROWS)])
    rates: dict[tuple[str, int], list[float]] = {}
    with ExitStack() as stack:
        clients = {}
        devices = "auto" if device_of(name).startswith("cuda") else "cpu"
        for n in BATCHES:
            flags = ("--max-batch", str(n), "--frontends", "1", "--devices", devices)
            served = stack.enter_context(serving([_IMPORTS[name]], *flags))
            clients[n] = stack.enter_context(bp.Client(served.socket))
        for n, pool in clients.items():
            pool_rate(pool, name, right, n, 1.0)
        for _ in range(rounds):
            for n, pool in clients.items():
                rates.setdefault(("pool", n), []).append(pool_rate(pool, name, right, n, seconds))
                rates.setdefault(("bare", n), []).append(bare.rate(n, seconds))
    told: dict[str, Any] = {}
    for (side, n), values in sorted(rates.items()):
        told[f"{name} on {device_of(name)}, {side}, batch {n}: rows/s"] = spread(values, 1)
    for side in ("bare", "pool"):
        for n in BATCHES[1:]:
            pairs = zip(rates[side, n], rates[side, 1], strict=True)
            gains = [a / b for a, b in pairs]
            told[f"{name} on {device_of(name)}, {side}: batch {n} / batch 1"] = spread(gains, 2)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=tuple(_IMPORTS), default=list(_IMPORTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--save")
    args = parser.parse_args()
    rows: dict[str, Any] = {}
    for name in args.models:
        rows |= measure(name, args.rounds, args.seconds)
    report("Rows per second by batch size", rows, args.save)


if __name__ == "__main__":
    main()
