"""Models whose tensors change while a pool serves them, and a load that does not mind.

What stands on disk are notes: `version`, `shape` and `guest` (lengths of inputs, 4 at first). While
there is a note `hold` no batch ends.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import batchpool as bp
from tests.process.callers import Callers
from tests.process.models import NOTES, Numpy, note
from tests.process.pool_under_test import PATIENCE_S, Pool, until


def _noted(name: str, default: int) -> int:
    there = NOTES in os.environ and note(name).exists()
    return int(note(name).read_text()) if there else default


class Shaped(Numpy):
    """x is at most as long as the note says; it may be shorter. Every row is answered by its first
    element doubled, the version and the greatest length."""

    inputs = [bp.Tensor("x", "int64", (bp.Dim(max=_noted("shape", 4)),))]
    outputs = [bp.Tensor(name, "int64") for name in ("y", "version", "most")]

    def load(self, device: str) -> None:
        if note("broken").exists():
            raise ValueError("the weights are broken")
        self.version = _noted("version", 1)

    def infer(self, batch: bp.Batch) -> dict[str, Any]:
        n = batch.n
        while note("hold").exists():
            time.sleep(0.002)
        return {
            "y": 2 * batch["x"][:, 0],
            "version": np.full(n, self.version),
            "most": np.full(n, self.inputs[0].max_shape[0]),
        }


class Guest(Shaped):
    """A second model, with inputs that are exactly so long."""

    inputs = [bp.Tensor("x", "int64", (_noted("guest", 4),))]


class Steady(Callers):
    """Callers over HTTP and local programs that send `shaped` three elements, in every way.

    last: of each caller the (version, most) of its last answer.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        calls: list[Callable[[int], None]] = [
            self._over_http, self._over_http, self._locally, self._in_windows, self._with_futures,
            self._in_a_loop,
        ]  # fmt: skip
        super().__init__(calls)
        self.last: list[tuple[int, int]] = [(0, 0)] * len(calls)

    def await_all(self, version: int, most: int) -> None:
        """Until every caller's last answer was of this version and shape."""
        until(
            lambda: self.failures or set(self.last) == {(version, most)},
            f"answers of version {version}, {most} long; they were {self.last}",
        )
        assert self.failures == []

    def _repeat(self, number: int, ask: Callable[[Any], tuple[int, int]]) -> None:
        tag = 1_000_000 * number
        while not self._stop.is_set():
            tag += 1
            self.last[number] = ask(tag)
            self.count(number)
            time.sleep(0.01)

    def _over_http(self, number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._pool.port, timeout=PATIENCE_S)
        connection.connect()
        sock = connection.sock
        path = "/v2/models/shaped/infer"

        def ask(tag: int) -> tuple[int, int]:
            row = {"name": "x", "shape": [1, 3], "datatype": "INT64", "data": [tag, 0, 0]}
            connection.request("POST", path, json.dumps({"inputs": [row]}))
            response = connection.getresponse()
            answer = response.read()
            assert response.status == 200, answer
            assert connection.sock is sock, "the connection was closed"
            y, version, most = (out["data"][0] for out in json.loads(answer)["outputs"])
            assert y == 2 * tag
            return version, most

        self._repeat(number, ask)
        connection.close()

    def _locally(self, number: int) -> None:
        with self._pool.client() as client:
            self._repeat(number, lambda tag: _of(client.infer("shaped", x=[[tag, 0, 0]]), tag))

    def _in_windows(self, number: int) -> None:
        """More rows at once than a lane holds."""
        rows = np.zeros((300, 3), np.int64)

        def ask(tag: int) -> tuple[int, int]:
            rows[:, 0] = tag + np.arange(300)
            return _of(client.infer("shaped", x=rows), tag)

        with self._pool.client() as client:
            self._repeat(number, ask)

    def _with_futures(self, number: int) -> None:
        def ask(tag: int) -> tuple[int, int]:
            futures = [client.submit("shaped", x=[[tag + i, 0, 0]]) for i in range(5)]
            return [_of(f.result(PATIENCE_S), tag + i) for i, f in enumerate(futures)][-1]

        with self._pool.client() as client:
            self._repeat(number, ask)

    def _in_a_loop(self, number: int) -> None:
        loop = asyncio.new_event_loop()
        client = self._pool.async_client()

        def ask(tag: int) -> tuple[int, int]:
            call = client.infer("shaped", x=[[tag, 0, 0]])
            return _of(loop.run_until_complete(call), tag)

        try:
            self._repeat(number, ask)
        finally:
            loop.run_until_complete(client.close())
            loop.close()


def _of(outputs: dict[str, Any], tag: int) -> tuple[int, int]:
    y = outputs["y"].tolist()
    assert y == [2 * (tag + i) for i in range(len(y))], "each row is answered by itself"
    return int(outputs["version"][-1]), int(outputs["most"][-1])
