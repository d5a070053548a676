"""A pool that keeps tasks, for benchmarks that kill it: killed, stopped, started again, judged."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from batchpool.client.control import ask_status
from batchpool.core.errors import PoolError
from bench.chaos.tagged import BEATS
from bench.support.serving import free_port

FAST = "bench.chaos.tagged:Tagged"
SLOW = "bench.chaos.tagged_tasks:Slow"
WIDER = "bench.chaos.tagged_tasks:Wider"
STATES = ("queued", "running", "done", "failed", "cancelled")
_LOOK_S = 0.02
_READY_S = 60.0


class TaskPool:
    """A pool in a folder, on one port for all its lives. wrapper: a command that runs it."""

    def __init__(self, folder: Path) -> None:
        self.wrapper: Sequence[str] = ()
        self.port = free_port()
        self.socket = str(folder / "s")
        self.config = folder / "pool.toml"
        self._folder = folder
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "beats").mkdir()
        (folder / "state").mkdir()

    def configure(self, model: str, max_batch: int = 32, **settings: object) -> None:
        """Write the configuration with this model."""
        server = {
            "port": self.port, "socket": self.socket, "state_dir": str(self._folder / "state"),
            "frontends": 2, "tasks": True, "log_level": "error", "task_evict_on_read": False,
            **settings,
        }  # fmt: skip
        lines = ["[server]", *(f"{key} = {_toml(value)}" for key, value in server.items())]
        lines += ["[[model]]", f'import = "{model}"', 'devices = "cpu"', f"max_batch = {max_batch}"]
        self.config.write_text("\n".join([*lines, ""]))

    def start(self) -> None:
        """Start it, again and again while what is left of the last one is in the way."""
        until_s = time.monotonic() + _READY_S
        command = [*self.wrapper, sys.executable, "-m", "batchpool", "serve", str(self.config)]
        env = {**os.environ, BEATS: str(self._folder / "beats")}
        while time.monotonic() < until_s:
            if self._process is None or self._process.poll() is not None:
                with self._log.open("ab") as log:
                    self._process = subprocess.Popen(
                        command, env=env, stderr=log, start_new_session=True
                    )
            with suppress(PoolError, OSError, KeyError):
                if ask_status(self.socket)["state"] == "ready":
                    return
            time.sleep(_LOOK_S)
        raise SystemExit(f"the pool did not get ready: {self._log.read_text()[-2000:]}")

    def pids(self, kind: str) -> list[int]:
        """The processes of one kind; none while nobody can be asked."""
        with suppress(PoolError, OSError, KeyError):
            found = ask_status(self.socket)["processes"]
            return [p["pid"] for p in found if p["pid"] and p["name"].split()[0] == kind]
        return []

    def kill_all(self) -> None:
        """SIGKILL to every process at once, as a machine that loses its power."""
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> tuple[int, float]:
        """SIGTERM; the exit status and how long it took, in seconds."""
        assert self._process is not None
        begun_s = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(120), time.monotonic() - begun_s

    def command(self, *words: str) -> str:
        """The output of one command of `batchpool` for this pool."""
        command = [sys.executable, "-m", "batchpool", *words]
        found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if found.returncode:
            raise SystemExit(f"{' '.join(words)} ended with {found.returncode}: {found.stderr}")
        return found.stdout

    @property
    def store(self) -> Path:
        """The folder of the store."""
        return self._folder / "state" / f"tasks-{self.port}"

    def states(self) -> dict[str, int]:
        """The tasks in the store by state, after the pool has ended."""
        with sqlite3.connect(self.store / "tasks.db") as db:
            rows = db.execute("SELECT state, count(*) FROM tasks GROUP BY 1").fetchall()
        db.close()
        return {STATES[state]: n for state, n in rows}


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


@contextmanager
def task_pool() -> Iterator[TaskPool]:
    """A pool that is not started yet; killed and its folder removed at the end."""
    with tempfile.TemporaryDirectory(prefix="bp-kills-") as folder:
        pool = TaskPool(Path(folder))
        try:
            yield pool
        finally:
            pool.kill_all()
