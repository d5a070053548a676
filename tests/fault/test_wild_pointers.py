"""A model's native code overwrites its worker's segment: that worker ends, and nobody else."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

import batchpool as bp
from tests.fault.wild_models import HARMS
from tests.process.load import Load
from tests.process.pool_under_test import PATIENCE_S, Pool, serving, until

FOUND = "overwrote its shared segment ("


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    wild = {"import": "tests.fault.wild_models:Wild", "max_batch": 8}
    # The batcher is stopped for longer than it may be: by the test.
    with serving("Affine", wild, server={"stall_timeout_s": PATIENCE_S}) as pool:
        yield pool


@pytest.fixture
def client(pool: Pool) -> Iterator[bp.Client]:
    with pool.client() as client:
        yield client


def submit(client: bp.Client, tags: range, harm: int = 0) -> list[Any]:
    """Rows of Wild, of which the last one does harm."""
    return [
        client.submit("wild", tag=[tag], harm=[harm * (tag == tags[-1])], timeout_s=PATIENCE_S)
        for tag in tags
    ]


def tags_of(futures: list[Any]) -> list[int]:
    return [future.result(PATIENCE_S)["tag"][0] for future in futures]


def restarts(pool: Pool) -> dict[str, int]:
    return {row["name"]: row["restarts"] for row in pool.status()["processes"]}


def pid_of(pool: Pool, name: str) -> int:
    (pid,) = (row["pid"] for row in pool.status()["processes"] if row["name"] == name)
    return int(pid)


def serves_again(pool: Pool) -> None:
    until(lambda: pool.status()["models"]["wild"]["workers"] == "1/1", "the worker's return")


@pytest.mark.parametrize("harm", HARMS)
def test_only_the_worker_whose_segment_is_overwritten_is_replaced(
    pool: Pool, client: bp.Client, harm: str
) -> None:
    """The other model is served right all the time, by the same batcher and the same worker."""
    first = 1000 * HARMS[harm]
    assert tags_of(submit(client, range(first, first + 8))) == list(range(first, first + 8))
    before, found = restarts(pool), pool.log.count(FOUND)
    same = {name: pid_of(pool, name) for name in ("batcher", "worker 0 of affine")}
    broken = pid_of(pool, "worker 0 of wild")
    with Load(pool) as load:
        tags = range(first + 100, first + 140)
        futures = submit(client, tags, HARMS[harm])
        (pool.notes / f"go-{tags[-1]}").touch()
        assert tags_of(futures) == list(tags)
        answered = load.answered
        until(lambda: load.answered > answered + 10, "more answers of the other model")
        assert (load.lost, load.absent, load.refused, load.faults) == (0, 0, 0, [])
    serves_again(pool)
    assert {name: pid_of(pool, name) for name in same} == same
    assert pid_of(pool, "worker 0 of wild") != broken
    assert restarts(pool) == {**before, "worker 0 of wild": before["worker 0 of wild"] + 1}
    assert pool.log.count(FOUND) >= found + 1
    (worker,) = (r for r in pool.status()["processes"] if r["name"] == "worker 0 of wild")
    assert worker["last_error"].startswith(FOUND), worker
    assert pool.tally("wild")["lost"] == 0


@pytest.mark.parametrize("harm", ["head", "columns", "random"])
def test_a_batcher_that_finds_a_broken_segment_takes_over_once(
    pool: Pool, client: bp.Client, harm: str
) -> None:
    """The former batcher died while the segment was overwritten."""
    first = 100_000 + 1000 * HARMS[harm]
    before, found = restarts(pool), pool.log.count(FOUND)
    batcher, affine = pid_of(pool, "batcher"), pid_of(pool, "worker 0 of affine")
    tags = range(first + 100, first + 140)
    with Load(pool) as load:
        futures = submit(client, tags, HARMS[harm])
        until((pool.notes / f"wild-{tags[-1]}").exists, "the wild row")
        os.kill(batcher, signal.SIGSTOP)
        (pool.notes / f"go-{tags[-1]}").touch()
        until((pool.notes / f"done-{tags[-1]}").exists, "the harm")
        os.kill(batcher, signal.SIGKILL)
        assert tags_of(futures) == list(tags)
        answered = load.answered
        until(lambda: load.answered > answered + 10, "more answers of the other model")
        assert (load.lost, load.absent, load.refused, load.faults) == (0, 0, 0, [])
    serves_again(pool)
    assert pid_of(pool, "worker 0 of affine") == affine
    expected = {name: before[name] + 1 for name in ("batcher", "worker 0 of wild")}
    assert restarts(pool) == {**before, **expected}
    assert pool.log.count(FOUND) >= found + 1
    assert pool.tally("wild")["lost"] == 0
    until(lambda: pool.claimed() == 0, "the return of all slots")
