"""The reasons for which a side of a litmus test ends: a violation, an order, a stall, a death."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import sys
import time

PATIENT_S = 60.0  # for the start of another process


class Violation(Exception):
    """Raised by a side that saw the other side break a rule."""


class StopOrder:
    """The parent's order to stop, by SIGTERM. total: the work to do without it; None for any."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self.ordered = False
        signal.signal(signal.SIGTERM, self._hear)

    def _hear(self, number: int, frame: object) -> None:
        self.ordered = True

    def remaining(self, done: int) -> int:
        """The work that remains when `done` is done; 0 after the order to stop."""
        if self.ordered:
            return 0
        return 2**62 if self._total is None else self._total - done


_calls = itertools.count(1)


def die_at(call: int) -> None:
    """Kill this process at the given call, counted from 1."""
    if next(_calls) == call:
        os.kill(os.getpid(), signal.SIGKILL)


def end_with_parent() -> None:
    """Have this process killed when the test's process ends, for whatever reason."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit(1)


class Progress:
    """Yields the processor while there is nothing to do; raises Violation after stall_s of it."""

    def __init__(self, stall_s: float) -> None:
        self._stall_ns = int(stall_s * 1e9)
        self._since_ns = time.monotonic_ns()

    def made(self) -> None:
        self._since_ns = time.monotonic_ns()

    def none(self) -> None:
        if time.monotonic_ns() - self._since_ns > self._stall_ns:
            raise Violation(f"no progress for {self._stall_ns / 1e9:g} s")
        os.sched_yield()
