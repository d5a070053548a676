"""The pools of the scaling benchmark: several start at the same time; who uses how much CPU."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from batchpool.client.control import ask_status
from batchpool.core.errors import PoolError
from bench.support.children import wait_until
from bench.support.serving import Served, await_ready, cpu_seconds, free_port

_END_S = 20.0
_READY_S = 120.0
_KINDS = ("batcher", "worker", "frontend")


class Pool:
    """A pool that starts when it is made, and is of use after `await_ready`. env: beside ours."""

    def __init__(
        self, import_name: str, flags: Sequence[str], env: Mapping[str, str] | None = None
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="bp-")
        path, port = f"{self._folder.name}/pool.sock", free_port()
        command = [sys.executable, "-m", "batchpool", "serve", "--model", import_name]
        command += ["--socket", path, "--port", str(port), "--state-dir", self._folder.name]
        command += ["--log-level", "warning", "--drain-s", "5", *flags]
        self.served = Served(
            path, port, subprocess.Popen(command, env={**os.environ, **(env or {})})
        )
        self.pids: dict[str, int] = {}
        self._dismissed = False

    def await_ready(self) -> None:
        await_ready(self.served.process, self.served.socket, _READY_S)
        self.pids = self.served.pids()

    def dismiss(self) -> None:
        """It ends; a second word would make it hurry."""
        if not self._dismissed:
            self._dismissed = True
            self.served.process.send_signal(signal.SIGTERM)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.dismiss()
        process = self.served.process
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()  # the others of the pool end with it
            process.wait()
        self._folder.cleanup()

    # -- what it did ------------------------------------------------------------------------

    def counts(self) -> dict[str, Any]:
        """The model's counts so far; {} if the batcher is too busy to say."""
        try:
            (counts,) = ask_status(self.served.socket)["models"].values()
        except PoolError:
            return {}
        return dict(counts)

    def shares(self, start_ns: int, seconds: float) -> dict[str, float]:
        """Cores that its processes use meanwhile, user and system time: of the batcher, and the
        mean over the workers and over the front ends. Waits until then."""
        wait_until(start_ns)
        before, start = self._cpu_s(), time.monotonic()
        wait_until(start_ns + int(seconds * 1e9))
        after, took = self._cpu_s(), time.monotonic() - start
        found: dict[str, float] = {}
        for kind in _KINDS:
            of = [name for name in before if name.startswith(kind) and name in after]
            if of:
                found[kind] = statistics.fmean((after[n] - before[n]) / took for n in of)
        return found

    def _cpu_s(self) -> dict[str, float]:
        found = {}
        for name, pid in self.pids.items():
            try:
                found[name] = cpu_seconds(pid)
            except OSError:
                continue  # it was restarted: no share of it is told
        return found


def batches_between(before: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
    """Rows and extents of a mean batch between two tallies; {} where there is nothing to tell."""
    batches = after.get("batches", 0) - before.get("batches", 0)
    if batches <= 0:
        return {}
    extents = [(of.get("mean_extents") or 0) * of.get("batches", 0) for of in (before, after)]
    return {
        "rows a batch": (after["rows"] - before["rows"]) / batches,
        "extents a batch": (extents[1] - extents[0]) / batches,
    }


def cores() -> int:
    return len(os.sched_getaffinity(0))
