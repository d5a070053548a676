"""A model that says which version of it is loaded, and load that watches versions change.

The note `version` is what stands on disk: a whole number. What a load meets is the note `load`: a
list of words, one for each load, the first of which it takes:

    fine    load           wrong   load, and answer the warm-up wrongly
    raises  fail           dies    end the process
    waits   load when the note `go` is there
"""

from __future__ import annotations

import http.client
import os
import signal
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

import batchpool as bp
from tests.process.callers import Callers
from tests.process.models import Numpy, note
from tests.process.pool_under_test import PATIENCE_S, Pool

HEADERS = {"Inference-Header-Content-Length": "0"}


class Version(Numpy):
    """Every row gets its tag, the version and the pid of the worker."""

    inputs = [bp.Tensor("tag", "int64")]
    outputs = [bp.Tensor(name, "int64") for name in ("tag", "version", "pid")]
    wrong = False

    def load(self, device: str) -> None:
        words = note("load").read_text().split() if note("load").exists() else []
        word = words[0] if words else "fine"
        note("load").write_text(" ".join(words[1:]))
        if word == "raises":
            raise ValueError("the weights are broken")
        if word == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        while word == "waits" and not note("go").exists():
            time.sleep(0.005)
        self.wrong = word == "wrong"
        self.version = int(note("version").read_text()) if note("version").exists() else 1

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        n = 1 if self.wrong else batch.n
        own = np.full(n, self.version), np.full(n, os.getpid())
        return {"tag": batch["tag"][:n], "version": own[0], "pid": own[1]}


class Other(Version):
    """Another class with these tensors: what a changed `import` loads."""

    name = "version"

    def load(self, device: str) -> None:
        super().load(device)
        self.version += 1000


@dataclass(frozen=True)
class Seen:
    """One answer: when it was asked for, the version and the worker."""

    sent_s: float
    version: int
    pid: int


class Steady(Callers):
    """Callers over HTTP that keep their connections, and one local program; each asks at its own
    pace, all together `per_s` times a second, and looks at every answer.

    seen: each caller's answers, in order.
    """

    enough = 20

    def __init__(self, pool: Pool, per_s: float = 500, callers: int = 8) -> None:
        self._pool = pool
        self._pause_s = (callers + 1) / per_s
        super().__init__([self._locally, *[self._over_http] * callers])
        self.seen: list[list[Seen]] = [[] for _ in self.counts]

    def _locally(self, number: int) -> None:
        with self._pool.client() as client:
            self._ask_on(number, lambda tag: _row_of(client.infer("version", tag=[tag])))

    def _over_http(self, number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._pool.port, timeout=PATIENCE_S)
        connection.connect()
        sock = connection.sock

        def ask(tag: int) -> tuple[int, ...]:
            body = np.int64(tag).tobytes()
            connection.request("POST", "/v2/models/version/infer", body, HEADERS)
            response = connection.getresponse()
            answer = response.read()
            assert response.status == 200, answer
            assert connection.sock is sock, "the connection was closed"
            at = int(response.headers["Inference-Header-Content-Length"])
            return tuple(np.frombuffer(answer[at:], np.int64).tolist())

        self._ask_on(number, ask)
        connection.close()

    def _ask_on(self, number: int, ask: Any) -> None:
        tag, due_s = number * 1_000_000, time.monotonic()
        while not self._stop.is_set():
            tag += 1
            sent_s = time.monotonic()
            found, version, pid = ask(tag)
            assert found == tag, f"asked for {tag}, got {found}"
            self.seen[number].append(Seen(sent_s, version, pid))
            self.count(number)
            due_s = max(due_s + self._pause_s, time.monotonic() - self._pause_s)
            time.sleep(max(0.0, due_s - time.monotonic()))

    def paths(self, pids: set[int]) -> set[tuple[int, ...]]:
        """The versions that each caller saw of the workers with these pids, one after another,
        without repeats."""
        return {_changes([s.version for s in seen if s.pid in pids]) for seen in self.seen}


def _row_of(outputs: dict[str, Any]) -> tuple[int, ...]:
    return tuple(int(outputs[name][0]) for name in ("tag", "version", "pid"))


def _changes(versions: list[int]) -> tuple[int, ...]:
    found: list[int] = []
    for version in versions:
        if found[-1:] != [version]:
            found.append(version)
    return tuple(found)
