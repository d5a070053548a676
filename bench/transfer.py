"""Times of a batch from a lane to the GPU and back by every way, and where which way pays.

    python -m bench.transfer [--rounds 30] [--save FILE.json]

A lane in shared memory, 64 rows of one size, in slots that are one extent, four, or scattered:

    pinned      from an ordinary pinned buffer: what the bus gives, no lane involved
    direct      from and to the registered lane, one asynchronous copy per extent
    gathered    by the CPU into a pinned buffer, then one copy
    pageable    from the lane without registering it

GB/s from before the first copy is started until the last is done, and the microseconds for
which the thread that starts them is busy; rounds are interleaved. Every batch that arrived is
compared with what was in the slots.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from batchpool.core.layout.segments import lane_layout
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.shm.lane import Lane
from batchpool.shm.segment import create, map_checked
from batchpool.worker.backends import cuda_transfer as rules
from batchpool.worker.backends.backend import BatchPart
from batchpool.worker.backends.cuda_transfer import LaneTransfer
from batchpool.worker.gather import load_input, parts_of
from bench.support.machine import report

ROWS = 64
KIB = 1024
SIZES_KIB = (1, 2, 4, 8, 16, 32, 64, 147, 588)  # 147: 3x224x224 uint8; 588: the same in float32
SLOTS = {
    "one extent": np.arange(ROWS),
    "4 extents": np.concatenate([np.arange(i * 40, i * 40 + ROWS // 4) for i in range(4)]),
    "scattered": np.arange(ROWS) * 3,
}


def lane_of(spec: ModelSpec) -> Lane:
    layout = lane_layout(spec, 256)
    fd = create(layout, sealed=False)
    try:
        return Lane(spec, map_checked(fd, layout), layout)
    finally:
        os.close(fd)


class TransferPaths:
    """All ways for one row size. Each returns the batch on the device."""

    def __init__(self, kib: int) -> None:
        row = kib * KIB
        self.x = Tensor("x", "uint8", (row,))
        spec = ModelSpec("bytes", "torch", (self.x,), (Tensor("y", "uint8", (row,)),), ())
        self.device = torch.device("cuda:0")
        # Smaller rows than a worker's are registered as well, to see from where on it pays.
        self.direct = LaneTransfer(torch, self.device, spec, worth=lambda tensor: True)
        self.lane, self.plain = lane_of(spec), lane_of(spec)
        values = np.random.default_rng(kib).integers(0, 256, (256, row), dtype=np.uint8)
        for lane in (self.lane, self.plain):
            lane.inputs["x"].values[...] = values
            lane.outputs["y"].values[...] = 0
        self.direct.pin(self.lane)
        self.pinned = torch.empty((ROWS, row), dtype=torch.uint8, pin_memory=True)
        self.nbytes = ROWS * row

    def parts(self, lane: Lane, slots: np.ndarray) -> list[BatchPart]:
        return parts_of({0: lane}, np.zeros(ROWS, np.int64), slots)

    def ways(self, slots: np.ndarray) -> dict[str, Callable[[], Any]]:
        mine, plain = self.parts(self.lane, slots), self.parts(self.plain, slots)

        def gathered() -> Any:
            load_input(mine, "x", allocate=lambda shape: self.pinned.numpy())
            return self.pinned.to(self.device, non_blocking=True)

        def pageable() -> Any:
            array, _ = load_input(plain, "x")
            return torch.from_numpy(array).to(self.device, non_blocking=True)

        return {
            "pinned": lambda: self.pinned.to(self.device, non_blocking=True),
            "direct": lambda: self.direct.fetch(self.x, mine, ROWS, None),
            "gathered": gathered,
            "pageable": pageable,
        }

    def back(self, slots: np.ndarray) -> dict[str, Callable[[], Any]]:
        """Ways of copying outputs; there is no device tensor to look at after."""
        mine = self.parts(self.lane, slots)
        y = torch.ones((ROWS, self.nbytes // ROWS), dtype=torch.uint8, device=self.device)
        output = self.direct.outputs["y"]
        column = self.lane.outputs["y"]

        def gathered() -> None:
            self.pinned.copy_(y, non_blocking=True)
            torch.cuda.synchronize()
            column.store(mine[0].where, self.pinned.numpy())

        return {
            "direct": lambda: self.direct.deliver(output, mine, y, ROWS),
            "gathered": gathered,
        }


def measure(ways: dict[str, Callable[[], Any]], right: Any, rounds: int) -> dict[str, Any]:
    """{way: [GB/s median, min, max, busy us median]}; `right`: the batch that must arrive."""
    took: dict[str, list[float]] = {name: [] for name in ways}
    busy: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 3):
        for name, way in ways.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            found = way()
            started = time.perf_counter()
            torch.cuda.synchronize()
            end = time.perf_counter()
            if right is not None and name != "pinned" and not np.array_equal(found.cpu(), right):
                raise SystemExit(f"{name}: wrong bytes")
            if turn >= 3:
                took[name].append(end - start)
                busy[name].append(started - start)
    return {
        name: [statistics.median(t), min(t), max(t), statistics.median(busy[name])]
        for name, t in took.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--save")
    args = parser.parse_args()
    rules.COPY_NS = 0  # every batch goes the direct way, to see what it costs
    rows: dict[str, Any] = {}
    for kib in SIZES_KIB:
        paths = TransferPaths(kib)
        for name, slots in SLOTS.items():
            for way, ways, right in (
                ("in", paths.ways(slots), paths.lane.inputs["x"].values[slots]),
                ("out", paths.back(slots), None),
            ):
                for kind, (median, least, most, busy) in measure(ways, right, args.rounds).items():
                    gb = [round(paths.nbytes / t / 1e9, 1) for t in (median, most, least)]
                    rows[f"{kib} KiB rows {way}, {name}, {kind}"] = {
                        "GB/s median, min, max": gb,
                        "busy us": round(busy * 1e6, 1),
                    }
            if not (paths.lane.outputs["y"].values[slots] == 1).all():
                raise SystemExit("wrong bytes in the slots")
            paths.lane.outputs["y"].values[...] = 0
        paths.direct.unpin(paths.lane)
    report("64 rows between a lane and the GPU", rows, args.save)


if __name__ == "__main__":
    main()
