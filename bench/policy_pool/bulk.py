"""A caller that keeps thousands of rows queued, and notices nobody. A child of the fairness part.

    python -m bench.policy_pool.bulk local|http WHERE

Over HTTP each request is a raw body of many rows, on a connection of its own.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from http.client import HTTPConnection
from typing import Any

import numpy as np

import batchpool as bp
from bench.load.open_sender import MODEL
from bench.support.children import obey
from bench.support.models import WIDTH

ROWS = 500  # of a request
REQUESTS = 21  # under way: 10,500 rows
PATH = f"/v2/models/{MODEL}/infer"
RAW = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": "0"}
_AGAIN_S = 0.05  # after a refusal


class Bulk:
    """done: rows answered. refused: requests."""

    def __init__(self, transport: str, where: str) -> None:
        self._transport = transport
        self._where = where
        self._x = np.random.default_rng(5).standard_normal((ROWS, WIDTH), dtype=np.float32)
        self._y = self._x * 2 + 1
        self._lock = threading.Lock()
        self.done = self.refused = 0

    def run(self, until_s: float) -> None:
        if self._transport == "local":
            self._run_local(until_s)
            return
        threads = [
            threading.Thread(target=self._run_http, args=(until_s,)) for _ in range(REQUESTS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _run_local(self, until_s: float) -> None:
        under_way: deque[Any] = deque()
        with bp.Client(self._where) as pool:
            while time.monotonic() < until_s or under_way:
                while len(under_way) < REQUESTS and time.monotonic() < until_s:
                    under_way.append(pool.submit(MODEL, x=self._x))
                self._answered(under_way.popleft().result()["y"].tobytes())

    def _run_http(self, until_s: float) -> None:
        connection = HTTPConnection("127.0.0.1", int(self._where))
        body = self._x.tobytes()
        while time.monotonic() < until_s:
            connection.request("POST", PATH, body, {**RAW, "X-Client-Id": "bulk"})
            answer = connection.getresponse()
            y = answer.read()
            if answer.status == 200:
                self._answered(y[-len(body) :])
            elif answer.status == 503:
                with self._lock:
                    self.refused += 1
                time.sleep(_AGAIN_S)
            else:
                raise RuntimeError(f"the bulk caller was answered {answer.status}: {y[:200]!r}")
        connection.close()

    def _answered(self, y: bytes) -> None:
        if y != self._y.tobytes():
            raise RuntimeError("a wrong answer")
        with self._lock:
            self.done += ROWS


def main() -> None:
    transport, where = sys.argv[1:]

    def answer(message: dict[str, Any]) -> dict[str, Any]:
        bulk = Bulk(transport, where)
        start_s = time.monotonic()
        bulk.run(start_s + message["seconds"])
        took_s = time.monotonic() - start_s
        return {"rows_per_s": bulk.done / took_s, "rows": bulk.done, "refused": bulk.refused}

    obey(answer)


if __name__ == "__main__":
    main()
