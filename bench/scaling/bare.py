"""The bare loop: the model without a pool, one process a GPU. A child of bench.scaling.

    python -m bench.scaling.bare WORKLOAD cuda:0|cpu ROWS.npy

Pinned batches that stand ready, two streams: each copies in, runs the model, copies out. With
`graphs` each batch is a CUDA graph of the same, captured once, as a pool does it for a model with
`cuda_graphs = True`.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import batchpool as bp
from batchpool.worker.load import load_class
from bench.scaling.workloads import FLOOR, WORKLOADS, Array, Judge, Workload, separation
from bench.support.children import obey, wait_until

_ANSWERS_BATCH = 64
_LONE = 4  # rows that are also run alone, to see what the size of a batch changes


@dataclass
class BareBatch:
    """One of the two batches in flight: rows at..at + n of the workload."""

    at: int
    stream: Any
    pinned_in: torch.Tensor
    pinned_out: torch.Tensor
    event: Any
    graph: Any = None


class Bare:
    """A loaded model and its rows."""

    def __init__(self, workload: Workload, device: str, rows: Array) -> None:
        self._of = workload
        self._device = torch.device(device)
        self._on_gpu = device.startswith("cuda")
        self._rows = torch.from_numpy(rows)
        self._model = load_class(workload.import_name)()
        self._model.load(device)
        self._batches: dict[int, list[BareBatch]] = {}
        self.right: Array = np.empty(0)

    def call(self, x: torch.Tensor) -> torch.Tensor:
        batch = bp.Batch(len(x), {self._of.input: x})
        y: torch.Tensor = self._model.infer(batch)[self._of.output]
        return y

    def answers(self, at: int, n: int) -> Array:
        """Of the rows at..at + n, as one batch."""
        with torch.inference_mode():
            y: Array = self.call(self._rows[at : at + n].to(self._device)).cpu().numpy()
        return y

    def all_answers(self, batches: list[int]) -> tuple[Array, float]:
        """The right answers, and the largest difference that the size of a batch makes."""
        n, most = len(self._rows), _ANSWERS_BATCH
        right = np.concatenate([self.answers(at, min(most, n - at)) for at in range(0, n, most)])
        if not np.isfinite(right).all():
            raise RuntimeError(f"{self._of.name}: the bare model's answers are not finite")
        noise = 0.0
        for size in batches:  # at is the row that a batch begins with
            for at in range(_LONE if size == 1 else 1):
                y = self.answers(at, size)
                noise = max(noise, float(np.abs(y - right[at : at + size]).max()))
        return right, noise

    def _batches_of(self, n: int) -> list[BareBatch]:
        if n not in self._batches:
            if 2 * n > len(self._rows):
                raise RuntimeError(f"two batches of {n} need more than {len(self._rows)} rows")
            y = self.answers(0, n)
            stream: Any = torch.cuda.Stream
            event: Any = torch.cuda.Event
            self._batches[n] = [
                BareBatch(
                    at,
                    stream(device=self._device),
                    self._rows[at : at + n].pin_memory(),
                    torch.from_numpy(y).pin_memory(),
                    event(),
                )
                for at in (0, n)
            ]
        return self._batches[n]

    def _run(self, batch: BareBatch) -> None:
        y = self.call(batch.pinned_in.to(self._device, non_blocking=True))
        batch.pinned_out.copy_(y, non_blocking=True)

    def _capture(self, batch: BareBatch) -> None:
        with torch.inference_mode(), torch.cuda.stream(batch.stream):
            self._run(batch)
            torch.cuda.synchronize()
            batch.graph = torch.cuda.CUDAGraph()
            batch.graph.capture_begin()
            self._run(batch)
            batch.graph.capture_end()

    def loop(
        self, n: int, start_ns: int, seconds: float, *, graphs: bool = False
    ) -> tuple[int, float, float]:
        """Batches of n for so long: rows, seconds, and the largest error of the last two."""
        if not self._on_gpu:
            return self._loop_on_cpu(n, start_ns, seconds)
        batches = self._batches_of(n)
        for batch in batches if graphs else ():
            if batch.graph is None:
                self._capture(batch)
        done = i = 0
        wait_until(start_ns)
        start = time.perf_counter()
        end = start + seconds
        with torch.inference_mode():
            while True:
                batch = batches[i % 2]
                batch.event.synchronize()  # its batch before is done with the buffers
                if time.perf_counter() >= end:
                    break
                with torch.cuda.stream(batch.stream):
                    if graphs:
                        batch.graph.replay()
                    else:
                        self._run(batch)
                    batch.event.record(batch.stream)
                done += n
                i += 1
            torch.cuda.synchronize()
        took = time.perf_counter() - start
        return (
            done,
            took,
            max(self._error(t.at, t.pinned_out.numpy()) for t in batches[: max(1, i)]),
        )

    def _loop_on_cpu(self, n: int, start_ns: int, seconds: float) -> tuple[int, float, float]:
        done, error = 0, 0.0
        wait_until(start_ns)
        start = time.perf_counter()
        while (took := time.perf_counter() - start) < seconds or not done:
            at = done // n % 2 * n
            error = self._error(at, self.answers(at, n))
            done += n
        return done, took, error

    def _error(self, at: int, y: Array) -> float:
        return Judge(self.right, 0.0).error(at, y)


def main() -> None:
    name, device, path = sys.argv[1:]
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    bare = Bare(WORKLOADS[name], device, np.load(path))

    def answer(message: dict[str, Any]) -> dict[str, Any]:
        if message["do"] == "answers":
            right, noise = bare.all_answers(message["batches"])
            np.save(message["path"], right)
            scale = float(np.abs(right).max())
            return {
                "scale": scale,
                "noise": noise,
                "tolerance": max(4 * noise, FLOOR * scale),
                "separation": separation(right),
            }
        if message["do"] == "right":
            bare.right = np.load(message["path"])
            return {}
        rows, took_s, error = bare.loop(
            message["n"], message["start_ns"], message["seconds"], graphs=message["graphs"]
        )
        return {"rows": rows, "took_s": took_s, "error": error}

    obey(answer)


if __name__ == "__main__":
    main()
