"""How a side of a litmus test ends that was promised something else, or nothing any more."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import sys
import time

PATIENT_S = 60.0  # for the start of another process


class Broken(Exception):
    """What was promised did not hold."""


class Told:
    """Whether the parent has said that it is enough (SIGTERM). Before that, `total` counts."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self.enough = False
        signal.signal(signal.SIGTERM, self._hear)

    def _hear(self, number: int, frame: object) -> None:
        self.enough = True

    def more(self, done: int) -> int:
        """How many more to do; 0 when it is enough."""
        if self.enough:
            return 0
        return 2**62 if self._total is None else self._total - done


_calls = itertools.count(1)


def die_at(call: int) -> None:
    """Die at once, as by kill -9, when it comes here for the given time."""
    if next(_calls) == call:
        os.kill(os.getpid(), signal.SIGKILL)


def end_with_parent() -> None:
    """Be killed when the test's process ends, however that ends."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit(1)


class Progress:
    """Gives the processor away while nothing moves, and ends a side that stands still."""

    def __init__(self, stall_s: float) -> None:
        self._stall_ns = int(stall_s * 1e9)
        self._since_ns = time.monotonic_ns()

    def made(self) -> None:
        self._since_ns = time.monotonic_ns()

    def none(self) -> None:
        if time.monotonic_ns() - self._since_ns > self._stall_ns:
            raise Broken(f"no progress for {self._stall_ns / 1e9:g} s")
        os.sched_yield()
