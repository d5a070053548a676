"""The processes of a litmus test: started by exec, awaited without sleeping and with a limit."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parents[2]
# 1 takes seconds; 60 about as many minutes as 1 takes seconds.
SCALE = float(os.environ.get("BATCHPOOL_LITMUS_SCALE", "1"))
LONGEST_S = 60 + 60 * SCALE


def scaled(n: int) -> int:
    return max(1, int(n * SCALE))


class SideFailed(Exception):
    """Raised when a side ended with an error; names the side and its last line."""


class Side:
    """One side of a litmus test: a process that runs tests/litmus/side.py."""

    def __init__(self, role: str, env: dict[str, str] | None = None, **task: Any) -> None:
        self.role = role
        task = {"stall_s": 60.0, "seed": 1, "rule": "", **task}
        fds = [task[key] for key in ("fd", "client_bell", "server_bell") if key in task]
        self._out = tempfile.TemporaryFile()  # noqa: SIM115
        self._err = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.litmus.side", role, json.dumps(task)],
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
        )
        self.pidfd = os.pidfd_open(self.process.pid)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        """Send SIGSTOP and wait until the process has stopped."""
        self.signal(signal.SIGSTOP)
        await_(lambda: self._state() in "TZX", f"{self.role} to stop")

    def end(self) -> dict[str, Any]:
        """Order the side to stop, and return its counts."""
        self.signal(signal.SIGTERM)
        return self.counted()

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def _state(self) -> str:
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        return stat.rpartition(") ")[2][0]

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def counted(self) -> dict[str, Any]:
        """The counts that it printed. Raises SideFailed if its exit status is not 0."""
        code = self.process.wait(LONGEST_S)
        self._err.seek(0)
        self._out.seek(0)
        if code:
            lines = self._err.read().decode().strip().splitlines() or ["(nothing on stderr)"]
            raise SideFailed(f"{self.role} ended with {code}: {lines[-1]}")
        found: dict[str, Any] = json.loads(self._out.read())
        return found

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.pidfd)
        self._out.close()
        self._err.close()


class Sides:
    """Several sides, all of which are ended when the block ends."""

    def __init__(self, *sides: Side) -> None:
        self.sides = list(sides)

    def __enter__(self) -> Sides:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for side in self.sides:
            side.close()

    def first_end(self) -> Side:
        """The side that ends first."""
        return _first_of(self.sides, time.monotonic() + LONGEST_S)

    def finish(self) -> list[dict[str, Any]]:
        """Wait for all sides and return their counts; the first failure ends them all."""
        left, until = list(self.sides), time.monotonic() + LONGEST_S
        while left:
            side = _first_of(left, until)
            side.counted()
            left.remove(side)
        return [side.counted() for side in self.sides]


def _first_of(sides: list[Side], until: float) -> Side:
    """The side that ends first."""
    poll = select.poll()
    for side in sides:
        poll.register(side.pidfd, select.POLLIN)
    ready = poll.poll(max(0.0, until - time.monotonic()) * 1000)
    if not ready:
        raise SideFailed(f"still running: {', '.join(side.role for side in sides)}")
    return next(side for side in sides if side.pidfd == ready[0][0])


def await_(ready: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    """Poll a condition, yielding the processor; fails after timeout_s."""
    until = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > until:
            raise SideFailed(f"waited {timeout_s:g} s for {what}")
        os.sched_yield()
