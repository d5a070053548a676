"""Rows of every size through a ring so small that it wraps all the time, with stops anywhere."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections import deque
from typing import Any

import pytest

import batchpool as bp
from tests.process.pool_under_test import PATIENCE_S, serving

MAX_BYTES = 4096  # of a text of `Echo`
SLOTS = 8
PRODUCERS = 3
REQUESTS = 300
STOP_S = 0.01


def some_text(dice: random.Random) -> bytes:
    """Random bytes of a random length, often one near the ends of a word or of the slot."""
    near = [0, 1, 7, 8, 9, MAX_BYTES - 1, MAX_BYTES]
    return dice.randbytes(dice.choice([*near, dice.randrange(MAX_BYTES)]))


def produce(socket: str, seed: int, counts: Any) -> None:
    """One to three rows a request, several requests under way; every answer is what was sent."""
    dice = random.Random(seed)
    under_way: deque[tuple[list[bytes], Any]] = deque()
    rows = 0

    def take() -> None:
        texts, future = under_way.popleft()
        found = future.result(PATIENCE_S)
        assert found["text"].tolist() == texts
        assert found["length"].tolist() == [len(text) for text in texts]

    with bp.Client(socket) as client:
        for _ in range(REQUESTS):
            texts = [some_text(dice) for _ in range(dice.randint(1, 3))]
            while True:
                try:
                    under_way.append((texts, client.submit("echo", text=texts)))
                    break
                except bp.Overloaded:
                    take()
            rows += len(texts)
        while under_way:
            take()
    counts.put(rows)


@pytest.mark.long
def test_no_row_is_torn_lost_or_doubled() -> None:
    """C21: counts in are counts out and every byte is right, while producers, batcher and worker
    are stopped and go on at any moment."""
    dice = random.Random(7)
    spawn = multiprocessing.get_context("spawn")
    counts = spawn.Queue()
    model = {"import": "Echo", "max_batch": 4, "max_wait_ms": 0}
    with serving(model, server={"client_slots": SLOTS}) as pool:
        producers = [
            spawn.Process(target=produce, args=(pool.socket, seed, counts))
            for seed in range(PRODUCERS)
        ]
        for producer in producers:
            producer.start()
        servants = [*pool.pids("worker"), *pool.pids("batcher")]
        stops = 0
        while alive := [p.pid for p in producers if p.pid and p.is_alive()]:
            victim = dice.choice([*servants, *alive])
            os.kill(victim, signal.SIGSTOP)
            time.sleep(STOP_S * dice.random())  # the stop itself
            os.kill(victim, signal.SIGCONT)
            stops += 1
            time.sleep(STOP_S * dice.random())
        assert [producer.exitcode for producer in producers] == [0] * PRODUCERS
        rows = sum(counts.get(timeout=10) for _ in producers)
        tally = pool.tally("echo")
        assert tally["admitted"] == tally["completed"] == tally["rows"] == rows
        assert rows > PRODUCERS * REQUESTS > 100 * SLOTS
        assert stops > 10
        assert {row["restarts"] for row in pool.status()["processes"]} == {0}
