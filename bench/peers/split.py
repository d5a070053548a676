"""Division of the cores: load and server share them all, or each has its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_CORES_A_THREAD = 4  # of wrk; one thread sends about as much as any server answers on so many


def all_cores() -> frozenset[int]:
    return frozenset(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Split:
    """threads: of wrk.  pinned: it keeps to the last so many cores and the server to the others;
    else the kernel places both, on all."""

    threads: int
    pinned: bool = False

    def __str__(self) -> str:
        where = (
            "of its own, the servers on the others" if self.pinned else "shared with the servers"
        )
        return f"{self.threads} thread{'s' * (self.threads > 1)}, cores {where}"

    def of_load(self, cores: frozenset[int]) -> frozenset[int]:
        return frozenset(sorted(cores)[-self.threads :]) if self.pinned else cores

    def of_server(self, cores: frozenset[int]) -> frozenset[int]:
        """ValueError: none are left."""
        if not self.pinned:
            return cores
        if left := cores - self.of_load(cores):
            return left
        raise ValueError(f"{self.threads} threads of wrk leave no core for a server")


def usual() -> Split:
    return Split(max(1, len(all_cores()) // _CORES_A_THREAD))


def move(pids: Iterable[int], cores: frozenset[int]) -> None:
    """All threads of these processes; what they start inherits it."""
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(int(thread.name), cores)
