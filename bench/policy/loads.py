"""Models (by their service times) and loads (by their arrivals) of the policy benchmark.

A load is an array of intended send times; its rows are the same for every policy, since the
random numbers come from the seed alone. All are Poisson arrivals whose rate follows a shape:
unit-rate arrivals are put through the inverse of the summed rate.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]

LOADS = (0.05, 0.2, 0.5, 0.8, 0.95, 1.1)
_CYCLE = 40  # batch times from one burst to the next
_BURST = 0.1  # of a cycle, its end: at first nobody knows how long a batch takes
_BURST_TIMES = 10  # the rate within one over the rate outside


@dataclass(frozen=True)
class Profile:
    """A model: t(n) = base + n x row, in ms; sizes: the only ones its engine takes."""

    name: str
    base_ms: float
    row_ms: float
    max_batch: int = 64
    sizes: tuple[int, ...] = ()

    def time_ns(self, n: int) -> float:
        """The time of a batch of n rows."""
        n = next((size for size in self.sizes if size >= n), n)
        return (self.base_ms + n * self.row_ms) * 1e6

    def capacity_per_s(self, workers: int = 1, n: int = 0) -> float:
        """Rows per second in batches of n; 0: of max_batch."""
        n = n or self.max_batch
        return workers * n / self.time_ns(n) * 1e9


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("per-call", 5.0, 0.05),
        Profile("engine-64", 64 / 12.0, 0.0, sizes=(64,)),
        Profile("per-row", 0.2, 0.5),
        Profile("gpu", 1.0, 0.02),
        Profile("engine-steps", 1.0, 0.1, sizes=(1, 8, 64)),
        Profile("slow-call", 20.0, 0.2),  # in a real pool
    )
}
SWEPT = ("per-call", "engine-64", "per-row", "gpu")  # under every load


def seed_of(*what: Any) -> int:
    """A number that equal words give in every process."""
    return zlib.crc32(repr(what).encode())


def arrivals_ns(shape: str, rate_per_s: float, rows: int, batch_ns: float, seed: int) -> I64:
    """Intended send times [rows], rising, of this mean rate. batch_ns: what bursts scale with."""
    units = np.cumsum(np.random.default_rng(seed).exponential(size=rows))
    span_ns = rows / rate_per_s * 1e9
    grid = np.linspace(0, span_ns, 4001)
    if shape == "poisson":
        rate = np.ones(4000)
    elif shape == "bursts":
        cycle_ns = _CYCLE * batch_ns
        grid = np.unique(
            np.concatenate(
                [
                    np.arange(0, span_ns + cycle_ns, cycle_ns) + at * cycle_ns
                    for at in (0, 1 - _BURST)
                ]
            )
        )
        rate = np.where(np.arange(len(grid) - 1) % 2 == 1, float(_BURST_TIMES), 1.0)
        rate /= 1 + _BURST * (_BURST_TIMES - 1)
    elif shape == "diurnal":
        rate = 1 + 0.9 * np.sin(2 * np.pi * (np.arange(4000) + 0.5) / 4000)
    elif shape == "step":  # a tenth of the peak, the peak, a tenth of it again
        third = np.arange(4000) * 3 // 4000
        rate = np.where(third == 1, 9.0, 1.0) * 3 / 11
    else:
        raise ValueError(shape)
    summed = np.concatenate([[0.0], np.cumsum(rate * np.diff(grid))]) * rate_per_s / 1e9
    beyond = units > summed[-1]
    times = np.interp(units, summed, grid)
    times[beyond] = grid[-1] + (units[beyond] - summed[-1]) / rate_per_s * 1e9
    return times.astype(np.int64)
