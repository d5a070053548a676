"""The plain alternative to the pool: multiprocessing queues and a server that batches."""

from __future__ import annotations

import multiprocessing as mp
import queue
import time
from typing import Any

import numpy as np

from bench.support.models import WIDTH

_OUTSTANDING = 256
_MAX_BATCH = 64


def _serve(requests: Any, answers: list[Any]) -> None:
    while True:
        batch = [requests.get()]
        while len(batch) < _MAX_BATCH:
            try:
                batch.append(requests.get_nowait())
            except queue.Empty:
                break
        if any(item is None for item in batch):
            return
        y = np.concatenate([row for _, _, row in batch]) * 2 + 1
        for (client, number, _), row in zip(batch, y, strict=True):
            answers[client].put((number, row))


def _ask(
    client: int, requests: Any, answers: Any, start_at: float, seconds: float, out: Any
) -> None:
    x = np.random.default_rng(client).standard_normal((4096, WIDTH), dtype=np.float32)
    time.sleep(max(0.0, start_at - time.monotonic()))
    until = start_at + seconds
    sent = done = 0
    while time.monotonic() < until or done < sent:
        while sent - done < _OUTSTANDING and time.monotonic() < until:
            at = sent % len(x)
            requests.put((client, at, x[at : at + 1]))
            sent += 1
        if done < sent:
            at, row = answers.get()
            if not np.array_equal(row, x[at] * 2 + 1):
                raise SystemExit("wrong answer")
            done += 1
    out.put(done)


def run_queues(clients: int, seconds: float) -> float:
    """Rows per second of all clients together; every answer checked."""
    spawn = mp.get_context("spawn")
    requests, out = spawn.Queue(), spawn.Queue()
    answers = [spawn.Queue() for _ in range(clients)]
    server = spawn.Process(target=_serve, args=(requests, answers))
    server.start()
    start_at = time.monotonic() + 2.0
    askers = [
        spawn.Process(target=_ask, args=(i, requests, answers[i], start_at, seconds, out))
        for i in range(clients)
    ]
    for asker in askers:
        asker.start()
    total: int = sum(out.get(timeout=seconds + 60) for _ in askers)
    requests.put(None)
    for process in (*askers, server):
        process.join()
    return total / seconds
