"""A Redis server of a benchmark, on a port and a unix socket, with nothing left behind."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import redis

from bench.support.serving import free_port

_PATIENCE_S = 30.0


class RedisProcess:
    """One server. url: for `tasks_store`."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="bp-redis-"))
        port = free_port()
        self.url = f"redis://127.0.0.1:{port}"
        self.client = redis.Redis(port=port)
        self._command = [
            "redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(self._folder),
            "--save", "", *arguments,
        ]  # fmt: skip
        self.start()

    def start(self) -> None:
        """Start it, and wait until it has loaded what it had."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        until_s = time.monotonic() + _PATIENCE_S
        while True:
            try:
                self.client.ping()
                return
            except redis.exceptions.ConnectionError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.02)

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; after one that ends it, wait until it has ended."""
        self._process.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self._process.wait()

    def close(self) -> None:
        """End it, and remove its folder."""
        self.client.close()
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def redis_process(*arguments: str) -> Iterator[RedisProcess]:
    """A server that answers, until the end of the block."""
    server = RedisProcess(arguments)
    try:
        yield server
    finally:
        server.close()
