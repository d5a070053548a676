"""Readiness over HTTP tells whether a request would be served, model by model.

Live says that the front end answers; only what listens can say more.
"""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from tests.process.pool_under_test import Pool, serving, until
from tests.process.web import Answer, ask, outputs

X = json.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
).encode()
Y = {"y": [3, 5, 7, 9]}


@pytest.fixture(scope="module")
def pool() -> Any:
    twice = {"import": "tests.fault.models:LoadsTwice", "workers_per_device": 2}
    with serving("Affine", "LoadsOnce", twice) as pool:
        pool.tracebacks_expected = True  # of loads that fail
        yield pool


def infer(pool: Pool, model: str) -> Answer:
    return ask(pool, f"/v2/models/{model}/infer", X)


def status_of(pool: Pool, path: str) -> int:
    return ask(pool, f"/v2/{path}").status


def worker_of(pool: Pool, model: str, index: int = 0) -> Any:
    name = f"worker {index} of {model}"
    return next(row for row in pool.status()["processes"] if row["name"] == name)


@pytest.mark.long
def test_a_model_that_nothing_serves_is_not_ready_and_is_again_when_it_is_served(
    pool: Pool,
) -> None:
    """C32: the worker's place stays empty, since its load fails from now on."""
    assert outputs(infer(pool, "loadsonce")) == Y
    assert status_of(pool, "health/ready") == 200
    os.kill(worker_of(pool, "loadsonce")["pid"], signal.SIGKILL)
    until(lambda: status_of(pool, "health/ready") == 503, "the pool's unreadiness")
    until(lambda: "the disk is gone" in worker_of(pool, "loadsonce")["last_error"], "its failure")
    assert ask(pool, "/v2/health/ready").refused == (503, "not_ready")
    assert ask(pool, "/v2/models/loadsonce/ready").refused == (503, "not_ready")
    assert status_of(pool, "models/affine/ready") == 200
    assert status_of(pool, "health/live") == 200
    for _ in range(3):
        refused = infer(pool, "loadsonce")
        assert refused.refused == (503, "not_ready")
        assert int(refused.headers["retry-after"]) >= 1
        assert outputs(infer(pool, "affine")) == Y
    (pool.notes / "mended").touch()
    until(lambda: status_of(pool, "health/ready") == 200, "the pool's readiness")
    assert status_of(pool, "models/loadsonce/ready") == 200
    assert outputs(infer(pool, "loadsonce")) == Y


def test_with_one_of_two_workers_a_model_is_ready_and_the_other_one_is_missed(pool: Pool) -> None:
    """C32: still ready, every request served, and the operator can see it."""
    victim = worker_of(pool, "loadstwice", 1)["pid"]
    os.kill(victim, signal.SIGKILL)
    until(lambda: "the disk is gone" in worker_of(pool, "loadstwice", 1)["last_error"], "a failure")
    assert pool.status()["models"]["loadstwice"]["workers"] == "1/2"
    for _ in range(20):
        assert status_of(pool, "health/ready") == status_of(pool, "models/loadstwice/ready") == 200
        assert outputs(infer(pool, "loadstwice")) == Y
    assert worker_of(pool, "loadstwice", 1)["restarts"] >= 1
    (pool.notes / "mended twice").touch()
    until(lambda: pool.status()["models"]["loadstwice"]["workers"] == "2/2", "its return")


def test_without_a_batcher_requests_wait_for_the_next_one(pool: Pool) -> None:
    """C32: the kill is found at once; callers see a delay and nothing else."""
    for _ in range(2):
        (victim,) = pool.pids("batcher")
        os.kill(victim, signal.SIGKILL)
        assert outputs(infer(pool, "affine")) == Y
        until(lambda: pool.pids("batcher") not in ([], [victim]), "another batcher")  # noqa: B023
        assert status_of(pool, "health/live") == status_of(pool, "health/ready") == 200
