"""Steady load on a pool under test, every answer checked."""

from __future__ import annotations

import threading
import time

import numpy as np

import batchpool as bp
from tests.process.pool_under_test import PATIENCE_S, Pool, until

# Without one they would take every processor from what they stand beside, in other tests as well.
PAUSE_S = 0.001


class Load:
    """Threads that call a pool and check every answer, with short pauses, until they are stopped.

    refused: calls that were not accepted (503). lost: calls under way when the pool went away.
    absent: calls that found no pool.
    """

    def __init__(self, pool: Pool, threads: int = 3) -> None:
        self.answered = 0
        self.refused = 0
        self.lost = 0
        self.absent = 0
        self.faults: list[BaseException] = []
        self._stop = threading.Event()
        self._clients = [pool.client() for _ in range(threads)]
        self._threads = [
            threading.Thread(target=self._run, args=(i, client))
            for i, client in enumerate(self._clients)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        until(lambda: self.answered > 20, "the first answers")
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for client in self._clients:
            client.close()
        assert self.faults == []
        assert not any(thread.is_alive() for thread in self._threads)

    def _run(self, number: int, client: bp.Client) -> None:
        call = 0
        while not self._stop.is_set():
            call += 1
            n = 1 + call % 100
            x = np.full((n, 4), number * 1000 + call % 1000, np.float32)
            try:
                y = client.infer("affine", x=x)["y"]
                assert (y == 2 * x + 1).all()
                self.answered += 1
                time.sleep(PAUSE_S)
            except (bp.Draining, bp.NotReady):
                self.refused += 1
                time.sleep(0.002)
            except bp.PoolStopped as exc:
                if "may or may not have run" in str(exc):
                    self.lost += 1
                else:
                    self.absent += 1
                time.sleep(0.002)
            except BaseException as exc:
                self.faults.append(exc)
                return
