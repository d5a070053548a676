"""A pool for a benchmark: started, awaited, stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from batchpool.client.control import ask_status
from batchpool.core.errors import PoolError


@dataclass(frozen=True)
class Served:
    """A running pool: its socket, its port, and the pids of its processes by name."""

    socket: str
    port: int
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    def pids(self) -> dict[str, int]:
        return {p["name"]: p["pid"] for p in ask_status(self.socket)["processes"] if p["pid"]}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(
    models: Sequence[str],
    *flags: str,
    env: Mapping[str, str] | None = None,
    log: IO[bytes] | None = None,
    tree: Path | None = None,
) -> Iterator[Served]:
    """A pool with these models and flags, ready. env: more than ours; log: instead of stderr;
    tree: another checkout, with an environment of its own in .venv."""
    with tempfile.TemporaryDirectory(prefix="bp-") as folder:
        path, port = f"{folder}/pool.sock", free_port()
        python = sys.executable if tree is None else str(tree / ".venv/bin/python")
        command = [python, "-m", "batchpool", "serve", "--socket", path]
        command += ["--port", str(port), "--log-level", "warning"]
        for model in models:
            command += ["--model", model]
        process = subprocess.Popen(
            [*command, *flags], env={**os.environ, **(env or {})}, stderr=log, cwd=tree
        )
        try:
            await_ready(process, path)
            yield Served(path, port, process)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def await_ready(process: subprocess.Popen[bytes], path: str, timeout_s: float = 300) -> None:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"the pool ended with exit status {process.returncode}")
        if os.path.exists(path):
            try:
                if ask_status(path)["state"] == "ready":
                    return
            except PoolError:
                pass
        time.sleep(0.05)
    raise RuntimeError("the pool did not get ready in time")


def cpu_seconds(pid: int, thread: int | None = None) -> float:
    """User and system time a process has used, or one of its threads."""
    path = f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat"
    with open(path, "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
