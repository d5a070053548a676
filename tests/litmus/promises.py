"""Ends of a side of a litmus test: a broken promise, or no more work to do."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import sys
import time

PATIENT_S = 60.0  # for the start of another process


class Broken(Exception):
    """A promise of the other side did not hold."""


class Told:
    """The parent's order to stop (SIGTERM). Before that, `total` counts."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self.enough = False
        signal.signal(signal.SIGTERM, self._hear)

    def _hear(self, number: int, frame: object) -> None:
        self.enough = True

    def more(self, done: int) -> int:
        """The number still to do; 0 after the order to stop."""
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
